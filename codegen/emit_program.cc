#include "codegen/emit_program.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <numeric>
#include <set>
#include <tuple>

#include "base/cat.h"
#include "base/quote.h"
#include "base/status.h"
#include "codegen/llvm/object_code.h"
#include "codegen/nvptx/device_code.h"
#include "codegen/nvptx/device_launches.h"
#include "codegen/prepare/code_graph.h"
#include "codegen/prepare/code_passes.h"
#include "codegen/program_interface.h"
#include "codegen/steps/step_plan.h"
#include "ir/nest/nest_text.h"
#include "ir/op/formula.h"
#include "partitioner/layout/pipeline_schedule.h"
#include "runtime/program/library_kernels.h"
#include "runtime/program/params.h"
#include "runtime/program/tree_sums.h"

namespace partita {
namespace {

using runtime::Program;
using runtime::ProgramSegment;
using runtime::Step;
using runtime::StepKind;

runtime::Params make_params(const Attrs& attrs) {
  runtime::Params params;
  for (const auto& [name, value] : attrs.items()) {
    std::visit(
        [&](const auto& v) {
          if constexpr (std::is_same_v<std::decay_t<decltype(v)>, DType>) {
            params[name] = static_cast<int64_t>(v);
          } else {
            params[name] = v;
          }
        },
        value);
  }
  return params;
}

class ProgramMaker {
 public:
  ProgramMaker(const LocalProgram& local, PreparedGraph prepared, const TargetOptions& options)
      : local_(local),
        options_(options),
        prepared_(std::move(prepared)),
        graph_(prepared_.graph),
        code_(graph_, !options.gpu.empty(), local.stage.phases(graph_), options.strict),
        plan_(make_step_plan(code_, {.fusion = {.fuse = options.fuse, .stage_axis = local.stage.axis},
                                     .micro_batches = local.micro_batches,
                                     .order = local.order(),
                                     .chunks = static_cast<int32_t>(local.stage.chunks),
                                     .turns = local.stage.turns,
                                     .overlapped = local.stage.overlapped,
                                     .updates_each = local.stage.updates_each(),
                                     .in_place = options.in_place,
                                     .host_states = local.host_states(),
                                     .host_arena = !options.gpu.empty(),
                                     .together = !options.gpu.empty()})) {}

  // All but the code of kernels.
  void lay_out() {
    program_.model = graph_.name;
    program_.target = options_.gpu.empty() ? target_name(options_.cpu) : cat("cuda:", options_.gpu);
    for (size_t a = 0; a < local_.mesh.axes.size(); ++a) {
      if (static_cast<int>(a) != local_.mesh.time)
        program_.mesh.push_back({local_.mesh.axes[a].name, local_.mesh.axes[a].size, local_.mesh.axes[a].absent});
    }
    program_.micro_batches = local_.micro_batches;
    if (local_.mesh.time >= 0) program_.micro_slices = local_.mesh.axes[static_cast<size_t>(local_.mesh.time)].size;
    program_.samples_per_step = local_.samples_per_step;
    program_.slots = slots_of(plan_.order);
    program_.origins = graph_.origins;
    std::copy(std::begin(plan_.region_bytes), std::end(plan_.region_bytes), program_.region_bytes);
    make_channels();
    make_steps();
    if (!options_.gpu.empty()) choose_launches(program_, kernels_);
    make_schedule();
    make_interface(local_, graph_, plan_, program_);
  }

  Program program() { return std::move(program_); }

  absl::StatusOr<Program> run() {
    lay_out();
    make_constants();
    PARTITA_RETURN_IF_ERROR(check_library_steps());
    PARTITA_RETURN_IF_ERROR(options_.gpu.empty() ? make_code() : make_device_code());
    return std::move(program_);
  }

