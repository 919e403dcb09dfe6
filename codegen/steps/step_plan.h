// What runs in which order on which buffers: everything about a rank program but machine code.
#pragma once

#include <string>
#include <vector>

#include "codegen/fuse/fusion.h"
#include "codegen/prepare/code_graph.h"
#include "ir/nest/loop_nest.h"
#include "partitioner/layout/pipeline_schedule.h"
#include "runtime/program/program.h"

namespace partita {

// A buffer and where it lies. Buffers of the arena get their offset last.
struct PlanBuffer {
  runtime::Region region = runtime::Region::kArena;
  int64_t offset = 0;
  int64_t bytes = 0;
  int birth = -1, death = -1, last = -1;  // steps, for those of the arena, as in Lifetime
  int64_t slot_stride = 0;                // bytes from one micro-batch in flight to the next
  int64_t places = 0;                     // as in runtime::Address
  bool later = false;                     // a later phase of the segment that makes it reads it, too
};

// One operand: `type` as the step sees it (a view may have another shape than its buffer), at `offset` bytes into a
// buffer.
struct PlanOperand {
  TensorType type;  // invalid: an absent optional operand
  int buffer = -1;
  int64_t offset = 0;
};

struct PlanStep {
  runtime::StepKind kind = runtime::StepKind::kKernel;
  Segment segment = Segment::kForward;
  int32_t phase = 0;
  NodeId node = kNoNode;  // for origin, block, device and attributes
  std::string name;       // library kernels and collectives
  const LoopNest* nest = nullptr;
  std::vector<PlanOperand> operands;
  int inputs = 0;
  int waits_for = -1;    // kCollectiveWait: index of the start
  int outbox = -1;       // of a send, which nothing waits for: from where it leaves
  std::string epilogue;  // what a library kernel does on top of its op (runtime/kernels/matmul.cc)
  // What the operands are: a value (never a view), kNoValue where absent, below that a temporary. Empty for a
  // collective over a bundle, whose values are its node's.
  std::vector<int> values;
};

struct StepPlan {
  std::vector<FusedItem> items;  // owns the nests
  // Segment by segment, but that steps of the reduce segment may stand between those of backward: after the steps that
  // they need, and with the last micro-batch alone.
  std::vector<PlanStep> steps;
  std::vector<PlanBuffer> buffers;
  std::vector<PlanOperand> states, inputs, outputs;       // as in the graph
  std::vector<std::pair<int, const Literal*>> constants;  // buffers to fill
  int64_t region_bytes[runtime::kRegions] = {};
  std::vector<StageStep> order;  // of the options, its slots as the memory is divided
};

struct PlanOptions {
  FusionOptions fusion;
  int64_t micro_batches = 1;
  // What runs of the micro-batches; those in flight have slots, with their own copy of what lives on from one phase to
  // a later one. None: one after the other.
  std::vector<StageStep> order;
  // Forward phase p and backward phase chunks - 1 - p are of one chunk; where micro-batches take turns, as many phases
  // each.
  int32_t chunks = 1;
  // Each chunk's phase is so many, in each of which `overlapped` micro-batches take turns.
  int32_t turns = 1;
  int64_t overlapped = 1;
  bool updates_each = false;  // the reduce segment runs after each backward phase
  bool in_place = true;
  std::vector<bool> host_states;  // per state: kept in host memory; empty: none is
  // What host nodes make lies in an arena of the host's (host_transfers.h).
  bool host_arena = false;
  bool together = false;  // what an update does again and again stands together, to be launched so
};

// Fuses (see fusion.h). `code` must outlive the plan. Values that no output, state or collective depends on get no
// step.
StepPlan make_step_plan(CodeGraph& code, const PlanOptions& options);

}  // namespace partita
