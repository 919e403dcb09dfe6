#include "tools/flow/compile.h"

#include <algorithm>
#include <filesystem>
#include <set>

#include "base/cat.h"
#include "base/quote.h"
#include "base/status.h"
#include "codegen/prepare/code_passes.h"
#include "ir/graph/dependence.h"
#include "ir/recipe/glob.h"
#include "ir/recipe/lengths.h"
#include "partitioner/communicate/state_gathers.h"
#include "partitioner/localize_stages.h"
#include "passes/forward/join_teacher.h"
#include "passes/pipeline.h"
#include "runtime/program/placement.h"
#include "tools/flow/bound_inputs.h"
#include "tools/flow/data_settings.h"
#include "tools/flow/device_memory.h"
#include "tools/flow/partition.h"
#include "tools/verify/bundle/bundle.h"

namespace partita {
namespace {

void take_layout(const Layout& layout, const BatchPlan& batch, Compiled& out) {
  out.ranks = layout.ranks();
  Layout said = layout;
  said.micro_batch = batch.graph_batch / batch.batch_ranks / batch.parts;
  if (said.recompute == RecomputeMode::kAuto) said.recompute = RecomputeMode::kNone;  // compiled without a plan
  out.layout = describe(said);
  if (layout.pipeline > 1) out.schedule = layout.schedule;
  for (const Layout::StageAxes& stage : layout.stages)
    out.stage_axes.push_back(
        {{"data", stage.data}, {"expert", stage.expert}, {"context", stage.context}, {"tensor", stage.tensor}});
}

std::vector<InitialTensor> collect_weights(const std::vector<LocalProgram>& stages) {
  std::vector<InitialTensor> weights;
  std::set<std::string> known;  // stages may share a state
  for (const LocalProgram& local : stages) {
    for (size_t k = 0; k < local.graph.states.size(); ++k) {
      const State& s = local.graph.states[k];
      bool here = std::holds_alternative<Literal>(s.initial) || std::holds_alternative<FileRange>(s.initial);
      if (!here || !known.insert(s.name).second) continue;
      TensorType whole{local.graph.type(s.value).dtype, local.states[k].logical};
      weights.push_back({s.name, std::move(whole), s.initial, s.kind == StateKind::kParameter});
    }
  }
  return weights;
}

void take_programs(std::vector<EmittedProgram> emitted, const std::string& model, Compiled& out) {
  for (EmittedProgram& e : emitted) {
    e.program.model = std::filesystem::path(model).filename().string();
    out.programs.push_back(std::move(e.program));
    out.claims.push_back(std::move(e.claims));
  }
}

int64_t trained_elements(const Graph& graph) {
  int64_t count = 0;
  for (const State& s : graph.states)
    count += s.kind == StateKind::kParameter ? elements(graph.type(s.value).shape) : 0;
  return count;
}

int64_t weight_elements(const Graph& graph) {
  int64_t count = 0;
  for (const State& s : graph.states) count += is_weight(graph, s) ? elements(graph.type(s.value).shape) : 0;
  return count;
}

// Outputs that no loss and no metric is made of.
std::vector<std::string> unused_outputs(const ImportedModel& model, const Recipe& recipe) {
  const std::vector<GraphOutput>& outputs = model.graph.outputs;
  std::set<std::string> used;
  if (model.training && !model.training->loss.empty()) {
    used.insert(model.training->loss);
  } else {
    for (const LossRecipe& loss : recipe.loss) {
      used.insert(loss.output);
      for (const std::string& other : {loss.with, loss.logit_scale}) {
        if (!other.empty()) used.insert(other);
      }
    }
  }
  for (const auto& [name, metric] : recipe.metrics) used.insert(metric.output);
  if (!outputs.empty() && (used.empty() || used.contains(""))) used.insert(outputs[0].name);
  std::vector<std::string> names;
  for (const GraphOutput& o : outputs) {
    if (!used.contains(o.name) && !is_of_teacher(o.name)) names.push_back(o.name);
  }
  return names;
}

// All passes of the flow, in order.
std::vector<std::string_view> pass_names() {
  std::vector<std::string_view> names;
  for (const Pass& pass : graph_passes(PassUse::kTraining)) names.push_back(pass.name);
  for (std::string_view name : program_pass_names()) names.push_back(name);
  for (const CodePass& pass : code_passes()) names.push_back(pass.name);
  return names;
}

// Of products that may multiply fp8 numbers and do not, on this GPU.
void warn_of_fp8(const std::vector<LocalProgram>& stages, const TargetOptions& target, Compiled& out) {
  int64_t marked = 0, found = 0;
  for (const LocalProgram& stage : stages) {
    for (const Node& node : stage.graph.nodes) marked += node.op->name == "matmul" && node.attrs.i("fp8", 0) > 0;
  }
  for (const runtime::Program& program : out.programs) {
    for (const auto& segment : program.segments) {
      for (const runtime::Step& step : segment.steps) found += step.name == "multiply_fp8";
    }
  }
  if (target.gpu.empty() || found == marked) return;
  out.warnings.push_back(target.has_fp8()
                             ? cat(marked - found, " of ", marked, " fp8 products are multiplied in bf16 on ",
                                   target.gpu, ": they are not of blocks of 128, or of rows that are no multiple of 16")
                             : cat("fp8 products are multiplied in bf16 on ", target.gpu,
                                   target.strict ? ", as reproducible asks for" : ""));
}

// Evaluation's passes are dumped beside those of training.
absl::StatusOr<PassRun> evaluation_run(const PassOptions& training) {
  PassOptions own{.verify = training.verify};
  if (!training.dump_folder.empty()) own.dump_folder = training.dump_folder + "/evaluation";
  return PassRun::create(own, {});
}

absl::StatusOr<Compiled> compile_batch(const CompileRequest& request) {
  Compiled out;
  PhaseTimes times;
  PARTITA_ASSIGN_OR_RETURN(PassRun run, PassRun::create(request.passes, pass_names()));
  auto stop = [&] {
    out.stopped = run.stopped();
    out.passes = run.times();
    out.seconds = times.seconds();
    return std::move(out);
  };
  ModelSource source(request.model, request.recipe);
  PARTITA_ASSIGN_OR_RETURN(
      const Partition partition,
      partition_model(source, request.recipe, {request.ranks, request.keep_gradients, request.target.row_bytes()}, run,
                      times));
  TargetOptions target = request.target;
  const auto& reproducible = partition.model.recipe.reproducible;
  target.strict = reproducible.has_value();
  if (reproducible && reproducible->tensor > 1 && !target.gpu.empty())
    return absl::InvalidArgumentError(
        cat("reproducible: {tensor: ", reproducible->tensor,
            "}: products of GPUs add up in an order that all their sizes decide, a rank's of the tensor axis, too; "
            "leave `tensor` out, or compile for CPUs"));
  out.warnings = partition.model.warnings;
  out.recipe = partition.model.recipe;
  take_layout(partition.model.layout, partition.model.batch, out);
  out.unused_outputs = unused_outputs(*partition.model.imported, out.recipe);
  if (run.stopped()) return stop();
  const std::vector<LocalProgram>& stages = partition.programs.stages;
  if (partition.model.layout.overlapped() > 1 && stages[0].stage.overlapped == 1)
    out.warnings.push_back(
        "pin overlap_micro_batches: micro-batches send nothing that they wait for within a pass; they come one after "
        "the "
        "other");
  if (const int64_t parts = partition.model.layout.row_parts(); parts > 1 && partition.programs.parted_products == 0)
    out.warnings.push_back(cat("pin overlap_products: ", parts,
                               ": no product waits for a collective whose rows divide by ", parts,
                               ", or is waited for by one; products stay whole"));
  if (request.recipe.evaluate) {
    PARTITA_ASSIGN_OR_RETURN(PassRun own, evaluation_run(request.passes));
    auto evaluation = compile_evaluation(source, partition, target, own);
    if (!evaluation.ok()) return with_context(evaluation.status(), "evaluate");
    out.evaluation = *std::move(evaluation);
    times.lap("evaluation");
  }
  PARTITA_ASSIGN_OR_RETURN(std::vector<EmittedProgram> emitted, emit_programs(stages, target, EmitUntil::kCode, run));
  times.lap("code");
  if (run.stopped()) return stop();

  const Graph& graph = *partition.training.graph;
  out.run = run_settings(request.recipe, graph);
  out.plan = request.plan;
  out.serial = verifier::without_weights(graph);
  take_programs(std::move(emitted), request.model, out);
  warn_of_fp8(stages, target, out);
  bound_inputs(out.serial, out.programs);
  PARTITA_RETURN_IF_ERROR(check_room(out.programs, request.room));
  out.compress = partition.programs.compress;
  out.compressed = partition.programs.compressed;
  for (const LocalProgram& stage : stages)
    out.gathered_bytes = std::max(out.gathered_bytes, out.ranks > 1 ? gathered_bytes(stage.graph) : 0);
  out.statistic_samples = partition.training.statistic_samples;
  out.capacity_samples = partition.training.capacity_samples;
  out.weights = collect_weights(stages);
  out.parameters = trained_elements(graph);
  out.weight_elements = weight_elements(graph);
  for (const Node& node : graph.nodes) {
    out.products += node.op->name == "matmul";
    out.fp8_products += node.attrs.i("fp8", 0) != 0;
  }
  out.samples = partition.model.batch.graph_batch * partition.model.batch.micro_batches;
  out.form = partition.training.form;
  return stop();
}

// Where the ranks of `stage` have a state, one after the other.
std::vector<std::vector<int64_t>> places(const runtime::Program& p, size_t stage, const runtime::ProgramState& s) {
  std::vector<std::vector<int64_t>> all = {s.operand.shape};
  for (int64_t r = 0; r < runtime::mesh_size(p.mesh); ++r) {
    if (runtime::stage_of(p.mesh, r) == static_cast<int64_t>(stage))
      all.push_back(runtime::box_offset(s.placement, runtime::mesh_coordinates(p.mesh, r)));
  }
  return all;
}

// The parameter of the first state of which a rank would have another part in `other` than in `first`, so that it could
// not go on with it; empty: there is none.
std::string divided_otherwise(const Compiled& first, const Compiled& other) {
  for (size_t stage = 0; stage < first.programs.size(); ++stage) {
    const runtime::Program &mine = first.programs[stage], &theirs = other.programs[stage];
    for (const runtime::ProgramState& s : theirs.states) {
      if (s.kind == StateKind::kAccumulator) continue;
      const auto at =
          std::find_if(mine.states.begin(), mine.states.end(), [&](const auto& m) { return m.name == s.name; });
      if (at != mine.states.end() && at->operand.dtype == s.operand.dtype &&
          places(mine, stage, *at) == places(theirs, stage, s))
        continue;
      return s.parameter.empty() ? s.name : s.parameter;
    }
  }
  return "";
}

// `what` takes the steps of `other`; `advice`: what divides `parameter` alike.
absl::Status other_parts(const Compiled& first, const Compiled& other, std::string_view parameter,
                         std::string_view what, std::string_view advice) {
  return absl::InvalidArgumentError(cat(what, ": ranks that take ", other.samples,
                                        " samples a step would have other parts of ", quote(parameter),
                                        " than those that take ", first.samples, "; ", advice));
}

// The programs for the shorter samples, on the states of `compiled`. A parameter that one of them would divide in
// another way, and that no pin speaks of, is written to `whole`, and the rest is not made.
absl::Status compile_lengths(const CompileRequest& request, Compiled& compiled, std::string& whole) {
  const LengthsRecipe& lengths = request.recipe.lengths;
  if (lengths.extents.empty() || compiled.stopped) return absl::OkStatus();
  compiled.length = lengths.extents.back();
  for (int64_t length : lengths.extents) {
    if (length == compiled.length) continue;
    CompileRequest other = request;
    PARTITA_ASSIGN_OR_RETURN(other.recipe, recipe_of_length(request.recipe, compiled.samples, length));
    other.passes = {};
    auto made = compile_batch(other);
    const std::string what = cat("bind.", lengths.dimension, " ", length);
    if (!made.ok()) return with_context(made.status(), what);
    if (const std::string name = divided_otherwise(compiled, *made); !name.empty()) {
      const std::vector<ValuePin>& pins = request.recipe.pin.values;
      if (std::any_of(pins.begin(), pins.end(), [&](const ValuePin& p) { return glob_match(p.match, name); }))
        return other_parts(compiled, *made, name, what,
                           "leave this length out, or pin how it lies (pin: {NAME: {dim0: }} keeps it whole)");
      whole = name;
      return absl::OkStatus();
    }
    made->length = length;
    compiled.lengths.push_back(*std::move(made));
  }
  return absl::OkStatus();
}

// For all lengths. What they would divide in different ways, each rank keeps whole.
absl::StatusOr<Compiled> compile_with_lengths(CompileRequest request) {
  std::vector<std::string> kept;
  for (;;) {
    PARTITA_ASSIGN_OR_RETURN(Compiled compiled, compile_batch(request));
    std::string whole;
    PARTITA_RETURN_IF_ERROR(compile_lengths(request, compiled, whole));
    if (whole.empty()) {
      for (const std::string& name : kept)
        compiled.warnings.push_back(cat("each rank keeps ", quote(name),
                                        " whole: samples of different lengths would divide it in different ways"));
      return compiled;
    }
    request.recipe.pin.values.push_back({whole, {}});
    kept.push_back(std::move(whole));
  }
}

}  // namespace

absl::StatusOr<Compiled> compile_model(const CompileRequest& request) {
  PARTITA_ASSIGN_OR_RETURN(Compiled compiled, compile_with_lengths(request));
  std::set<int64_t> known = {compiled.samples};
  for (const BatchPhase& phase : request.recipe.batch.ramp) {
    if (compiled.stopped || !known.insert(phase.samples).second) continue;
    CompileRequest other = request;
    other.recipe.batch.global = phase.samples;
    other.passes = {};
    auto batch = compile_batch(other);
    if (!batch.ok()) return with_context(batch.status(), cat("batch.global from step ", phase.from));
    if (const std::string name = divided_otherwise(compiled, *batch); !name.empty())
      return other_parts(compiled, *batch, name, "batch.global",
                         "say batch.micro, or numbers of samples that the ranks divide alike");
    compiled.batches.push_back(*std::move(batch));
  }
  return compiled;
}

}  // namespace partita