  // That what train.yaml asks for can be had somewhere, and that a GPU can start it.
  absl::Status check_library_steps() const {
    const bool for_gpu = !options_.gpu.empty();
    for (const ProgramSegment& segment : program_.segments) {
      for (const Step& step : segment.steps) {
        if (step.kind != StepKind::kLibrary) continue;
        const std::string origin = step.origin < 0 ? "" : cat(program_.origins[static_cast<size_t>(step.origin)], ": ");
        if (for_gpu && step.device == runtime::DeviceTag::kDevice && !runtime::has_device_kernel(step.name))
          return absl::UnimplementedError(
              cat(origin, "there is no kernel ", quote(step.name), " for GPUs; compile for --target cpu:host"));
        const DType dtype = step.operands[0].dtype;
        if (runtime::text_param(step.params, "kernel", "") == "cudnn" && !(for_gpu && dtype_size(dtype) == 2))
          return absl::InvalidArgumentError(
              cat(origin, "kernels: {attention: cudnn} in train.yaml is for GPUs, in bf16 or fp16; found ",
                  dtype_name(dtype), " for ", for_gpu ? options_.gpu : "processors", "; say auto, or leave it out"));
      }
    }
    return absl::OkStatus();
  }

  std::vector<ProgramNest> nests() {
    program_.target = options_.gpu.empty() ? "" : cat("cuda:", options_.gpu);
    program_.slots = slots_of(plan_.order);
    make_steps();
    if (!options_.gpu.empty()) choose_launches(program_, kernels_);
    std::vector<ProgramNest> nests;
    for (const NamedNest& k : kernels_) nests.push_back({k.name, *k.nest, k.batched});
    return nests;
  }

  // As they are compiled.
  KernelNests kernel_nests() const {
    const bool gpu = !options_.gpu.empty();
    KernelNests nests{compiler_name(), gpu ? options_.gpu : exact_target(options_.cpu), {}};
    for (const NamedNest& k : kernels_) nests.kernels.push_back({k.name, false, k.batched, *k.nest});
    for (const NamedNest& k : host_kernels_) nests.kernels.push_back({k.name, true, false, *k.nest});
    return nests;
  }

  ProgramClaims claims() const {
    ProgramClaims claims{local_.graph, {}, kernel_nests()};
    std::map<NodeId, NodeId> send_of = sends();
    // In terms of the graph before anything was made again: a copy is the value that it equals. What the graph does
    // not have is a temporary.
    int lowest = kNoValue;
    for (const PlanStep& step : plan_.steps) {
      for (int v : step.values) lowest = std::min(lowest, v);
    }
    for (const PlanStep& step : plan_.steps) {
      Claim claim{step.node, step.values};
      for (int& v : claim.values) {
        if (v < 0) continue;
        const ValueId same = prepared_.same_as[v];
        v = PreparedGraph::is_temporary(same) ? lowest - 1 - PreparedGraph::number(same) : same;
      }
      if (step.node >= 0) {
        const Node& node = graph_.nodes[step.node];
        if (node.outputs.empty()) {
          claim.node = send_of.at(step.node);
        } else {
          const ValueId made = prepared_.same_as[node.outputs[0]];
          claim.node =
              PreparedGraph::is_temporary(made) ? kNoNode : prepared_.expanded.values[prepared_.value(made)].producer;
        }
      }
      claims.steps.push_back(std::move(claim));
    }
    return claims;
  }

  // Sends, which have no outputs to know them by, keep their order when values are made again.
  std::map<NodeId, NodeId> sends() const {
    std::vector<NodeId> before;
    for (size_t n = 0; n < prepared_.expanded.nodes.size(); ++n) {
      if (prepared_.expanded.nodes[n].outputs.empty()) before.push_back(static_cast<NodeId>(n));
    }
    std::map<NodeId, NodeId> now;
    for (size_t n = 0; n < graph_.nodes.size(); ++n) {
      if (graph_.nodes[n].outputs.empty()) now[static_cast<NodeId>(n)] = before[now.size()];
    }
    return now;
  }

