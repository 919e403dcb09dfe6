// Cases of contractions, composites and optimizer updates.
#include "tests/ir/support/op_cases.h"

namespace partita {
namespace {

using Ints = std::vector<int64_t>;

CaseInput flag() { return boolean({}); }
CaseInput fixed(CaseInput in) {
  in.constant = true;
  return in;
}

Attrs matmul(int64_t transpose_a, int64_t transpose_b) {
  return {{"transpose_a", transpose_a}, {"transpose_b", transpose_b}};
}

Attrs window(Ints strides, Ints low, Ints high, Ints dilations) {
  return {{"strides", strides}, {"pads_low", low}, {"pads_high", high}, {"dilations", dilations}};
}

Attrs with(Attrs attrs, std::string_view name, AttrValue value) {
  attrs.set(name, std::move(value));
  return attrs;
}

Attrs pool(Ints kernel, Ints strides, Ints low, Ints high) {
  return {{"kernel", kernel}, {"strides", strides}, {"pads_low", low}, {"pads_high", high}};
}

void add_matmuls(std::vector<OpCase>& cases) {
  auto add = [&](std::string name, Shape a, Shape b, int64_t ta, int64_t tb) {
    cases.push_back({"matmul_" + name, "matmul", matmul(ta, tb), {f64(a), f64(b)}});
  };
  add("Plain", {4, 6}, {6, 8}, 0, 0);
  add("TransposedA", {6, 4}, {6, 8}, 1, 0);
  add("TransposedB", {4, 6}, {8, 6}, 0, 1);
  add("TransposedBoth", {6, 4}, {8, 6}, 1, 1);
  add("Batched", {2, 4, 6}, {2, 6, 8}, 0, 0);
  add("SharedB", {2, 3, 4, 6}, {1, 1, 6, 2}, 0, 0);
  add("SharedTransposedB", {2, 4, 6}, {1, 8, 6}, 0, 1);
  add("SharedBTransposedA", {2, 6, 4}, {1, 6, 8}, 1, 0);
  add("SharedA", {1, 4, 6}, {2, 6, 2}, 0, 0);
  add("MixedBatch", {2, 1, 4, 2}, {1, 4, 2, 2}, 0, 0);
  // Gradients go past roundings as if there were none, which is no derivative.
  auto constant = [](Shape shape) { return CaseInput{{DType::kF64, std::move(shape)}, Draw::kNormal, 0, true}; };
  const Attrs fp8 = {{"fp8", int64_t{2}},   {"a", std::string("e4m3")},        {"b", std::string("e4m3")},
                     {"tiles", int64_t{1}}, {"gradient", std::string("e5m2")}, {"rows", int64_t{1}}};
  cases.push_back({"fp8_matmul", "fp8_matmul", fp8, {constant({4, 6}), constant({6, 8})}});
  for (Ints dims : {Ints{1}, Ints{0, 1}})
    cases.push_back({"round_to_fp8_Dims" + std::to_string(dims.size()),
                     "round_to_fp8",
                     {{"dims", dims}, {"block", int64_t{2}}, {"format", std::string("e4m3")}},
                     {f64({4, 6})}});
  auto add_grouped = [&](std::string name, Shape w, int64_t transposed, Draw draw, int64_t bound) {
    cases.push_back({"grouped_matmul_" + name,
                     "grouped_matmul",
                     {{"transpose_b", transposed}},
                     {f64({6, 4}), f64(w), i64({6}, draw, bound)}});
  };
  add_grouped("Plain", {3, 4, 2}, 0, Draw::kIndex, 3);
  add_grouped("Transposed", {3, 2, 4}, 1, Draw::kIndex, 3);
  add_grouped("ExpertsWithoutRows", {20, 4, 2}, 0, Draw::kIndex, 20);
  add_grouped("OutOfBounds", {3, 4, 2}, 0, Draw::kSignedIndex, 50);
  cases.push_back({"grouped_matmul_grad",
                   "grouped_matmul_grad",
                   {{"size", int64_t{5}}},
                   {f64({6, 4}), f64({6, 2}), i64({6}, Draw::kSignedIndex, 5)}});
  // In parts of one matrix each, from the numbers 0, 1, … on; of two matrices, those parts overlap.
  auto add_parts = [&](std::string name, int64_t x, int64_t g, int64_t parts, int64_t each, int64_t indices) {
    const int64_t total = parts + each - 1;
    const CaseInput chosen = i64({indices}, Draw::kSignedIndex, total + 1), first = i64({parts}, Draw::kIota);
    for (int64_t transposed : {0, 1}) {
      const Shape w = transposed ? Shape{parts * each, 2, 4} : Shape{parts * each, 4, 2};
      cases.push_back({"grouped_matmul_" + name + (transposed ? "Transposed" : ""),
                       "grouped_matmul",
                       {{"transpose_b", transposed}, {"total", total}},
                       {f64({x, 4}), f64(w), chosen, first}});
    }
    cases.push_back({"grouped_matmul_grad_" + name,
                     "grouped_matmul_grad",
                     {{"size", each}, {"total", total}},
                     {f64({x, 4}), f64({g, 2}), chosen, first}});
  };
  add_parts("Parts", 24, 24, 4, 1, 6);
  add_parts("LargerParts", 12, 12, 2, 2, 6);
  add_parts("RowsForAllParts", 6, 12, 2, 1, 6);
  add_parts("RowsForSeveralIndices", 3, 12, 2, 1, 6);
  add_parts("BothForAllParts", 6, 6, 2, 1, 6);
  add_parts("BothForSeveralIndices", 3, 3, 2, 2, 6);
  cases.push_back({"grouped_matmul_RowsForSeveralIndicesInOnePart",
                   "grouped_matmul",
                   {},
                   {f64({4, 4}), f64({3, 4, 2}), i64({8}, Draw::kIndex, 3)}});
  cases.push_back({"grouped_matmul_grad_RowsForSeveralIndicesInOnePart",
                   "grouped_matmul_grad",
                   {{"size", int64_t{3}}},
                   {f64({8, 4}), f64({4, 2}), i64({8}, Draw::kIndex, 3)}});
}

void add_convolutions(std::vector<OpCase>& cases) {
  // Shapes of x, w and conv's output for one set of attributes: all three ops.
  auto add = [&](std::string name, Shape x, Shape w, Shape y, Attrs attrs) {
    cases.push_back({"conv_" + name, "conv", attrs, {f64(x), f64(w)}});
    cases.push_back({"conv_grad_data_" + name, "conv_grad_data", with(attrs, "input_shape", x), {f64(y), f64(w)}});
    cases.push_back({"conv_grad_weight_" + name, "conv_grad_weight", with(attrs, "weight_shape", w), {f64(y), f64(x)}});
  };
  add("Plain", {2, 4, 5, 4}, {2, 4, 3, 2}, {2, 2, 3, 3}, {});
  add("Padded", {2, 2, 4, 4}, {4, 2, 3, 3}, {2, 4, 4, 4}, window({1, 1}, {1, 1}, {1, 1}, {1, 1}));
  add("StridedDilated", {2, 2, 7, 6}, {2, 2, 3, 2}, {2, 2, 3, 3}, window({2, 2}, {1, 0}, {2, 1}, {2, 1}));
  add("Grouped", {2, 4, 4, 3}, {8, 2, 2, 2}, {2, 8, 3, 2}, {{"groups", int64_t{2}}});
  add("Depthwise", {2, 4, 4, 4}, {4, 1, 3, 3}, {2, 4, 4, 4},
      with(window({1, 1}, {1, 1}, {1, 1}, {1, 1}), "groups", int64_t{4}));
  add("Pointwise", {2, 4, 4, 2}, {6, 4, 1, 1}, {2, 6, 4, 2}, {});
  add("Patches", {2, 2, 4, 6}, {4, 2, 2, 3}, {2, 4, 2, 2}, window({2, 3}, {0, 0}, {0, 0}, {1, 1}));
  add("OneDimension", {2, 2, 7}, {4, 2, 3}, {2, 4, 4}, window({2}, {2}, {0}, {1}));
  add("ThreeDimensions", {2, 2, 3, 3, 3}, {2, 2, 2, 2, 2}, {2, 2, 2, 2, 2}, {});
}

void add_pools(std::vector<OpCase>& cases) {
  auto both = [&](std::string name, Shape x, Attrs attrs) {
    cases.push_back({"max_pool_" + name, "max_pool", attrs, {f64(x, Draw::kDistinct)}});
    cases.push_back({"avg_pool_" + name, "avg_pool", attrs, {f64(x)}});
    cases.push_back(
        {"avg_pool_CountPadding" + name, "avg_pool", with(attrs, "count_include_pad", int64_t{1}), {f64(x)}});
  };
  both("Tiles", {2, 2, 4, 4}, pool({2, 2}, {2, 2}, {0, 0}, {0, 0}));
  both("Overlapping", {2, 2, 5, 4}, pool({3, 3}, {2, 1}, {1, 1}, {1, 1}));
  both("Uneven", {2, 2, 5}, pool({2}, {2}, {0}, {1}));
  both("ThreeDimensions", {2, 2, 3, 2, 3}, pool({2, 2, 2}, {1, 1, 1}, {0, 0, 0}, {0, 0, 0}));
  cases.push_back({"max_pool_Dilated",
                   "max_pool",
                   with(pool({2, 2}, {1, 1}, {1, 0}, {0, 0}), "dilations", Ints{2, 2}),
                   {f64({2, 2, 5, 4}, Draw::kDistinct)}});
  cases.push_back({"max_pool_grad",
                   "max_pool_grad",
                   with(pool({2, 2}, {2, 1}, {0, 0}, {0, 0}), "input_shape", Ints{2, 2, 4, 3}),
                   {f64({2, 2, 2, 2}), {{DType::kI32, {2, 2, 2, 2}}, Draw::kIndex, 12}}});
  cases.push_back({"avg_pool_grad_Tiles",
                   "avg_pool_grad",
                   with(pool({2, 2}, {2, 2}, {0, 0}, {0, 0}), "input_shape", Ints{2, 2, 4, 4}),
                   {f64({2, 2, 2, 2})}});
  cases.push_back({"avg_pool_grad_Overlapping",
                   "avg_pool_grad",
                   with(pool({3}, {1}, {1}, {1}), "input_shape", Ints{2, 2, 4}),
                   {f64({2, 2, 4})}});
}

void add_norms(std::vector<OpCase>& cases) {
  auto axis = [](int64_t a) { return Attrs{{"axis", a}, {"epsilon", 1e-3}}; };
  for (int64_t dim : {0, 1, 2}) {
    cases.push_back({"softmax_Dim" + std::to_string(dim), "softmax", {{"dim", dim}}, {f64({2, 4, 6})}});
    cases.push_back({"log_softmax_Dim" + std::to_string(dim), "log_softmax", {{"dim", dim}}, {f64({2, 4, 6})}});
  }
  cases.push_back({"layer_norm_LastDim", "layer_norm", axis(2), {f64({2, 4, 6}), f64({6}), f64({6})}});
  cases.push_back({"layer_norm_NoBias", "layer_norm", axis(1), {f64({4, 2, 3}), f64({2, 3})}});
  cases.push_back({"layer_norm_AbsentBias", "layer_norm", axis(1), {f64({4, 6}), f64({6}), absent()}});
  cases.push_back({"layer_norm_Whole", "layer_norm", axis(0), {f64({2, 6}), f64({2, 6}), f64({2, 6})}});
  cases.push_back({"rms_norm_LastDim", "rms_norm", axis(2), {f64({2, 4, 6}), f64({6})}});
  cases.push_back({"rms_norm_TwoDims", "rms_norm", axis(1), {f64({4, 2, 3}), f64({2, 3})}});
  cases.push_back({"batch_norm_Images", "batch_norm", {{"epsilon", 1e-3}}, {f64({4, 2, 3, 2}), f64({2}), f64({2})}});
  cases.push_back({"batch_norm_Rows", "batch_norm", {{"epsilon", 1e-3}}, {f64({6, 4}), f64({4}), f64({4})}});
  cases.push_back({"batch_norm_Groups",
                   "batch_norm",
                   {{"epsilon", 1e-3}, {"groups", int64_t{2}}},
                   {f64({4, 2, 3}), f64({2}), f64({2})}});
}

void add_cross_entropies(std::vector<OpCase>& cases) {
  cases.push_back({"cross_entropy_Rows", "cross_entropy", {}, {f64({4, 6}), i64({4}, Draw::kIndex, 6)}});
  cases.push_back({"cross_entropy_Outside", "cross_entropy", {}, {f64({2, 4, 6}), i64({2, 4}, Draw::kSignedIndex, 9)}});
  cases.push_back(
      {"cross_entropy_I32", "cross_entropy", {}, {f64({4, 6}), {{DType::kI32, {4}}, Draw::kSignedIndex, 8}}});
  cases.push_back({"cross_entropy_OneRow", "cross_entropy", {}, {f64({6}), i64({}, Draw::kIndex, 6)}});
  cases.push_back({"cross_entropy_grad",
                   "cross_entropy_grad",
                   {},
                   {f64({2, 4}), f64({2, 4, 6}), i64({2, 4}, Draw::kSignedIndex, 9), f64({2, 4}, Draw::kPositive)}});
}

void add_attentions(std::vector<OpCase>& cases) {
  auto attrs = [](int64_t causal) { return Attrs{{"scale", 0.4}, {"causal", causal}}; };
  const CaseInput q = f64({2, 4, 4, 2}), k = f64({2, 2, 6, 2}), v = f64({2, 2, 6, 4}), out = f64({2, 4, 4, 4}),
                  lse = {{DType::kF32, {2, 4, 4}}, Draw::kPositive};
  auto add = [&](std::string name, Attrs a, CaseInput mask) {
    cases.push_back({"attention_" + name, "attention", a, {q, k, v, mask}});
    cases.push_back({"attention_grad_" + name, "attention_grad", a, {out, q, k, v, mask, out, lse}});
  };
  add("Plain", attrs(0), absent());
  add("Causal", attrs(1), absent());
  add("Masked", attrs(0), boolean({2, 1, 4, 6}));
  add("PaddedKeys", attrs(0), boolean({2, 1, 1, 6}));
  add("PositionBias", attrs(0), f64({1, 4, 4, 6}));
  add("CausalFixedBias", attrs(1), fixed(f64({1, 1, 4, 6})));
  cases.push_back(
      {"attention_NoMaskOperand", "attention", attrs(1), {f64({2, 2, 4, 2}), f64({2, 2, 4, 2}), f64({2, 2, 4, 2})}});
  // The first queries see no key and have lse = -inf, which no loss depends on.
  cases.push_back({"attention_MoreQueriesThanKeys",
                   "attention",
                   attrs(1),
                   {f64({1, 2, 6, 2}), f64({1, 1, 4, 2}), f64({1, 1, 4, 2})},
                   {1}});

  for (int64_t interleaved : {0, 1}) {
    std::string form = interleaved ? "Interleaved" : "Halves";
    Attrs a{{"interleaved", interleaved}};
    cases.push_back({"rotary_" + form, "rotary", a, {f64({2, 2, 4, 6}), f64({1, 1, 4, 3}), f64({1, 1, 4, 3})}});
    cases.push_back({"rotary_Partial" + form, "rotary", a, {f64({2, 2, 4, 6}), f64({2, 1, 4, 2}), f64({2, 1, 4, 2})}});
  }
}

void add_updates(std::vector<OpCase>& cases) {
  const Shape shape{2, 4};
  const CaseInput p = f64(shape), g = f64(shape), square = f64(shape, Draw::kPositive), rate = f64({}, Draw::kPositive),
                  t = i64({}, Draw::kIndex, 5);
  Attrs adam{{"beta1", 0.9}, {"beta2", 0.99}, {"eps", 1e-8}, {"weight_decay", 0.1}};
  cases.push_back({"opt_sgd", "opt_sgd", {{"weight_decay", 0.1}}, {p, g, rate}});
  cases.push_back({"opt_sgd_Scalar", "opt_sgd", {}, {f64({}), f64({}), rate}});
  cases.push_back({"opt_momentum",
                   "opt_momentum",
                   {{"momentum", 0.9}, {"weight_decay", 0.1}, {"nesterov", int64_t{1}}},
                   {p, g, g, rate, flag()}});
  cases.push_back({"opt_adagrad", "opt_adagrad", {{"eps", 1e-8}}, {p, g, square, rate}});
  cases.push_back({"opt_adam", "opt_adam", adam, {p, g, g, square, rate, rate, rate}});
  cases.push_back(
      {"opt_adam_Scalar", "opt_adam", adam, {f64({}), f64({}), f64({}), f64({}, Draw::kPositive), rate, rate, rate}});
  cases.push_back({"opt_lamb_direction", "opt_lamb_direction", adam, {p, g, g, square, rate, rate}});
  cases.push_back({"opt_lion", "opt_lion", {{"beta1", 0.9}, {"beta2", 0.99}, {"weight_decay", 0.1}}, {p, g, g, rate}});
  const Attrs rmsprop{{"alpha", 0.9}, {"eps", 1e-3}, {"weight_decay", 0.1}};
  cases.push_back({"opt_rmsprop", "opt_rmsprop", rmsprop, {p, g, square, rate}});
  Attrs both = rmsprop;
  both.set("momentum", 0.9);
  both.set("centered", int64_t{1});
  CaseInput mean = f64(shape, Draw::kFill);  // its square is less than the mean of squares
  mean.fill = 0.25;
  cases.push_back({"opt_rmsprop_CenteredMomentum", "opt_rmsprop", both, {p, g, square, mean, g, rate}});
  cases.push_back({"opt_onnx_adam",
                   "opt_onnx_adam",
                   {{"alpha", 0.9}, {"beta", 0.99}, {"epsilon", 1e-6}, {"norm_coefficient", 0.1}},
                   {p, g, g, square, rate, t}});
  cases.push_back(
      {"opt_onnx_adagrad", "opt_onnx_adagrad", {{"decay_factor", 0.1}, {"epsilon", 1e-6}}, {p, g, square, rate, t}});
  cases.push_back({"opt_onnx_momentum",
                   "opt_onnx_momentum",
                   {{"alpha", 0.9}, {"beta", 0.5}, {"mode", int64_t{0}}},
                   {p, g, g, rate, t}});
  cases.push_back({"opt_ort_adamw",
                   "opt_ort_adamw",
                   {{"alpha", 0.9}, {"beta", 0.99}, {"epsilon", 1e-6}, {"adam_mode", int64_t{1}}},
                   {p, g, g, square, rate, t}});
  for (int64_t has_sign : {0, 1}) {
    const std::string form = has_sign ? "Signed" : "Unsigned";
    cases.push_back({"dynamic_code_" + form, "dynamic_code", {{"signed", has_sign}}, {has_sign ? g : square}});
    cases.push_back({"dynamic_value_" + form,
                     "dynamic_value",
                     {{"signed", has_sign}, {"to", DType::kF64}},
                     {CaseInput{{DType::kU8, shape}, Draw::kIndex, 256}}});
  }
}

}  // namespace

std::vector<OpCase> nn_op_cases() {
  std::vector<OpCase> cases;
  add_matmuls(cases);
  add_convolutions(cases);
  add_pools(cases);
  add_norms(cases);
  add_cross_entropies(cases);
  add_attentions(cases);
  add_updates(cases);
  return cases;
}

}  // namespace partita
