// Gradients of gathered rows that are added where their other term lies: which ones are, their numbers, and that the
// verifier proves them and nothing else.
#include "codegen/prepare/added_rows.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>

#include "ir/graph/builder.h"
#include "runtime/program/params.h"
#include "tests/codegen/support/interpreter.h"

namespace partita {
namespace {

using runtime::Step;
using runtime::StepKind;

constexpr int64_t kRows = 48, kWidth = 16, kTokens = 24;

// An embedding whose rows are the head's weights too, in training; `term`: what is added to the gradient of its rows.
Graph tied(const std::function<ValueId(Builder&, ValueId rows, ValueId head)>& term, DType type = DType::kF32) {
  Builder b;
  ValueId ids = b.input("ids", {DType::kI64, {kTokens}}), g = b.input("g", {type, {kTokens, kWidth}}),
          logits = b.input("logits", {type, {kTokens, kRows}});
  ValueId w = b.state({.name = "w"}, {type, {kRows, kWidth}});
  b.context().segment = Segment::kBackward;
  ValueId head = b.matmul(logits, g, true, false);
  ValueId rows = b.emit("gather_grad", {b.emit("exp", {g}), ids}, {{"dim", int64_t{0}}, {"size", kRows}});
  ValueId sum = term(b, rows, head);
  b.context().segment = Segment::kUpdate;
  b.set_next("w", b.sub(w, b.scale(sum, 0.5)));
  return std::move(b).finish();
}
ValueId added(Builder& b, ValueId rows, ValueId head) { return b.add(head, rows); }

std::vector<const Node*> added_rows(const Graph& graph) {
  std::vector<const Node*> found;
  for (const Node& node : graph.nodes) {
    if (node.op->name == "gather_grad" && node.inputs.size() == 3) found.push_back(&node);
  }
  return found;
}

std::vector<Step> steps_named(const Graph& graph, const std::string& name, TargetOptions options = {}) {
  auto program = emit_program(local_program(graph), options);
  EXPECT_TRUE(program.ok()) << program.status();
  std::vector<Step> found;
  for (const auto& segment : program->segments) {
    for (const Step& s : segment.steps) {
      if (s.name == name) found.push_back(s);
    }
  }
  return found;
}

TEST(AddedRows_OfATiedEmbedding, GoIntoTheOtherTermsPlace) {
  const Graph graph = tied(added);
  const std::vector<Step> steps = steps_named(graph, "gather_grad"), products = steps_named(graph, "matmul");
  ASSERT_EQ(steps.size(), 1u);
  ASSERT_EQ(products.size(), 1u);
  EXPECT_EQ(runtime::text_param(steps[0].params, "epilogue", ""), "accumulate");
  ASSERT_EQ(steps[0].inputs, 3);
  EXPECT_EQ(steps[0].operands[3].address, products[0].operands[2].address);
  EXPECT_EQ(steps[0].operands[3].address, steps[0].operands[2].address);
  // The update alone, and what the rows are of, are generated code: no sweep adds the two.
  EXPECT_EQ(compare_with_reference(graph), 2);
}

TEST(AddedRows_OfSeveralEmbeddings, AreAllAdded) {
  const Graph graph = tied([](Builder& b, ValueId rows, ValueId head) {
    const Graph& g = b.graph();
    const Node& node = *g.producer(rows);
    const ValueId more = b.emit("gather_grad", {b.emit("sin", {node.inputs[0]}), node.inputs[1]}, node.attrs);
    return b.add(b.add(rows, more), head);
  });
  EXPECT_EQ(added_rows(add_rows(graph).graph).size(), 1u);
  compare_with_reference(graph);
  const Graph one_by_one = tied([](Builder& b, ValueId rows, ValueId head) {
    const Node node = *b.graph().producer(rows);
    const ValueId sum = b.add(rows, head);
    return b.add(sum, b.emit("gather_grad", {b.emit("sin", {node.inputs[0]}), node.inputs[1]}, node.attrs));
  });
  EXPECT_EQ(added_rows(add_rows(one_by_one).graph).size(), 2u);
  compare_with_reference(one_by_one);
}

// What they are added to is read once more, or is the outside's: the kernel writes the sum beside it.
TEST(AddedRows_ToWhatLivesOn, LeaveItAsItIs) {
  const Graph graph = tied([](Builder& b, ValueId rows, ValueId head) {
    b.output("head", head);
    return b.add(rows, head);
  });
  const std::vector<Step> steps = steps_named(graph, "gather_grad");
  ASSERT_EQ(steps.size(), 1u);
  ASSERT_EQ(steps[0].inputs, 3);
  EXPECT_NE(steps[0].operands[3].address, steps[0].operands[2].address);
  compare_with_reference(graph);
}

TEST(AddedRows_OfMicroBatches, GoIntoTheirSum) {
  Builder b;
  ValueId ids = b.input("ids", {DType::kI64, {kTokens}}), g = b.input("g", {DType::kF32, {kTokens, kWidth}});
  ValueId w = b.state({.name = "w"}, {DType::kF32, {kRows, kWidth}}),
          sum = b.state({.name = "sum", .kind = StateKind::kAccumulator}, {DType::kF32, {kRows, kWidth}});
  ValueId h = b.emit("exp", {g});
  b.context().segment = Segment::kBackward;
  ValueId total = b.emit("accumulate", {sum, b.emit("gather_grad", {h, ids}, {{"dim", int64_t{0}}, {"size", kRows}})});
  b.set_next("sum", total);
  b.context().segment = Segment::kUpdate;
  b.set_next("w", b.sub(w, total));
  LocalProgram local = local_program(std::move(b).finish());
  local.micro_batches = 3;
  auto program = emit_program(local);
  ASSERT_TRUE(program.ok()) << program.status();
  for (const auto& segment : program->segments) {
    if (segment.kind != Segment::kBackward) continue;
    ASSERT_EQ(segment.steps.size(), 1u);
    EXPECT_EQ(segment.steps[0].operands[3].address, program->states[1].operand.address);
  }
  Interpreter run(*std::move(program));
  std::vector<double> expected(kRows * kWidth, 0);
  run.set_state("w", Tensor::zeros({DType::kF32, {kRows, kWidth}}));
  run.run(2, [&](int m) {
    const Tensor i = random_tensor({DType::kI64, {kTokens}}, 5 + m, 1, kRows),
                 x = random_tensor({DType::kF32, {kTokens, kWidth}}, 9 + m);
    for (size_t k = 0; k < x.f.size(); ++k)
      expected[static_cast<size_t>(i.i[k / kWidth]) * kWidth + k % kWidth] -= std::exp(x.f[k]);
    run.set_input("ids", i), run.set_input("g", x);
  });
  const Tensor found = run.state("w");
  for (size_t k = 0; k < expected.size(); ++k) EXPECT_NEAR(found.f[k], expected[k], 1e-5) << k;
}

TEST(AddedRows_ThatMayNotBe, StayByThemselves) {
  const auto count = [](const Graph& graph) { return added_rows(add_rows(graph).graph).size(); };
  EXPECT_EQ(count(tied(added)), 1u);
  // Something else reads them; they are rounded after each row; the other term is not like them.
  EXPECT_EQ(count(tied([](Builder& b, ValueId rows, ValueId head) { return b.mul(b.add(rows, head), rows); })), 0u);
  EXPECT_EQ(count(tied([](Builder& b, ValueId rows, ValueId) { return b.add(rows, rows); })), 0u);
  EXPECT_EQ(count(tied([](Builder& b, ValueId rows, ValueId head) {
              b.output("rows", rows);
              return b.add(rows, head);
            })),
            0u);
  EXPECT_EQ(count(tied(added, DType::kBF16)), 0u);
  EXPECT_EQ(count(tied([](Builder& b, ValueId rows, ValueId) { return b.add_scalar(rows, 1); })), 0u);
  // In another part of the step; where numbers may not depend on what a kernel does besides; on a GPU.
  EXPECT_EQ(count(tied([](Builder& b, ValueId rows, ValueId head) {
              b.context().segment = Segment::kUpdate;
              return b.add(rows, head);
            })),
            0u);
  EXPECT_EQ(steps_named(tied(added), "gather_grad", {.strict = true})[0].inputs, 2);
  EXPECT_EQ(steps_named(tied(added), "gather_grad", {.gpu = "sm_90"})[0].inputs, 2);
}

}  // namespace
}  // namespace partita
