// The one transformation: a global graph and a sharding for its inputs and states become a rank program's graph on
// local shapes, with the communication in it. It knows formulas and shardings, not ops: data, tensor and expert
// parallelism and ZeRO differ only in the plan they hand in.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "partitioner/localize/local_program.h"

namespace partita {

// How often a state that is stored in parts is gathered: once a step, and kept for all its micro-batches; in forward,
// and kept for backward; in forward and again in backward, so that the gathered copy does not live long.
enum class GatherTime { kStep, kMicroBatch, kPass };

// How a state lies between steps, and how forward and backward compute with it. Where the two differ (ZeRO) it is
// gathered.
struct StateLayout {
  Sharding stored, compute;
  GatherTime gather = GatherTime::kMicroBatch;
  bool host = false;  // kept in host memory, where what updates it runs
};

struct ShardingPlan {
  Mesh mesh;
  std::vector<Sharding> inputs;                    // one for each graph input
  std::vector<std::optional<StateLayout>> states;  // unset: lies as its first use leaves it (accumulators)
  std::vector<Shape> logical;                      // of the states, where the graph's are padded; empty: none is
  std::vector<int> slice_axes;                     // axes along which ranks run different micro-batches of one step
  std::vector<int> scatter_axes;  // sums over these axes are scattered along a factor that the consumer leaves parallel
                                  // rather than completed everywhere (Megatron's sequence parallelism)
  std::vector<int> block_axes;    // axes that divide inner dimensions where sums have a fixed order: a sum over them is
                                  // of blocks (ir/ops/matmul.cc), and complete as soon as it is made
  int64_t micro_batches = 1;      // of one rank
  int64_t samples_per_step = 0;

  // Where the stages of a pipeline divide different things (partitioner/shard/join_plans.h), by Node::chunk: what the
  // axes are to the node's stage. Empty: the same to all nodes, by `inputs` and `scatter_axes`.
  struct AxisUse {
    std::vector<int> samples, scatter;
  };
  std::vector<AxisUse> axis_uses;
  // Values that are their producer's operand, laid out so for what reads them in stage `to`; `from`: the operand's.
  struct StageReshard {
    Sharding lies;
    int from = 0, to = 0;
  };
  std::map<ValueId, StageReshard> stage_reshards;
};

// The mesh axes along which ranks take different samples.
std::vector<int> sample_axes(const ShardingPlan& plan);
// What the axes are to a stage's program: stages may have plans of their own.
ShardingPlan::AxisUse axis_use(const ShardingPlan& plan, const PipelineStage& stage);

absl::StatusOr<LocalProgram> localize(const Graph& graph, const ShardingPlan& plan);
// How each value of the graph lies first under the plan, its sums completed. Errors are those of localize().
absl::StatusOr<std::vector<Sharding>> value_shardings(const Graph& graph, const ShardingPlan& plan);

}  // namespace partita
