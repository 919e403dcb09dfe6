// Which products are marked.
#include "passes/forward/allow_tf32.h"

#include "ir/graph/verify.h"
#include "passes/forward/mixed_precision.h"
#include "passes/training/build_backward.h"
#include "tests/passes/support/spelling.h"

namespace partita {
namespace {

// The products of the backward and forward part of x w and of a convolution, and how many are marked.
std::pair<int, int> products(Precision precision) {
  Builder b;
  auto parameter = [&](std::string name, Shape shape) {
    return b.state({.name = std::move(name), .kind = StateKind::kParameter, .parameter = {}, .initial = {}},
                   {DType::kF32, std::move(shape)});
  };
  ValueId x = b.input("x", {DType::kF32, {4, 8}}), image = b.input("image", {DType::kF32, {4, 3, 5, 5}});
  ValueId y = b.matmul(b.matmul(x, parameter("w", {8, 8})), parameter("v", {8, 6}));
  ValueId z = b.emit("conv", {b.emit("conv", {image, parameter("k", {2, 3, 3, 3})}), parameter("l", {2, 2, 3, 3})});
  b.output("loss", b.add(b.reduce_sum(b.mul(y, y), {0, 1}, false), b.reduce_sum(b.mul(z, z), {0, 1, 2, 3}, false)));
  PassContext context{.recipe = {.precision = precision}};
  auto g = mixed_precision(std::move(b).finish(), context);
  EXPECT_TRUE(g.ok()) << g.status();
  g = build_backward(*g, context);
  EXPECT_TRUE(g.ok()) << g.status();
  g = allow_tf32(*g, context);
  EXPECT_TRUE(g.ok() && verify(*g, Phase::kTraining).ok()) << verify(*g, Phase::kTraining);
  int all = 0, marked = 0;
  for (const Node& node : g->nodes) {
    all += node.op->name == "matmul" || node.op->name.starts_with("conv");
    marked += node.attrs.has("tf32");
  }
  return {all, marked};
}

TEST(AllowTf32, MarksEveryProductAndItsGradients) {
  // Four forward, and the gradients of both operands of each.
  EXPECT_EQ(products(Precision::kTf32), (std::pair{12, 12}));
}

TEST(AllowTf32, MarksNothingElsewhere) {
  for (Precision p : {Precision::kFp32, Precision::kBf16, Precision::kFp16}) EXPECT_EQ(products(p), (std::pair{12, 0}));
}

}  // namespace
}  // namespace partita
