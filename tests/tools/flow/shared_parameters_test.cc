// What stages send each other of a head that is tied to the embedding is priced as compiled programs have it.
#include <gtest/gtest.h>

#include <ostream>

#include "base/cat.h"
#include "partitioner/planner/cost/cost_model.h"
#include "tests/support/command.h"
#include "tests/support/temp_folder.h"
#include "tools/flow/partition.h"
#include "tools/flow/plan.h"

namespace partita {
namespace {

constexpr double kMatrix = 4.0 * 384 * 64;  // bytes

struct Layouts {
  std::vector<std::string> pins;
  int64_t ranks;
  double parameters, gradients;  // expected, in matrices of all ranks
  std::string precision = "fp32";
};

void PrintTo(const Layouts& l, std::ostream* out) {
  *out << l.precision;
  for (const std::string& pin : l.pins) *out << " " << pin;
}

class SharedByStages : public testing::TestWithParam<Layouts> {};

// In a step, of matrices: before the passes and after (or with) them.
PlanTraffic::Shared sent(const LocalPrograms& programs, const Layout& layout, double micro_batches) {
  PlanTraffic::Shared sum;
  for (size_t stage = 0; stage < programs.stages.size(); ++stage) {
    const Graph& g = programs.stages[stage].graph;
    const auto ranks = static_cast<double>(layout.ranks_of_stage(static_cast<int64_t>(stage)));
    for (const Node& node : g.nodes) {
      if (node.op->name != "send") continue;
      const TensorType& type = g.type(node.inputs[0]);
      const double bytes = static_cast<double>(byte_size(type)) * ranks;
      if (node.segment == Segment::kPrologue) sum.parameters += bytes;
      // Activations have three dimensions, or are few where stages differ.
      if (node.segment == Segment::kPrologue || type.rank() != 2 || bytes < kMatrix / 2) continue;
      sum.gradients += bytes * (node.segment == Segment::kBackward ? micro_batches : 1);
    }
  }
  return sum;
}

TEST_P(SharedByStages, IsPricedAsItIsSent) {
  const Layouts& p = GetParam();
  TempFolder out;
  ASSERT_EQ(run_partita("model gpt --layers 2 --hidden 64 --heads 4 --seq 16 --vocab 384 --with-weights --quiet -o " +
                        (out / "model.onnx"))
                .code,
            0);
  const PlanRequest request{
      .model = out / "model.onnx",
      .train_file = out.write("train.yaml", cat("optimizer: {kind: adamw, lr: 0.001}\nbatch: {global: 16}\n"
                                                "data: {kind: synthetic}\nprecision: ",
                                                p.precision, "\n")),
      .cluster_file = out.write("cluster.yaml", cat("devices_per_node: ", p.ranks, "\ndevice: cpu\n")),
      .pins = p.pins};
  auto planning = prepare_plan(request);
  ASSERT_TRUE(planning.ok()) << planning.status();
  CostModel model((*planning)->problem);
  const auto found = search(model, (*planning)->options);
  ASSERT_TRUE(found.ok()) << found.status();
  const Layout& layout = (found->best ? found->best : found->nearest)->layout;
  const PlanTraffic traffic = model.traffic(layout);
  ASSERT_EQ(traffic.shared.size(), 1u);
  EXPECT_EQ(traffic.shared[0].parameters, p.parameters * kMatrix);
  EXPECT_EQ(traffic.shared[0].gradients, p.gradients * kMatrix);

  PassRun run = PassRun::unchecked();
  PhaseTimes times;
  ModelSource source(out / "model.onnx", recipe_of(*(*planning)->source, (*planning)->problem, layout));
  auto made = partition_model(source, source.recipe(), {.ranks = p.ranks}, run, times);
  ASSERT_TRUE(made.ok()) << made.status();
  const PlanTraffic::Shared is = sent(made->programs, layout, static_cast<double>(traffic.micro_batches));
  EXPECT_EQ(traffic.shared[0].parameters, is.parameters);
  EXPECT_EQ(traffic.shared[0].gradients, is.gradients);
}

INSTANTIATE_TEST_SUITE_P(
    TiedGpt, SharedByStages,
    testing::Values(Layouts{{"pipeline=2", "data=1", "tensor=1", "micro_batch=4"}, 2, 1, 1},
                    Layouts{{"pipeline=2", "data=2", "zero=0", "micro_batch=4"}, 4, 2, 2},
                    Layouts{{"pipeline=2", "data=2", "zero=0", "micro_batch=8"}, 4, 2, 2},  // one micro-batch
                    Layouts{{"pipeline=2", "tensor=2", "zero=0", "micro_batch=4"}, 4, 1, 1},
                    Layouts{{"pipeline=2", "data=2", "zero=1", "micro_batch=4"}, 4, 1, 2},
                    Layouts{{"pipeline=2", "data=2", "zero=2", "micro_batch=4"}, 4, 1, 1},
                    Layouts{{"pipeline=2", "data=2", "zero=0", "micro_batch=4"}, 4, 2, 2, "bf16"},
                    Layouts{{"pipeline=2", "data=2", "zero=3", "micro_batch=4"}, 4, 1, 1, "bf16"},
                    Layouts{{"stages=[{data: 2}, {data: 1}]", "zero=0", "micro_batch=4"}, 3, 1, 2}));

}  // namespace
}  // namespace partita
