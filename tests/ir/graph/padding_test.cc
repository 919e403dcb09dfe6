// Every op on every case of the tables with dimensions longer than they are: what lies beyond changes nothing.
#include "ir/graph/padding.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <optional>
#include <random>
#include <set>

#include "base/cat.h"
#include "ir/graph/builder.h"
#include "ir/graph/evaluate.h"
#include "ir/ops/indexing.h"
#include "tests/ir/support/drawn_use.h"

namespace partita {
namespace {

// The shape with every dimension that is `factor` longer by two; nullopt where one is made of more than that.
std::optional<Shape> longer(const Formula& f, const FormulaOperand& operand, int factor) {
  Shape shape = operand_shape(f, operand);
  for (size_t d = 0; d < shape.size(); ++d) {
    const auto& dim = operand.dims[d];
    if (std::find(dim.begin(), dim.end(), factor) == dim.end()) continue;
    if (dim.size() != 1) return std::nullopt;
    shape[d] += 2;
  }
  return shape;
}

bool is_inside(const std::vector<int64_t>& index, const Shape& shape) {
  for (size_t d = 0; d < shape.size(); ++d) {
    if (index[d] >= shape[d]) return false;
  }
  return true;
}

// `t` as the beginning of a tensor of a longer shape, with numbers from `fill` beyond.
Tensor lengthened(const Tensor& t, const Shape& shape, const std::function<double()>& fill) {
  Tensor out = Tensor::zeros({t.type.dtype, shape});
  int64_t at = 0;
  for_each_index(shape, [&](const std::vector<int64_t>& index) {
    if (is_inside(index, t.type.shape)) {
      copy_element(t, position(index, t.type.shape), out, at);
    } else if (is_float(t.type.dtype)) {
      out.f[at] = fill();
    } else {
      out.i[at] = t.type.dtype == DType::kBool ? 1 : index[0];  // positions go on
    }
    ++at;
  });
  return out;
}

// Emits the use with `factor` longer, over zeros that are known as such or over anything; false where it is refused.
// `bounded`: takes the op where a bound of what lies beyond is told.
bool check_longer(const DrawnUse& use, const Formula& f, int factor, bool zeros, std::set<std::string>& bounded) {
  Builder b;
  std::mt19937_64 rng(3);
  std::vector<PaddedValue> inputs;
  std::map<ValueId, Tensor> feeds;
  size_t operand = 0;
  for (size_t k = 0; k < use.inputs.size(); ++k) {
    PaddedValue& x = inputs.emplace_back();
    if (use.absent(k)) continue;
    auto shape = longer(f, f.inputs[operand++], factor);
    if (!shape) return false;
    Tensor t = lengthened(use.inputs[k], *shape, [&] { return zeros ? 0 : uniform_draw(rng, -3, 3); });
    x.value = b.input(cat("x", k), t.type);
    if (*shape != use.types[k].shape && is_float(t.type.dtype)) x.holds = zeros ? PadValue::zero() : PadValue{};
    if (*shape != use.types[k].shape && !is_float(t.type.dtype)) x.holds = {.finite = true};
    feeds.emplace(x.value, std::move(t));
  }
  std::vector<Shape> shapes;
  for (const FormulaOperand& o : f.outputs) {
    auto shape = longer(f, o, factor);
    if (!shape) return false;
    shapes.push_back(*shape);
  }
  auto results = PaddedEmitter(b).emit(use.op, use.c.attrs, use.types, inputs, shapes);
  if (!results.ok()) return false;
  std::vector<ValueId> wanted;
  for (const PaddedValue& r : *results) wanted.push_back(r.value);
  std::vector<Tensor> expected = use.run(), found = evaluate_graph(b.graph(), feeds, wanted);
  for (size_t k = 0; k < found.size(); ++k) {
    Tensor whole = lengthened(expected[k], shapes[k], [] { return 0.0; }), got = found[k];
    int64_t at = 0;
    for_each_index(shapes[k], [&](const std::vector<int64_t>& index) {
      bool inside = is_inside(index, expected[k].type.shape), real = is_float(got.type.dtype);
      const PadValue& holds = (*results)[k].holds;
      if (!inside && holds.known) {
        bool same = real ? got.f[at] == holds.value.f || (std::isnan(got.f[at]) && std::isnan(holds.value.f))
                         : got.i[at] == holds.value.i;
        EXPECT_TRUE(same) << describe(use.c) << " output " << k;
      }
      if (!inside && holds.least) {
        EXPECT_GE(got.i[at], *holds.least) << describe(use.c) << " output " << k;
        bounded.insert(use.c.op);
      }
      if (!inside && holds.finite && real) {
        EXPECT_TRUE(std::isfinite(got.f[at])) << describe(use.c) << " output " << k;
      }
      if (!inside) copy_element(whole, at, got, at);
      ++at;
    });
    EXPECT_EQ(difference(got, whole, 1e-9), "")
        << describe(use.c) << " output " << k << ", factor " << f.factors[factor].name << " longer";
  }
  return true;
}

TEST(Ops, LongerDimensionsChangeNothing) {
  std::set<std::string> tried, bounded;
  for (const OpCase& c : all_op_cases()) {
    DrawnUse use(c);
    Formula f = bound_formula(use.op, {c.attrs, use.types});
    for (int factor = 0; factor < static_cast<int>(f.factors.size()); ++factor) {
      if (f.factors[factor].size < 1) continue;
      for (bool zeros : {true, false}) {
        if (check_longer(use, f, factor, zeros, bounded)) tried.insert(c.op);
      }
    }
  }
  for (const char* op : {"matmul", "grouped_matmul", "grouped_matmul_grad", "reduce_sum", "reduce_max", "reduce_min",
                         "gather_rows", "gather_rows_grad", "iota", "reshape", "transpose", "broadcast", "select",
                         "gelu", "opt_adam", "opt_lamb_direction", "accumulate", "exp", "cast"})
    EXPECT_TRUE(tried.contains(op)) << op;
  EXPECT_TRUE(bounded.contains("iota"));
}

}  // namespace
}  // namespace partita
