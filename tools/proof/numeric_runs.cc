#include "tools/proof/numeric_runs.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/cat.h"
#include "base/mix64.h"
#include "base/status.h"
#include "codegen/emit_program.h"
#include "ir/type/literal.h"
#include "partitioner/localize/whole_program.h"
#include "passes/training/loss_scale.h"
#include "runtime/execute/executor.h"
#include "tools/proof/gradient_noise.h"
#include "tools/proof/reference_run.h"

namespace partita {
namespace {

constexpr double kScale = 1 << 8;         // the most that fp16's loss scale starts from: a held step shows nothing
constexpr double kReferenceSeconds = 60;  // that the reference evaluator may take, other draws included
// Of what other rounding changes, that the ranks may differ by: sums of 32 bits round more often than what they are.
constexpr double kOf16Bits = 3, kOf32Bits = 10;
// Of gradients, sums of hundreds of terms, which are rounded as often as they are added to, and once in a draw.
constexpr double kOfSums = 2;
constexpr size_t kDraws = 4;  // of other rounding: of one number, such as a loss, one draw may tell little

class ScalarSink : public runtime::MetricsSink {
 public:
  absl::Status write(const runtime::StepMetrics& metrics) override {
    scalars.losses.push_back(metrics.loss.value_or(0));
    scalars.rates.push_back(metrics.lr.value_or(0));
    scalars.norms.push_back(metrics.grad_norm.value_or(0));
    scalars.skipped.push_back(metrics.skipped);
    if (metrics.evaluation_loss) scalars.evaluations.push_back(*metrics.evaluation_loss);
    return absl::OkStatus();
  }
  StepNumbers scalars;
};

// Where a run's files go: each run has its own.
struct Place {
  const std::string& folder;
  const char* name;
  std::string file(std::string_view what) const { return cat(folder, "/", name, ".", what, ".safetensors"); }
};

bool keeps_gradients(const runtime::Program& program) {
  for (const runtime::ProgramOutput& o : program.outputs) {
    if (o.name.starts_with("grad/")) return true;
  }
  return false;
}

absl::StatusOr<RunOutcome> run(std::vector<runtime::Program> programs, runtime::TrainOptions options,
                               const Place& place) {
  for (runtime::Program& p : programs) {
    for (runtime::ProgramState& s : p.states) {
      if (s.name == kLossScaleState && s.initial.kind == runtime::InitialKind::kFill)
        s.initial.a = std::min(s.initial.a, kScale);
    }
  }
  options.tell = false;
  options.save = place.file("states");
  options.save_optimizer = true;
  if (options.steps > 0 && std::any_of(programs.begin(), programs.end(), keeps_gradients))
    options.save_gradients = place.file("gradients");
  PARTITA_ASSIGN_OR_RETURN(auto loaded, runtime::LoadedPrograms::load(std::move(programs)));
  ScalarSink sink;
  PARTITA_RETURN_IF_ERROR(runtime::train_local(loaded, options, &sink));
  RunOutcome out;
  out.scalars = std::move(sink.scalars);
  PARTITA_RETURN_IF_ERROR(out.add(options.save, ""));
  if (!options.save_gradients.empty()) PARTITA_RETURN_IF_ERROR(out.add(options.save_gradients, gradient_of("")));
  return out;
}

// The serial graph as the program of one rank that runs all micro-batches. `first`: one of the ranks'.
absl::StatusOr<runtime::Program> compile_serial(Graph serial, const runtime::Program& first, bool fuse) {
  int64_t samples = 0;
  for (const GraphInput& in : serial.inputs) {
    const Shape& shape = serial.type(in.value).shape;
    if (in.kind == InputKind::kData && !shape.empty()) samples = shape[0];
  }
  const int64_t micro_batches = samples > 0 ? first.samples_per_step / samples : first.micro_batches;
  // Sums in a fixed order say how many micro-batches of a rank they are over: here, a step may have others.
  for (Node& n : serial.nodes) {
    if (n.op->sums_micro_batches && n.attrs.has("micro_batches")) n.attrs.set("micro_batches", micro_batches);
  }
  return emit_program(whole_program(std::move(serial), first.samples_per_step, micro_batches), {.fuse = fuse});
}
absl::StatusOr<runtime::Program> compile_serial(const verifier::ProgramSet& set, bool fuse) {
  return compile_serial(set.serial, set.programs.front().program, fuse);
}

// The same options for that program: evaluation is of one rank too.
absl::StatusOr<runtime::TrainOptions> serial_options(const verifier::Bundle& bundle, bool fuse,
                                                     runtime::TrainOptions options) {
  if (!bundle.evaluation) return options;
  PARTITA_ASSIGN_OR_RETURN(runtime::Program program, compile_serial(*bundle.evaluation, fuse));
  PARTITA_ASSIGN_OR_RETURN(options.evaluate.programs, runtime::LoadedPrograms::load({std::move(program)}));
  return options;
}

// The program with these first values in place of its own, which are in options.initial.
absl::StatusOr<RunOutcome> run_from(runtime::Program program, const FirstValues& values, runtime::TrainOptions options,
                                    const Place& place) {
  std::map<std::string, Literal> literals;
  for (runtime::ProgramState& s : program.states) {
    const auto at = values.find(s.name);
    if (at == values.end()) continue;
    Tensor t = Tensor::zeros({s.operand.dtype, s.placement.logical});
    t.f = at->second;
    literals.emplace(s.name, to_literal(t));
    s.initial.kind = runtime::InitialKind::kFile;
  }
  for (const runtime::SafetensorsEntry& e : options.initial->entries()) {
    if (literals.count(e.name)) continue;
    std::vector<std::byte> bytes(static_cast<size_t>(e.end - e.begin));
    PARTITA_RETURN_IF_ERROR(options.initial->read(e.name, std::vector<int64_t>(e.shape.size(), 0), e.shape, bytes));
    literals.emplace(e.name, make_literal({e.dtype, e.shape}, std::move(bytes)));
  }
  std::vector<runtime::TensorInfo> tensors;
  for (const auto& [name, value] : literals) tensors.push_back({name, value.type.dtype, value.type.shape});
  const std::string path = place.file("values");
  PARTITA_ASSIGN_OR_RETURN(auto writer, runtime::SafetensorsWriter::create(path, std::move(tensors)));
  for (const auto& [name, value] : literals) PARTITA_RETURN_IF_ERROR(writer->write(name, value.bytes()));
  PARTITA_RETURN_IF_ERROR(writer->finish());
  PARTITA_ASSIGN_OR_RETURN(runtime::SafetensorsFile file, runtime::SafetensorsFile::open(path));
  options.initial = std::make_shared<const runtime::SafetensorsFile>(std::move(file));
  return run({std::move(program)}, options, place);
}

// The serial program from gradients that are off by so many deviations of their rounding.
absl::StatusOr<Pushed> push_gradients(const Graph& serial, double deviations, const SerialRun& run) {
  const GradientProbe probe = probe_gradients(serial);
  Pushed pushed;
  PARTITA_ASSIGN_OR_RETURN(pushed.none, run(probe.graph, {}, 0));
  PARTITA_ASSIGN_OR_RETURN(const RunOutcome other, run(probe.graph, {}, 1));
  FirstValues up, down;
  for (const State& s : probe.graph.states) {
    if (std::find(probe.names.begin(), probe.names.end(), s.name) == probe.names.end()) continue;
    const Shape& shape = probe.graph.type(s.value).shape;
    std::vector<double> noise = gradient_noise(pushed.none.tensor(gradient_of(s.name)),
                                               other.tensor(gradient_of(s.name)), shape.empty() ? 1 : shape.back());
    for (double& x : noise) x *= deviations;
    up.emplace(s.name, noise);
    for (double& x : noise) x = -x;
    down.emplace(s.name, std::move(noise));
  }
  PARTITA_ASSIGN_OR_RETURN(pushed.up, run(probe.graph, std::move(up), 0));
  PARTITA_ASSIGN_OR_RETURN(pushed.down, run(probe.graph, std::move(down), 0));
  return pushed;
}

}  // namespace

double rounding(const Graph& graph) {
  double coarsest = 0;
  for (const Value& v : graph.values) {
    if (v.type.dtype == DType::kBF16) coarsest = std::max(coarsest, std::ldexp(1.0, -8));
    if (v.type.dtype == DType::kF16) coarsest = std::max(coarsest, std::ldexp(1.0, -11));
  }
  return coarsest;
}

// All parameters off by half of their rounding to 16 bits, or else by one in their last place, up or down: every value
// that is then rounded is rounded anew, as it is on ranks that compute parts of sums.
FirstValues NumericRuns::first_off(const RunOutcome& first, size_t draw) const {
  FirstValues values;
  for (const State& s : bundle_.serial.states) {
    const DType dtype = bundle_.serial.type(s.value).dtype;
    if (s.kind != StateKind::kParameter || !is_float(dtype)) continue;
    const double share = coarse_ > 0 ? coarse_ / 2 : dtype == DType::kF64 ? 0x1p-52 : 0x1p-23;
    std::vector<double>& x = values.emplace(s.name, first.tensor(s.name)).first->second;
    for (size_t k = 0; k < x.size(); ++k) x[k] *= 1 + (mix64(draw, k) % 2 == 0 ? share : -share);
  }
  return values;
}

SerialRun NumericRuns::compiled(const Runs& runs) const {
  return [&](const Graph& serial, FirstValues values, size_t draw) -> absl::StatusOr<RunOutcome> {
    PARTITA_ASSIGN_OR_RETURN(runtime::Program program, compile_serial(serial, bundle_.programs.front().program, true));
    PARTITA_ASSIGN_OR_RETURN(const runtime::TrainOptions options, serial_options(bundle_, true, train_));
    if (draw > 0) values.merge(first_off(runs.first, draw));
    const std::string name = cat("again.", ++again_);
    const Place place{folder_, name.c_str()};
    return values.empty() ? run({std::move(program)}, options, place)
                          : run_from(std::move(program), values, options, place);
  };
}

SerialRun NumericRuns::by_reference(const Runs& runs) const {
  return [&](const Graph& serial, FirstValues values, size_t draw) -> absl::StatusOr<RunOutcome> {
    PARTITA_ASSIGN_OR_RETURN(const runtime::Program fused, compile_serial(bundle_, true));
    for (const std::string& name : runs.first.names()) {
      if (!values.count(name)) values.emplace(name, runs.first.tensor(name));
    }
    if (train_.initial != nullptr) {  // what is frozen, a run does not save
      for (const runtime::SafetensorsEntry& e : train_.initial->entries()) {
        if (values.count(e.name)) continue;
        const TensorType type{e.dtype, e.shape};
        std::vector<std::byte> bytes(static_cast<size_t>(byte_size(type)));
        PARTITA_RETURN_IF_ERROR(train_.initial->read(e.name, std::vector<int64_t>(e.shape.size(), 0), e.shape, bytes));
        values.emplace(e.name, Numbers(Literal{type, nullptr, bytes.data()}).all());
      }
    }
    PARTITA_ASSIGN_OR_RETURN(ReferenceRun run, run_reference(serial, fused, train_.data, values, train_.steps, draw));
    RunOutcome out;
    out.scalars.losses = std::move(run.losses);
    out.scalars.rates = std::move(run.rates);
    out.scalars.norms = std::move(run.norms);
    out.values = std::move(run.states);
    for (auto& [name, gradient] : run.gradients) out.values.emplace(gradient_of(name), std::move(gradient));
    return out;
  };
}

absl::StatusOr<Runs> NumericRuns::all() const {
  Runs runs;
  std::vector<runtime::Program> stages;
  for (const verifier::RankProgram& p : bundle_.programs) stages.push_back(p.program);
  runs.several = !stages.front().mesh.empty();
  PARTITA_ASSIGN_OR_RETURN(runs.ranks, run(std::move(stages), train_, {folder_, "ranks"}));
  PARTITA_ASSIGN_OR_RETURN(runtime::Program fused, compile_serial(bundle_, true));
  PARTITA_ASSIGN_OR_RETURN(runtime::TrainOptions options, serial_options(bundle_, true, train_));
  runtime::TrainOptions none = options;
  none.steps = 0;
  PARTITA_ASSIGN_OR_RETURN(runs.first, run({fused}, none, {folder_, "first"}));
  runs.compiled.share = coarse_ > 0 ? kOf16Bits : kOf32Bits;
  PARTITA_ASSIGN_OR_RETURN(runs.compiled.serial, run({std::move(fused)}, options, {folder_, "serial"}));
  return runs;
}

absl::Status NumericRuns::add_reference(Runs& runs, int draws) const {
  PARTITA_ASSIGN_OR_RETURN(const runtime::Program fused, compile_serial(bundle_, true));
  const double seconds = reference_seconds(bundle_.serial, fused.micro_batches, train_.steps);
  if (train_.steps <= 0 || 2 * draws * seconds > kReferenceSeconds) return absl::OkStatus();
  runs.reference.emplace();
  runs.reference->share = coarse_ > 0 ? kOf16Bits : kOf32Bits;
  PARTITA_ASSIGN_OR_RETURN(runs.reference->serial, by_reference(runs)(bundle_.serial, {}, 0));
  return absl::OkStatus();
}

absl::Status NumericRuns::add_unfused(Runs& runs) const {
  if (runs.unfused) return absl::OkStatus();
  PARTITA_ASSIGN_OR_RETURN(runtime::Program unfused, compile_serial(bundle_, false));
  PARTITA_ASSIGN_OR_RETURN(runtime::TrainOptions options, serial_options(bundle_, false, train_));
  PARTITA_ASSIGN_OR_RETURN(runs.unfused, run({std::move(unfused)}, options, {folder_, "unfused"}));
  return absl::OkStatus();
}

absl::StatusOr<bool> NumericRuns::draw(Side& side, const Runs& runs) const {
  const bool is_compiled = &side == &runs.compiled;
  if (side.off.size() == kDraws || (is_compiled && coarse_ == 0)) return false;
  const SerialRun again = is_compiled ? compiled(runs) : by_reference(runs);
  PARTITA_ASSIGN_OR_RETURN(RunOutcome off, again(bundle_.serial, {}, side.off.size() + 1));
  side.off.push_back(std::move(off));
  return true;
}

absl::Status NumericRuns::push(Side& side, const Runs& runs) const {
  const bool is_compiled = &side == &runs.compiled;
  if ((side.off.empty() && !is_compiled) || side.pushed) return absl::OkStatus();
  PARTITA_ASSIGN_OR_RETURN(side.pushed, push_gradients(bundle_.serial, kOfSums * side.share,
                                                       is_compiled ? compiled(runs) : by_reference(runs)));
  return absl::OkStatus();
}

}  // namespace partita
