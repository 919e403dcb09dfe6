// Attention that reads and writes rows where they lie: what is found, what the verifier makes of it, and the
// numbers of our own kernels on a CUDA runtime that is this machine.
#include "codegen/prepare/attention_views.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>

#include "base/cat.h"
#include "ir/graph/builder.h"
#include "ir/graph/evaluate.h"
#include "ir/op/op_def.h"
#include "tests/codegen/support/cuda_on_host.h"
#include "tests/codegen/support/interpreter.h"
#include "tests/codegen/support/rank_program.h"

namespace partita {
namespace {

using runtime::Step;
using verifier::RankProgram;

constexpr int64_t kBatch = 2, kRows = 5, kHeads = 3, kHead = 8, kWidth = kHeads * kHead;
const Attrs kAttrs = {{"scale", 0.3}, {"causal", int64_t{1}}};

ValueId split(Builder& b, ValueId x, int64_t part) {
  const Shape s = b.shape(x);
  Shape starts(s.size(), 0), limits = s;
  starts[0] = part, limits[0] = part + 1;
  const ValueId cut = b.emit("slice", {x}, {{"starts", starts}, {"limits", limits}, {"strides", Shape(s.size(), 1)}});
  return b.reshape(cut, Shape(s.begin() + 1, s.end()));
}

// Queries, keys and values of one product, as GPT-2 has them, and the gradients: `head` elements each.
Graph fused(int64_t head = kHead, DType t = DType::kBF16, bool q_is_wanted = false) {
  const int64_t width = kHeads * head;
  Builder b;
  const ValueId x = b.input("x", {t, {kBatch * kRows, width}}), g = b.input("g", {t, {kBatch * kRows, width}});
  const ValueId w = b.state({.name = "w"}, {t, {width, 3 * width}}), p = b.state({.name = "p"}, {t, {width, width}});
  const ValueId qkv =
      b.transpose(b.reshape(b.matmul(x, w), {kBatch, kRows, 3, kHeads, head}), std::vector<int64_t>{2, 0, 3, 1, 4});
  const ValueId q = split(b, qkv, 0), k = split(b, qkv, 1), v = split(b, qkv, 2);
  const std::vector<ValueId> out = b.emit_all("attention", {q, k, v}, kAttrs);
  const ValueId rows = b.reshape(b.transpose(out[0], {0, 2, 1, 3}), {kBatch * kRows, width});
  b.output("y", b.matmul(rows, p));
  if (q_is_wanted) b.output("q", q);
  b.context().segment = Segment::kBackward;
  const ValueId dout = b.transpose(b.reshape(b.matmul(g, p, false, true), {kBatch, kRows, kHeads, head}),
                                   std::vector<int64_t>{0, 2, 1, 3});
  const std::vector<ValueId> grads = b.emit_all("attention_grad", {dout, q, k, v, kNoValue, out[0], out[1]}, kAttrs);
  std::vector<ValueId> parts;
  for (ValueId d : grads)
    parts.push_back(b.transpose(b.reshape(d, {1, kBatch, kHeads, kRows, head}), std::vector<int64_t>{1, 3, 0, 2, 4}));
  const ValueId dqkv = b.reshape(b.emit("concat", parts, {{"dim", int64_t{2}}}), {kBatch * kRows, 3 * width});
  b.output("dx", b.matmul(dqkv, w, false, true));
  b.context().weight_gradient = true;
  b.output("dw", b.matmul(x, dqkv, true, false));
  b.output("dp", b.matmul(rows, g, true, false));
  return std::move(b).finish();
}

// Each of a product of its own; queries are changed on the way, and fewer heads have keys.
Graph separate() {
  const DType t = DType::kBF16;
  Builder b;
  const ValueId x = b.input("x", {t, {kBatch * kRows, kWidth}}), g = b.input("g", {t, {kBatch * kRows, kWidth}});
  const auto heads = [&](ValueId rows, int64_t n) {
    return b.transpose(b.reshape(rows, {kBatch, kRows, n, kHead}), std::vector<int64_t>{0, 2, 1, 3});
  };
  const auto product = [&](const char* name, int64_t n) {
    return heads(b.matmul(x, b.state({.name = name}, {t, {kWidth, n * kHead}})), n);
  };
  const ValueId q = b.neg(product("wq", kHeads)), k = product("wk", 1), v = product("wv", 1);
  const std::vector<ValueId> out = b.emit_all("attention", {q, k, v}, kAttrs);
  b.output("y", b.reshape(b.transpose(out[0], {0, 2, 1, 3}), {kBatch * kRows, kWidth}));
  b.context().segment = Segment::kBackward;
  const std::vector<ValueId> grads =
      b.emit_all("attention_grad", {heads(g, kHeads), q, k, v, kNoValue, out[0], out[1]}, kAttrs);
  const auto rows = [&](ValueId d, int64_t n) {
    return b.reshape(b.transpose(d, std::vector<int64_t>{0, 2, 1, 3}), {kBatch * kRows, n * kHead});
  };
  b.output("dq", rows(b.neg(grads[0]), kHeads));
  b.output("dk", b.matmul(x, rows(grads[1], 1), true, false));
  b.output("dv", b.matmul(x, rows(grads[2], 1), true, false));
  return std::move(b).finish();
}

std::vector<std::string> ops(const Graph& graph) {
  std::vector<std::string> found;
  for (const Node& node : view_attention(graph, true).graph.nodes) {
    if (!node.op->view) found.emplace_back(node.op->name);
  }
  return found;
}

TEST(AttentionViews_OneProduct, LeavesNoCopies) {
  EXPECT_THAT(ops(fused()), testing::UnorderedElementsAre("matmul", "attention", "matmul", "matmul", "attention_grad",
                                                          "matmul", "matmul", "matmul"));
}

TEST(AttentionViews_SeveralProducts, LeaveWhatChangesTheNumbers) {
  const std::vector<std::string> found = ops(separate());
  EXPECT_EQ(std::count(found.begin(), found.end(), "neg"), 2);
  EXPECT_EQ(std::count(found.begin(), found.end(), "transpose"), 2) << "before the queries, and behind their gradient";
}

TEST(AttentionViews_OtherReadersAndSizes, KeepWhatTheyNeed) {
  // Rows of 12 bytes.
  const Graph odd = fused(6);
  std::vector<std::string> expected;
  for (const Node& node : odd.nodes) {
    if (!node.op->view) expected.emplace_back(node.op->name);
  }
  EXPECT_EQ(ops(odd), expected);
  const std::vector<std::string> read = ops(fused(kHead, DType::kBF16, true));
  EXPECT_EQ(std::count(read.begin(), read.end(), "slice"), 1) << "what the outside reads";
}

// Values alone of a product of three: it would have to stay in memory for them.
TEST(AttentionViews_APart, IsCopied) {
  Builder b;
  const ValueId x = b.input("x", {DType::kBF16, {3, kBatch, kHeads, kRows, kHead}});
  const ValueId all = b.neg(x), q = b.neg(split(b, all, 0)), k = b.neg(split(b, all, 1)), v = split(b, all, 2);
  b.output("y", b.emit_all("attention", {q, k, v}, kAttrs)[0]);
  const std::vector<std::string> found = ops(std::move(b).finish());
  EXPECT_EQ(std::count(found.begin(), found.end(), "slice"), 3);
}

// Every number of the steps, and of what they claim, as another one.
TEST(AttentionViews_Program, IsProvedAndAnyChangeIsRefused) {
  for (const Graph& graph : {fused(), separate()}) {
    RankProgram whole = rank_program(graph, "sm_80");
    ASSERT_EQ(proved(whole), absl::OkStatus());
    int steps = 0, changes = 0;
    for (size_t s = 0; s < whole.program.segments.size(); ++s) {
      for (size_t n = 0; n < whole.program.segments[s].steps.size(); ++n) {
        const Step of = whole.program.segments[s].steps[n];
        if (!of.params.contains("sizes")) continue;
        ++steps;
        const auto refuse = [&](const std::string& what, const std::function<void(Step&, Claim&)>& change) {
          RankProgram p = whole;
          change(p.program.segments[s].steps[n], p.claims[of.id]);
          EXPECT_FALSE(proved(p).ok()) << of.name << ": " << what;
          ++changes;
        };
        for (const auto& [name, value] : of.params) {
          const std::string param = name;
          refuse(param + " left out", [&](Step& x, Claim&) { x.params.erase(param); });
          const auto* list = std::get_if<std::vector<int64_t>>(&value);
          for (size_t k = 0; list != nullptr && k < list->size(); ++k)
            refuse(cat(param, " ", k),
                   [&](Step& x, Claim&) { std::get<std::vector<int64_t>>(x.params[param])[k] += 8; });
        }
        for (size_t k = 0; k < of.operands.size(); ++k) {
          if (of.operands[k].dtype == DType::kInvalid) continue;
          refuse(cat("place of ", k), [&](Step& x, Claim&) { x.operands[k].address.offset += 64; });
          refuse(cat("type of ", k), [&](Step& x, Claim&) { x.operands[k].dtype = DType::kF64; });
          refuse(cat("claim of ", k), [&](Step&, Claim& c) { c.values[k] = c.values[k] == 0 ? 1 : 0; });
        }
        refuse("more", [](Step& x, Claim&) { x.params["together"] = int64_t{!x.params.contains("together")}; });
        refuse("inputs", [](Step& x, Claim&) { --x.inputs; });
      }
    }
    EXPECT_EQ(steps, 2);
    EXPECT_GT(changes, 60);
  }
}

#ifdef PARTITA_STAND_INS

// [batch, rows, 3, heads, head], and what lies in it as [batch, heads, rows, head].
struct Joined {
  Shape shape;
  explicit Joined(int64_t head) : shape{kBatch, kRows, 3, kHeads, head} {}
  std::vector<int64_t> rows(int64_t part) const {
    const int64_t width = kHeads * shape[4];
    return {part * width, kRows * 3 * width, shape[4], 3 * width};
  }
  Tensor part(const Tensor& all, int64_t number) const {
    Tensor out = Tensor::zeros({all.type.dtype, {kBatch, kHeads, kRows, shape[4]}});
    const std::vector<int64_t> at = rows(number);
    size_t to = 0;
    for (int64_t b = 0; b < kBatch; ++b)
      for (int64_t h = 0; h < kHeads; ++h)
        for (int64_t i = 0; i < kRows; ++i)
          for (int64_t x = 0; x < shape[4]; ++x)
            out.f[to++] = all.f[static_cast<size_t>(at[0] + b * at[1] + h * at[2] + i * at[3] + x)];
    return out;
  }
};

void expect_near(const Tensor& found, const Tensor& expected, double tolerance, const std::string& what) {
  ASSERT_EQ(found.f.size(), expected.f.size());
  for (size_t k = 0; k < found.f.size(); ++k) ASSERT_NEAR(found.f[k], expected.f[k], tolerance) << what << " " << k;
}

// Queries, keys and values in one operand, and so their gradients; the rest dense.
TEST(CudaAttentionOnViews, IsTheAttentionOfTheParts) {
  for (const auto& [dtype, head] : {std::pair{DType::kBF16, 72}, {DType::kF32, 8}}) {
    const Joined joined(head);
    const double tolerance = dtype == DType::kF32 ? 1e-5 : 0.03;
    const Tensor all = rounded(random_tensor({dtype, joined.shape}, 1)),
                 g = rounded(random_tensor({dtype, {kBatch, kHeads, kRows, head}}, 2));
    const Tensor q = joined.part(all, 0), k = joined.part(all, 1), v = joined.part(all, 2);
    const std::vector<const Tensor*> operands = {&q, &k, &v};
    const std::vector<Tensor> expected = evaluate_op(*find_op("attention"), kAttrs, operands);
    const std::vector<int64_t> dense = {0, kHeads * kRows * head, kRows * head, head};
    const auto type = [](const TensorType& t) { return runtime::Operand{.dtype = t.dtype, .shape = t.shape}; };
    const runtime::Operand whole = type(all.type), rows = type(g.type), sums = type(expected[1].type);
    Step step{.kind = runtime::StepKind::kLibrary, .name = "attention", .inputs = 3};
    step.params = {{"scale", 0.3},
                   {"causal", int64_t{1}},
                   {"sizes", std::vector<int64_t>{kBatch, kHeads, kHeads, kRows, kRows, head, head}},
                   {"q", joined.rows(0)},
                   {"k", joined.rows(1)},
                   {"v", joined.rows(2)},
                   {"out", dense}};
    step.operands = {whole, whole, whole, rows, sums};
    const std::vector<Tensor> found = run_step_on_cuda(step, {all, all, all}, Tensor::zeros(g.type));
    expect_near(found[0], expected[0], tolerance, "out");
    expect_near(found[1], expected[1], tolerance, "lse");

    const Tensor none;
    const std::vector<const Tensor*> backward = {&g, &q, &k, &v, nullptr, &expected[0], &expected[1]};
    const std::vector<Tensor> gradients = evaluate_op(*find_op("attention_grad"), kAttrs, backward);
    step.name = "attention_grad", step.inputs = 7;
    step.params["g"] = dense, step.params["together"] = int64_t{1};
    step.params["dq"] = joined.rows(0), step.params["dk"] = joined.rows(1), step.params["dv"] = joined.rows(2);
    step.operands = {rows, whole, whole, whole, {.dtype = DType::kInvalid}, rows, sums, whole};
    const std::vector<Tensor> made =
        run_step_on_cuda(step, {g, all, all, all, none, rounded(expected[0]), expected[1]}, Tensor::zeros(all.type));
    for (int64_t part = 0; part < 3; ++part)
      expect_near(joined.part(made[0], part), gradients[static_cast<size_t>(part)], tolerance, cat("gradient ", part));
  }
}

TEST(CudaAttentionOnViews, BeyondTheirOperand_AreRefused) {
  runtime::Program program;
  program.target = "cuda:sm_90";
  auto device = open_cuda_on_host(program, 0).value();
  const runtime::Operand rows{.dtype = DType::kBF16, .shape = {2 * 4 * 8}};
  Step step{.kind = runtime::StepKind::kLibrary, .name = "attention", .inputs = 3};
  step.params = {{"sizes", std::vector<int64_t>{1, 2, 2, 4, 4, 8, 8}}};
  for (const char* name : {"q", "k", "v", "out"}) step.params[name] = std::vector<int64_t>{0, 64, 32, 8};
  step.operands = {rows, rows, rows, rows, {.dtype = DType::kF32, .shape = {1, 2, 4}}};
  EXPECT_TRUE(device->prepare(program, step).ok());
  step.params["v"] = std::vector<int64_t>{8, 64, 32, 8};
  EXPECT_THAT(std::string(device->prepare(program, step).status().message()),
              testing::HasSubstr("v within its operand"));
  step.params["v"] = std::vector<int64_t>{0, -64, 32, 8};
  EXPECT_THAT(std::string(device->prepare(program, step).status().message()), testing::HasSubstr("where v lies"));
  step.params["sizes"] = std::vector<int64_t>{1, 2, 0, 4, 4, 8, 8};
  EXPECT_FALSE(device->prepare(program, step).ok());
}

#endif

}  // namespace
}  // namespace partita
