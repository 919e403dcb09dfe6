// What holds for all recognisers: deep graphs neither overflow the stack nor take long, and a graph without patterns
// stays.
#include <chrono>

#include "passes/forward/tag_blocks.h"
#include "passes/recognize/recognize_activation.h"
#include "passes/recognize/recognize_attention.h"
#include "passes/recognize/recognize_cross_entropy.h"
#include "passes/recognize/recognize_dispatch.h"
#include "passes/recognize/recognize_grouped_matmul.h"
#include "passes/recognize/recognize_norm.h"
#include "passes/recognize/recognize_rotary.h"
#include "tests/passes/support/spelling.h"

namespace partita {
namespace {

constexpr PassFunction kAll[] = {
    recognize_activation,     recognize_attention, recognize_cross_entropy, recognize_dispatch,
    recognize_grouped_matmul, recognize_norm,      recognize_rotary,        tag_blocks};
constexpr int kDepth = 20000;

void expect_quick(const Graph& graph) {
  for (const PassFunction& pass : kAll) {
    auto start = std::chrono::steady_clock::now();
    auto after = pass(graph, {});
    ASSERT_TRUE(after.ok()) << after.status();
    EXPECT_LT(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count(), 10)
        << "pass " << &pass - kAll;
  }
}

// x put through `step` many times, in every place that a pattern looks at.
Graph deep(const std::function<ValueId(Builder&, ValueId)>& step) {
  Builder b;
  ValueId w = b.state({.name = "w", .kind = StateKind::kParameter}, {DType::kF32, {1, 1, 2, 2}});
  ValueId x = b.mul(b.input("x", {DType::kF32, {1, 1, 2, 2}}), w);
  for (int k = 0; k < kDepth; ++k) x = step(b, x);
  b.output("attention", b.matmul(b.emit("softmax", {b.add(b.matmul(x, x, false, true), x)}, {{"dim", int64_t{3}}}), x));
  ValueId rows =
      b.emit("reshape", {b.emit("broadcast", {x}, {{"shape", Shape{1, 2, 2, 2}}})}, {{"shape", Shape{2, 2, 2}}});
  b.output("experts", b.matmul(b.reshape(b.mul(rows, rows), {2, 4}), b.reshape(rows, {4, 2})));
  b.output("silu", b.mul(x, b.emit("sigmoid", {x})));
  b.output("norm", b.mul(x, b.emit("rsqrt", {b.add_scalar(b.mean(b.mul(x, x), {3}, true), 1e-5)})));
  return std::move(b).finish();
}

TEST(Recognisers_Deep, Scales) {
  expect_quick(deep([](Builder& b, ValueId x) { return b.scale(x, 2); }));
}

TEST(Recognisers_Deep, Squares) {
  expect_quick(deep([](Builder& b, ValueId x) { return b.mul(x, x); }));
}

TEST(Recognisers_Deep, Sums) {
  expect_quick(deep([](Builder& b, ValueId x) { return b.add(x, x); }));
}

TEST(Recognisers_Deep, Signs) {
  expect_quick(deep([](Builder& b, ValueId x) { return b.neg(x); }));
}

TEST(Recognisers_Deep, Casts) {
  expect_quick(
      deep([](Builder& b, ValueId x) { return b.cast(x, b.dtype(x) == DType::kF32 ? DType::kF64 : DType::kF32); }));
}

TEST(Recognisers_Deep, Reshapes) {
  expect_quick(deep([](Builder& b, ValueId x) { return b.emit("reshape", {x}, {{"shape", Shape{1, 1, 2, 2}}}); }));
}

TEST(Recognisers_Deep, Softmaxes) {
  expect_quick(deep([](Builder& b, ValueId x) { return b.emit("softmax", {x}, {{"dim", int64_t{3}}}); }));
}

TEST(Recognisers_Deep, MaskOfManyConditions) {
  Builder b;
  ValueId q = b.input("q", {DType::kF32, {1, 1, 2, 2}}), at = b.input("m", {DType::kBool, {1, 1, 2, 2}}), mask = at;
  for (int k = 0; k < kDepth; ++k) mask = b.emit(k % 2 == 0 ? "and" : "or", {mask, at});
  for (int k = 0; k < kDepth; ++k) mask = b.emit("not", {mask});
  for (int k = 0; k < kDepth; ++k) mask = b.emit("and", {mask, mask});
  ValueId low = b.select(mask, b.scalar(DType::kF32, 0), b.scalar(DType::kF32, -1e30));
  b.output("y", b.matmul(b.emit("softmax", {b.add(b.matmul(q, q, false, true), low)}, {{"dim", int64_t{3}}}), q));
  expect_quick(std::move(b).finish());
}

TEST(Recognisers_None, GraphStays) {
  Builder b;
  ValueId x = f64_input(b, "x", {3, 4});
  b.output("y", b.add(b.emit("tanh", {x}), x));
  for (PassFunction pass : kAll) EXPECT_EQ(recognised(pass, b).nodes.size(), 2u);
}

}  // namespace
}  // namespace partita
