// Who reads what of a U-Net, whose way down is read on the way up.
#include "partitioner/planner/workload/crossing_values.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "base/cat.h"
#include "ir/graph/builder.h"
#include "partitioner/planner/workload/workload.h"
#include "passes/forward/tag_blocks.h"
#include "passes/training/build_backward.h"

namespace partita {
namespace {

TEST(CrossingValues, OfASkipAreReadFarBehind) {
  Builder b;
  int states = 0;
  auto product = [&](ValueId x, int64_t out) {
    ValueId w = b.state({.name = cat("w", states++), .kind = StateKind::kParameter, .parameter = {}, .initial = {}},
                        {DType::kF32, {b.shape(x)[1], out}});
    return b.emit("tanh", {b.matmul(x, w)});
  };
  constexpr int64_t kSamples = 4, kSkipped = 40;
  ValueId x = b.input("x", {DType::kF32, {kSamples, 3}});
  const ValueId skipped = x = product(product(x, 24), kSkipped);
  for (int64_t width : {30, 20, 18, 16, 14, 12, 10, 10, 12, 14, 16, 18, 20, 30}) x = product(x, width);
  x = b.add(skipped, product(x, kSkipped));
  for (int64_t width : {38, 36, 34, 32}) x = product(x, width);
  b.output("loss", b.reduce_sum(x, {0, 1}, false));
  PassContext context;
  const Graph graph = *build_backward(*tag_blocks(std::move(b).finish(), context), context);
  auto workload = analyse(graph);
  ASSERT_TRUE(workload.ok()) << workload.status();
  ASSERT_GE(workload->units.size(), 4u);
  int far = 0;
  std::vector<double> entering(workload->units.size(), 0);
  for (const CrossingValue& v : workload->crossing) {
    ASSERT_FALSE(v.readers.empty());
    EXPECT_GT(v.readers.front(), v.maker);
    EXPECT_TRUE(std::is_sorted(v.readers.begin(), v.readers.end()));
    EXPECT_DOUBLE_EQ(v.bytes, sizeof(float) * v.elements);
    for (int reader : v.readers) entering[static_cast<size_t>(reader)] += v.elements;
    if (v.readers.back() < v.maker + 3) continue;
    ++far;
    EXPECT_DOUBLE_EQ(v.elements, kSkipped);
  }
  EXPECT_EQ(far, 1);
  for (size_t u = 0; u < entering.size(); ++u) EXPECT_DOUBLE_EQ(entering[u], workload->unit(u).input) << u;
}

}  // namespace
}  // namespace partita