  std::string describe() const {
    std::string s;
    for (const PlanStep& step : plan_.steps) {
      append(s, enum_name(step.segment), " ");
      if (step.nest != nullptr) {
        append(s, "kernel (", step.node >= 0 ? graph_.nodes[step.node].op->name : "", ") ", to_string(*step.nest));
      } else {
        append(s,
               step.kind == StepKind::kCopy             ? "copy"
               : step.kind == StepKind::kCollectiveWait ? "wait "
                                                        : "",
               step.name, "\n");
      }
      for (size_t k = 0; k < step.operands.size(); ++k) {
        const PlanOperand& o = step.operands[k];
        append(s, static_cast<int>(k) == step.inputs ? "  -> " : "     ", o.buffer < 0 ? "-" : to_string(o.type),
               o.buffer < 0 ? "" : cat(" b", o.buffer, " @", plan_.buffers[o.buffer].offset), "\n");
      }
    }
    append(s, "arena ", plan_.region_bytes[static_cast<int>(runtime::Region::kArena)], " bytes\n");
    return s;
  }

 private:
  int32_t group_of(const std::vector<int64_t>& axes, int64_t channel = 0) {
    std::vector<int32_t> key(axes.begin(), axes.end());
    auto [at, fresh] = groups_.try_emplace({key, channel}, static_cast<int32_t>(program_.groups.size()));
    if (fresh) program_.groups.push_back({key});
    return at->second;
  }

  // Channels are groups of the same ranks, told apart by their order: the same in the programs of all stages. Stages
  // that differ in their axes talk in groups along those.
  void make_channels() {
    if (local_.stage.axis < 0) return;
    const int64_t stages = local_.mesh.axes[static_cast<size_t>(local_.stage.axis)].size;
    std::set<std::vector<int>> along = {{}, local_.mesh.irregular()};
    for (int64_t s = 0; s < stages; ++s) {
      for (int64_t other = s + 1; other < stages; ++other) along.insert(local_.mesh.differing(s, other));
    }
    for (const std::vector<int>& axes : along) {
      std::vector<int64_t> all = {local_.stage.axis};
      all.insert(all.end(), axes.begin(), axes.end());
      for (int64_t c = 0; c < local_.stage.channels; ++c) group_of(all, c);
    }
  }

  // Equal nests of one side share one function.
  std::string kernel_of(const LoopNest& nest, bool host) {
    auto [at, fresh] = symbols_.try_emplace({host, to_string(nest)}, cat("k", symbols_.size()));
    if (fresh) (host ? host_kernels_ : kernels_).push_back({at->second, &nest});
    return at->second;
  }

  absl::Status make_code() {
    if (kernels_.empty()) return absl::OkStatus();
    PARTITA_ASSIGN_OR_RETURN(program_.kernels, compile_nests(kernels_, options_.cpu));
    return absl::OkStatus();
  }

  // Kernel steps learn what the assembler says of them.
  absl::Status make_device_code() {
    if (!host_kernels_.empty()) {
      PARTITA_ASSIGN_OR_RETURN(program_.host_kernels, compile_nests(host_kernels_, kHostOfGpus));
    }
    if (kernels_.empty()) return absl::OkStatus();
    PARTITA_ASSIGN_OR_RETURN(DeviceCode code, compile_device_nests(kernels_, {options_.gpu, options_.assembler}));
    program_.kernels = std::move(code.cubin);
    program_.portable_kernels.assign(code.ptx.begin(), code.ptx.end());
    std::map<std::string, const DeviceKernel*> reports;
    for (const DeviceKernel& k : code.kernels) reports[k.name] = &k;
    for (ProgramSegment& segment : program_.segments) {
      for (Step& step : segment.steps) {
        auto report = reports.find(step.name);
        if (step.kind != StepKind::kKernel || step.device == runtime::DeviceTag::kHost || report == reports.end())
          continue;
        step.params["registers"] = int64_t{report->second->registers};
        if (report->second->spilled_bytes > 0) step.params["spilled_bytes"] = report->second->spilled_bytes;
      }
    }
    return absl::OkStatus();
  }

  // Backward is in several segments where others stand between its steps.
  void make_steps() {
    for (const PlanStep& p : plan_.steps) {
      const ProgramSegment* last = program_.segments.empty() ? nullptr : &program_.segments.back();
      if (last == nullptr || last->kind != p.segment || last->chunk != p.phase)
        program_.segments.push_back({p.segment, p.phase, {}});
      program_.segments.back().steps.push_back(make_step(p, static_cast<uint32_t>(&p - plan_.steps.data())));
    }
  }

