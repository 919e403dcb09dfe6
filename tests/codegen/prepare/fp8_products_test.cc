// Products of fp8 numbers on GPUs that have such: which ones are found, what the verifier makes of their steps, and the
// numbers of both kernels, on a CUDA runtime and a cuBLASLt that are this machine.
#include "codegen/prepare/fp8_products.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <functional>
#include <limits>
#include <random>

#include "base/math/quantized.h"
#include "codegen/prepare/expand_composites.h"
#include "ir/graph/builder.h"
#include "tests/codegen/support/cuda_on_host.h"
#include "tests/codegen/support/interpreter.h"
#include "tests/codegen/support/rank_program.h"

namespace partita {
namespace {

using runtime::Step;
using testing::HasSubstr;
using verifier::RankProgram;

Attrs rounding(std::vector<int64_t> dims, const char* format) {
  return {{"dims", std::move(dims)}, {"block", int64_t{128}}, {"format", std::string(format)}};
}

// A layer and its gradients: a weight that is summed over in both ways, and two operands that are rounded along both of
// their dimensions.
Graph layer() {
  constexpr int64_t kRows = 256;
  Builder b;
  const ValueId x = b.input("x", {DType::kBF16, {2, kRows / 2, 128}}), g = b.input("g", {DType::kBF16, {kRows, 256}});
  const ValueId w = b.state({.name = "w"}, {DType::kF32, {128, 256}});
  const auto round = [&](ValueId v, std::vector<int64_t> dims, const char* format) {
    return b.emit("round_to_fp8", {v}, rounding(std::move(dims), format));
  };
  const auto multiply = [&](ValueId p, ValueId q, const char* transposed = nullptr) {
    Attrs attrs{{"fp8", int64_t{128}}};
    if (transposed != nullptr) attrs.set(transposed, int64_t{1});
    return b.emit("matmul", {p, q}, std::move(attrs));
  };
  const ValueId narrow = b.cast(w, DType::kBF16), folded = b.reshape(x, {kRows, 128});
  const ValueId weight = round(narrow, {0, 1}, "e4m3");
  b.output("y", multiply(round(x, {2}, "e4m3"), b.reshape(weight, {1, 128, 256})));
  b.context().segment = Segment::kBackward;
  b.output("dx", multiply(round(g, {1}, "e5m2"), weight, "transpose_b"));
  b.output("dw", multiply(round(folded, {0}, "e4m3"), round(g, {0}, "e5m2"), "transpose_a"));
  return std::move(b).finish();
}

// But for views.
std::vector<std::string> ops_in_fp8(const Graph& graph) {
  std::vector<ValueId> became;
  const Graph expanded = expand_composites(graph, &became);
  std::vector<std::string> found;
  for (const Node& node : multiply_in_fp8(expanded, fp8_roundings(graph, expanded, became)).graph.nodes) {
    if (!node.op->view) found.emplace_back(node.op->name);
  }
  return found;
}

TEST(Fp8Products_Layer, AreFoundAndRoundingsGo) {
  // The weight, and what the layer's result gives back, are read once for two products each.
  EXPECT_THAT(ops_in_fp8(layer()),
              testing::UnorderedElementsAre("cast", "quantize_fp8", "quantize_fp8", "quantize_fp8", "quantize_fp8",
                                            "multiply_fp8", "multiply_fp8", "multiply_fp8"));
}

TEST(Fp8Products_OtherForms, StayAsTheyAre) {
  Builder b;
  const ValueId x = b.input("x", {DType::kBF16, {128, 128}});
  const auto round = [&](std::vector<int64_t> dims, const char* format) {
    return b.emit("round_to_fp8", {x}, rounding(std::move(dims), format));
  };
  const ValueId rows = round({1}, "e4m3"), columns = round({0}, "e4m3"), tiles = round({0, 1}, "e4m3");
  const ValueId coarse = round({1}, "e5m2"), turned = round({0}, "e5m2");
  const Attrs mark{{"fp8", int64_t{128}}};
  b.output("two tiles", b.emit("matmul", {tiles, tiles}, mark));
  b.output("no mark", b.emit("matmul", {rows, tiles}));
  b.output("other blocks", b.emit("matmul", {columns, columns}, mark));
  b.output("two of e5m2", b.emit("matmul", {coarse, turned}, mark));
  b.output("no rounding", b.emit("matmul", {x, columns}, mark));
  const std::vector<std::string> found = ops_in_fp8(std::move(b).finish());
  EXPECT_EQ(std::count(found.begin(), found.end(), "matmul"), 5);
  EXPECT_EQ(std::count(found.begin(), found.end(), "multiply_fp8"), 0);
}

// What a rounding is read by besides keeps it.
TEST(Fp8Products_OtherReaders, HaveTheRoundingToo) {
  Graph graph = layer();
  for (const Node& node : graph.nodes) {
    if (node.op->name == "round_to_fp8") graph.outputs.push_back({cat("r", node.outputs[0]), node.outputs[0]});
  }
  const std::vector<std::string> found = ops_in_fp8(graph);
  EXPECT_EQ(std::count(found.begin(), found.end(), "round"), 5);
  EXPECT_EQ(std::count(found.begin(), found.end(), "multiply_fp8"), 3);
}

std::vector<Step*> steps(RankProgram& p, std::string_view name) {
  std::vector<Step*> found;
  for (auto& segment : p.program.segments) {
    for (Step& s : segment.steps) {
      if (s.name == name) found.push_back(&s);
    }
  }
  return found;
}

TEST(Fp8Products_Program, IsProvedWhateverTheGpuHas) {
  for (const auto& [gpu, products] : {std::pair{"sm_80", 0u}, {"sm_90", 3u}, {"sm_100", 0u}}) {
    RankProgram p = rank_program(layer(), gpu);
    EXPECT_EQ(proved(p), absl::OkStatus()) << gpu;
    EXPECT_EQ(steps(p, "multiply_fp8").size(), products) << gpu;
    EXPECT_EQ(steps(p, "matmul").size(), 3 - products) << gpu;
  }
}

TEST(Fp8Products_Mutation, IsRefusedForWhatItIs) {
  const auto set = [](const char* step, const char* name, runtime::Param value) {
    return [=](RankProgram& p) { steps(p, step)[0]->params[name] = value; };
  };
  const struct {
    std::function<void(RankProgram&)> change;
    const char* message;
  } cases[] = {
      {set("quantize_fp8", "format", std::string("e5m2")), "in e4m3, found"},
      {set("multiply_fp8", "tiles_a", int64_t{1}), "no parameter 'tiles_a'"},
      {set("multiply_fp8", "epilogue", std::string("accumulate")), "expected a sum with"},
      {[](RankProgram& p) {
         Step &a = *steps(p, "multiply_fp8")[0], &b = *steps(p, "multiply_fp8")[1];
         std::swap(a.operands[1], b.operands[1]);
         std::swap(p.claims[a.id].values[1], p.claims[b.id].values[1]);
       },
       "expected the blocks of"},
      {[](RankProgram& p) { p.claims[steps(p, "multiply_fp8")[0]->id].node = -1; }, "expected a product"},
  };
  const RankProgram whole = rank_program(layer(), "sm_90");
  for (const auto& c : cases) {
    RankProgram p = whole;
    c.change(p);
    EXPECT_THAT(std::string(proved(p).message()), HasSubstr(c.message)) << &c - cases;
  }
}

// Every number, text and list of the steps, and of what they claim, as something else.
TEST(Fp8Products_AnyChange, IsRefused) {
  const RankProgram whole = rank_program(layer(), "sm_90");
  int changes = 0;
  const auto refuse = [&](const Step& of, const std::string& what, const std::function<void(Step&, Claim&)>& change) {
    RankProgram p = whole;
    for (auto& segment : p.program.segments) {
      for (Step& s : segment.steps) {
        if (s.id == of.id) change(s, p.claims[s.id]);
      }
    }
    EXPECT_FALSE(proved(p).ok()) << of.name << " " << of.id << ": " << what;
    ++changes;
  };
  RankProgram all = whole;
  for (const char* name : {"quantize_fp8", "multiply_fp8"}) {
    for (const Step* s : steps(all, name)) {
      for (const auto& [param, value] : s->params) {
        refuse(*s, param + " left out", [&](Step& x, Claim&) { x.params.erase(param); });
        refuse(*s, param + " changed", [&](Step& x, Claim&) {
          if (auto* number = std::get_if<int64_t>(&x.params[param])) *number = *number == 1 ? 0 : *number / 2;
          if (auto* text = std::get_if<std::string>(&x.params[param])) *text = *text == "e4m3" ? "e5m2" : "e4m3";
        });
      }
      for (const char* param : {"tiles", "transpose", "both", "tiles_a", "tiles_b", "block"}) {
        if (s->params.contains(param)) continue;
        refuse(*s, cat(param, " more"), [&](Step& x, Claim&) { x.params[param] = int64_t{1}; });
      }
      for (size_t k = 0; k < s->operands.size(); ++k) {
        refuse(*s, cat("place of ", k), [&](Step& x, Claim&) { x.operands[k].address.offset += 64; });
        refuse(*s, cat("type of ", k), [&](Step& x, Claim&) { x.operands[k].dtype = DType::kF16; });
        refuse(*s, cat("shape of ", k), [&](Step& x, Claim&) { x.operands[k].shape.push_back(1); });
        refuse(*s, cat("size of ", k), [&](Step& x, Claim&) { x.operands[k].shape[0] /= 2; });
        refuse(*s, cat("rows of ", k), [&](Step& x, Claim&) {
          auto& shape = x.operands[k].shape;
          if (shape.size() == 2) shape = {shape[0] * 2, shape[1] / 2};
          if (shape.size() == 1) shape = {shape[0], 1};
        });
        for (int64_t value : {-1, 0, -2, -1000})
          if (whole.claims[s->id].values[k] != value)
            refuse(*s, cat("claim of ", k), [&](Step&, Claim& claim) { claim.values[k] = static_cast<int>(value); });
      }
      refuse(*s, "inputs", [](Step& x, Claim&) { --x.inputs; });
      refuse(*s, "node", [](Step&, Claim& claim) { claim.node = claim.node < 0 ? 0 : claim.node - 1; });
      refuse(*s, "two results", [](Step& x, Claim&) { x.operands.push_back(x.operands.back()); });
    }
  }
  EXPECT_GT(changes, 200);
}

#ifdef PARTITA_STAND_INS

runtime::Operand operand(const TensorType& type) { return {.dtype = type.dtype, .shape = type.shape}; }

struct Form {
  Shape shape;  // [rows, columns]
  const char* format;
  bool tiles, transpose;
  QuantizedMatrix quantized() const { return {shape[transpose], shape[1 - transpose], tiles}; }
};

Tensor quantized(const Form& form, const Tensor& x) {
  Step step{.kind = runtime::StepKind::kLibrary, .name = "quantize_fp8"};
  step.operands = {operand(x.type), {.dtype = DType::kU8, .shape = {form.quantized().bytes()}}};
  step.inputs = 1;
  step.params["format"] = std::string(form.format);
  if (form.tiles) step.params["tiles"] = int64_t{1};
  if (form.transpose) step.params["transpose"] = int64_t{1};
  return run_step_on_cuda(step, {x}, Tensor::zeros({DType::kU8, {form.quantized().bytes()}}))[0];
}

double number(int64_t byte, bool e4m3) {
  const int fraction = e4m3 ? 3 : 2, bias = e4m3 ? 7 : 15, exponent = static_cast<int>(byte & 0x7f) >> fraction;
  const double low = static_cast<double>(byte & ((1 << fraction) - 1)) / (1 << fraction);
  if (e4m3 ? (byte & 0x7f) == 0x7f : exponent == 31) return std::numeric_limits<double>::quiet_NaN();
  const double size = exponent == 0 ? std::ldexp(low, 1 - bias) : std::ldexp(1 + low, exponent - bias);
  return byte & 0x80 ? -size : size;
}

// Number (row, inner) of a quantized matrix, by the layout that cuBLAS documents.
double number_at(const QuantizedMatrix& q, bool e4m3, const Tensor& bytes, int64_t row, int64_t inner) {
  const int64_t block = inner / 128, padded = (q.blocks() + 3) / 4 * 4;
  const int64_t at = q.first_scale() + 4 * (q.tiles ? row / 128 * padded + block : block * q.rows + row);
  uint32_t scale = 0;
  for (int64_t k = 4; k-- > 0;) scale = scale << 8 | static_cast<uint32_t>(bytes.i[static_cast<size_t>(at + k)]);
  return number(bytes.i[static_cast<size_t>(row * q.inner + inner)], e4m3) * std::bit_cast<float>(scale);
}

// Numbers of all sizes, of which some blocks are 0, tiny, huge, or none.
Tensor numbers(const Shape& shape, uint64_t seed) {
  std::mt19937 rng(static_cast<unsigned>(seed));
  std::normal_distribution<double> normal;
  Tensor x = Tensor::zeros({DType::kBF16, shape});
  const auto columns = static_cast<size_t>(shape[1]);
  for (size_t k = 0; k < x.f.size(); ++k) {
    const size_t tile = k / columns / 128 * 2 + k % columns / 128, spot = k / columns % 8 + k % columns % 8;
    const double size[] = {1, 0x1p-90, 0x1p100, 0, 0x1p-130};
    x.f[k] = normal(rng) * std::exp2(normal(rng) * 4) * size[tile % 5];
    if (spot == 3) x.f[k] = size[tile % 5] * std::ldexp(17, static_cast<int>(k % 7) - 5);  // halves between numbers
  }
  x.f[5] = std::numeric_limits<double>::quiet_NaN();
  x.f[columns * 3 + 40] = -std::numeric_limits<double>::infinity();
  return rounded(x);
}

// Against the op's own meaning, bit by bit.
TEST(CudaQuantizeFp8, GivesTheRoundingWithItsScales) {
  for (const Form& form : {Form{{144, 256}, "e4m3", false, false}, Form{{16, 128}, "e5m2", false, false},
                           Form{{128, 256}, "e5m2", true, false}, Form{{256, 144}, "e4m3", false, true},
                           Form{{128, 16}, "e5m2", false, true}, Form{{256, 128}, "e4m3", true, true}}) {
    const Tensor x = numbers(form.shape, 3);
    const std::vector<int64_t> dims = form.tiles       ? std::vector<int64_t>{0, 1}
                                      : form.transpose ? std::vector<int64_t>{0}
                                                       : std::vector<int64_t>{1};
    const Tensor expected =
        evaluate_op(*find_op("round_to_fp8"), rounding(dims, form.format), std::vector<const Tensor*>{&x})[0];
    const Tensor bytes = quantized(form, x);
    const QuantizedMatrix q = form.quantized();
    int faults = 0;
    for (int64_t k = 0; k < static_cast<int64_t>(x.f.size()) && faults < 5; ++k) {
      const int64_t row = k / form.shape[1], column = k % form.shape[1];
      const double found = number_at(q, form.format == std::string("e4m3"), bytes, form.transpose ? column : row,
                                     form.transpose ? row : column);
      const double wanted = expected.f[static_cast<size_t>(k)];
      if (found == wanted || (std::isnan(found) && std::isnan(wanted))) continue;
      ADD_FAILURE() << form.format << to_string(form.shape) << form.tiles << form.transpose << " [" << row << ", "
                    << column << "]: found " << found << ", expected " << wanted << " for "
                    << x.f[static_cast<size_t>(k)];
      ++faults;
    }
  }
}

// Whole tiles read once: each form has the bits that it has alone.
TEST(CudaQuantizeFp8, GivesBothFormsAtOnce) {
  for (const bool tiles : {false, true}) {
    for (const char* format : {"e4m3", "e5m2"}) {
      const Form rows{{256, 384}, format, tiles, false}, columns{{256, 384}, format, tiles, true};
      const Tensor x = numbers(rows.shape, 7);
      Step step{.kind = runtime::StepKind::kLibrary, .name = "quantize_fp8"};
      const TensorType types[] = {{DType::kU8, {rows.quantized().bytes()}},
                                  {DType::kU8, {columns.quantized().bytes()}}};
      step.operands = {operand(x.type), operand(types[0]), operand(types[1])};
      step.inputs = 1;
      step.params = {{"format", std::string(format)}, {"both", int64_t{1}}};
      if (tiles) step.params["tiles"] = int64_t{1};
      const std::vector<Tensor> found = run_step_on_cuda(step, {x}, Tensor::zeros(types[0]));
      EXPECT_EQ(found[0].i, quantized(rows, x).i) << format << tiles;
      EXPECT_EQ(found[1].i, quantized(columns, x).i) << format << tiles;
    }
  }
}

TEST(CudaMultiplyFp8, IsTheProductOfWhatIsRounded) {
  const struct {
    Form a, b;
    DType out;
    bool accumulate;
  } cases[] = {
      {{{32, 384}, "e4m3", false, false}, {{384, 128}, "e4m3", true, true}, DType::kBF16, false},
      {{{32, 256}, "e5m2", false, false}, {{128, 256}, "e4m3", true, false}, DType::kBF16, false},
      {{{256, 48}, "e4m3", false, true}, {{256, 32}, "e5m2", false, true}, DType::kF32, true},
  };
  for (const auto& c : cases) {
    const Tensor x = rounded(random_tensor({DType::kBF16, c.a.shape}, 1)),
                 y = rounded(random_tensor({DType::kBF16, c.b.shape}, 2));
    const QuantizedMatrix a = c.a.quantized(), b = c.b.quantized();
    const Tensor p = quantized(c.a, x), q = quantized(c.b, y);
    const TensorType type{c.out, {a.rows, b.rows}};
    Step step{.kind = runtime::StepKind::kLibrary, .name = "multiply_fp8"};
    step.operands = {operand(p.type), operand(q.type), operand(type)};
    step.inputs = 2;
    step.params = {
        {"m", a.rows}, {"n", b.rows}, {"k", a.inner}, {"a", std::string(c.a.format)}, {"b", std::string(c.b.format)}};
    if (a.tiles) step.params["tiles_a"] = int64_t{1};
    if (b.tiles) step.params["tiles_b"] = int64_t{1};
    if (c.accumulate) step.params["epilogue"] = std::string("accumulate");
    Tensor held = random_tensor(type, 3);
    held = rounded(held);
    const Tensor found = run_step_on_cuda(step, {p, q}, held)[0];
    for (int64_t i = 0; i < a.rows; ++i) {
      for (int64_t j = 0; j < b.rows; ++j) {
        double sum = c.accumulate ? held.f[static_cast<size_t>(i * b.rows + j)] : 0;
        for (int64_t k = 0; k < a.inner; ++k)
          sum += number_at(a, c.a.format == std::string("e4m3"), p, i, k) *
                 number_at(b, c.b.format == std::string("e4m3"), q, j, k);
        ASSERT_NEAR(found.f[static_cast<size_t>(i * b.rows + j)], sum, c.out == DType::kF32 ? 1e-4 : 0.15)
            << i << " " << j << " of " << to_string(type);
      }
    }
  }
}

#endif

}  // namespace
}  // namespace partita