  Step make_step(const PlanStep& p, uint32_t id) {
    Step step;
    step.id = id;
    step.kind = p.kind;
    step.name = p.name;
    for (const PlanOperand& o : p.operands) step.operands.push_back(make_operand(plan_, o));
    step.inputs = p.inputs;
    for (const PlanOperand& o : p.operands) step.bytes += o.buffer < 0 ? 0 : byte_size(o.type);
    const Node* node = p.node < 0 ? nullptr : &graph_.nodes[p.node];
    if (node != nullptr) {
      step.origin = node->origin;
      step.block = node->block;
      step.device = node->device == DeviceKind::kHost ? runtime::DeviceTag::kHost : runtime::DeviceTag::kDevice;
    }
    switch (p.kind) {
      case StepKind::kKernel:
        step.name = kernel_of(*p.nest, !options_.gpu.empty() && step.device == runtime::DeviceTag::kHost);
        step.units = units(*p.nest);
        step.flops = flops(*p.nest);
        break;
      case StepKind::kLibrary:
        step.params = make_params(node->attrs);
        if (!p.epilogue.empty())
          step.params["epilogue"] =
              node->attrs.has("epilogue") ? cat(p.epilogue, "+", node->attrs.s("epilogue")) : p.epilogue;
        step.flops = static_cast<int64_t>(node_flops(graph_, *node));
        break;
      case StepKind::kCollectiveStart:
        step.params = make_params(node->attrs);
        step.params["group"] = int64_t{group_of(node->attrs.ints("axes"), node->attrs.i("channel", 0))};
        step.params.erase("channel");
        if (p.outbox >= 0) {
          step.params["outbox"] = int64_t{p.outbox};
          step.bytes = byte_size(p.operands[0].type);
        }
        if (static_cast<size_t>(p.inputs) < node->inputs.size()) step.params["elements"] = elements_of(node->inputs);
        if (!step.params.count("reduce")) step.params["reduce"] = std::string("sum");
        if (options_.strict && runtime::adds_up_ranks(step)) step.params["ordered"] = int64_t{1};
        break;
      case StepKind::kCollectiveWait:
        step.params["of"] = int64_t{p.waits_for};
        break;
      case StepKind::kCopy:
        break;
    }
    return step;
  }

  std::vector<int64_t> elements_of(const std::vector<ValueId>& values) const {
    std::vector<int64_t> counts;
    for (ValueId v : values) counts.push_back(byte_size(graph_.type(v)) / dtype_size(graph_.type(v).dtype));
    return counts;
  }

  void run_segment(size_t k, const StageStep& at) {
    program_.schedule.push_back(
        {static_cast<int32_t>(k), static_cast<int32_t>(at.micro_batch), static_cast<int32_t>(at.slot)});
  }

  // `sums`: not null where the reduce segments that stand behind those of this kind and phase run with them, in its
  // slot.
  void run_segments(Segment kind, int32_t phase, const StageStep& at, const StageStep* sums = nullptr) {
    const std::vector<ProgramSegment>& all = program_.segments;
    for (size_t k = 0; k < all.size(); ++k) {
      if (all[k].kind != kind || all[k].chunk != phase) continue;
      run_segment(k, at);
      for (size_t sum = k + 1; sums != nullptr && sum < all.size() && all[sum].kind == Segment::kReduce; ++sum)
        run_segment(sum, *sums);
    }
  }

  void make_schedule() {
    run_segments(Segment::kPrologue, 0, StageStep{});
    StageStep last{};  // what a step's end reads of the last micro-batch is in its slot
    for (const StageStep& at : plan_.order) last = at.micro_batch + 1 == local_.micro_batches ? at : last;
    const bool each = local_.stage.updates_each();
    for (const StageStep& at : plan_.order) {
      const bool forward = at.kind == StageWork::kForward;
      const bool sums = !forward && !each && at.micro_batch + 1 == local_.micro_batches;
      run_segments(forward ? Segment::kForward : Segment::kBackward, local_.stage.phase(at.kind, at.chunk, at.turn), at,
                   sums ? &last : nullptr);
      if (each && at.kind == StageWork::kBackward) run_segments(Segment::kReduce, 0, at);
    }
    // Where nothing runs backward, no sum stands behind it.
    const auto runs = [&](size_t k) {
      return std::any_of(program_.schedule.begin(), program_.schedule.end(),
                         [&](const runtime::ScheduleEntry& e) { return static_cast<size_t>(e.segment) == k; });
    };
    for (size_t k = 0; k < program_.segments.size(); ++k) {
      if (program_.segments[k].kind == Segment::kReduce && !runs(k)) run_segment(k, last);
    }
    run_segments(Segment::kUpdate, 0, last);
  }

  void make_constants() {
    program_.constants.resize(static_cast<size_t>(plan_.region_bytes[static_cast<int>(runtime::Region::kConstant)]));
    for (const auto& [buffer, literal] : plan_.constants) {
      auto bytes = literal->bytes();
      if (!bytes.empty())
        std::memcpy(program_.constants.data() + plan_.buffers[buffer].offset, bytes.data(), bytes.size());
    }
  }

  const LocalProgram& local_;
  const TargetOptions& options_;
  const PreparedGraph prepared_;
  const Graph& graph_;
  CodeGraph code_;
  StepPlan plan_;
  Program program_;
  std::map<std::pair<std::vector<int32_t>, int64_t>, int32_t> groups_;  // by axes and channel
  std::map<std::pair<bool, std::string>, std::string> symbols_;         // by side and nest
  std::vector<NamedNest> kernels_, host_kernels_;                       // a CPU's are all in the first
};

CodeContext code_context(const std::vector<LocalProgram>& programs, const TargetOptions& options) {
  const bool gpu = !options.gpu.empty();
  return {.programs = programs,
          .gpu = gpu,
          .epilogues = gpu && options.fuse && options.epilogues && !options.strict,
          .channels_last = gpu && !options.strict,
          .added_rows = !gpu && options.fuse && !options.strict,
          .strict = options.strict,
          .fp8 = options.has_fp8()};
}

// Of one program, whose passes nobody watches.
ProgramMaker maker(const LocalProgram& local, const TargetOptions& options) {
  PassRun run = PassRun::unchecked();
  const std::vector<LocalProgram> programs = {local};
  auto prepared = prepare_graphs(code_context(programs, options), run);
  PARTITA_CHECK(prepared.ok(), std::string(prepared.status().message()));
  return ProgramMaker(local, std::move(prepared->stages[0]), options);
}

}  // namespace

absl::StatusOr<std::vector<EmittedProgram>> emit_programs(const std::vector<LocalProgram>& programs,
                                                          const TargetOptions& options, EmitUntil until, PassRun& run) {
  PARTITA_ASSIGN_OR_RETURN(PreparedGraphs prepared, prepare_graphs(code_context(programs, options), run));
  std::vector<EmittedProgram> emitted;
  if (run.stopped()) return emitted;
  for (size_t k = 0; k < programs.size(); ++k) {
    ProgramMaker maker(programs[k], std::move(prepared.stages[k]), options);
    if (until == EmitUntil::kMemory) {
      maker.lay_out();
      emitted.push_back({maker.program(), {}});
      continue;
    }
    PARTITA_ASSIGN_OR_RETURN(Program program, maker.run());
    emitted.push_back({std::move(program), maker.claims()});
  }
  return emitted;
}

absl::StatusOr<Program> emit_program(const LocalProgram& local, const TargetOptions& options) {
  return maker(local, options).run();
}

std::vector<ProgramNest> program_nests(const LocalProgram& local, const TargetOptions& options) {
  return maker(local, options).nests();
}

std::string describe_program(const LocalProgram& local, const TargetOptions& options) {
  return maker(local, options).describe();
}

}  // namespace partita
