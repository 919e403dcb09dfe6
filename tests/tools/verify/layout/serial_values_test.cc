// What the serial program's values are known to have alike: too little refuses sound programs, too much proves others.
#include "tools/verify/layout/serial_values.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <string>

#include "base/cat.h"
#include "ir/graph/builder.h"
#include "ir/graph/evaluate.h"
#include "tests/ir/support/drawn_use.h"
#include "tests/tools/support/op_parts.h"

namespace partita::verifier {
namespace {

bool is_same(const Tensor& t, int64_t a, int64_t b) {
  if (!is_float(t.type.dtype)) return t.i[static_cast<size_t>(a)] == t.i[static_cast<size_t>(b)];
  const double x = t.f[static_cast<size_t>(a)], y = t.f[static_cast<size_t>(b)];
  return x == y || (std::isnan(x) && std::isnan(y)) || std::abs(x - y) <= 1e-12 * (std::abs(x) + std::abs(y));
}

// Runs an op on drawn operands of which those in `alike` are the same all along a factor; whether it could be said.
bool check_alike(const DrawnUse& use, const Formula& f, int factor, unsigned alike) {
  Builder b;
  std::vector<ValueId> inputs;
  std::map<ValueId, Tensor> feeds;
  size_t operand = 0;
  for (size_t k = 0; k < use.inputs.size(); ++k) {
    inputs.push_back(kNoValue);
    if (use.absent(k)) continue;
    const int dim = dimension_of(f.inputs[operand++], factor);
    const bool repeats = dim >= 0 && (alike >> k & 1) != 0;
    const Tensor t = repeats ? along(use.inputs[k], dim, 0, 0, 1) : use.inputs[k];
    const ValueId given = b.input(cat("x", k), t.type);
    inputs.back() = repeats ? b.emit("broadcast", {given}, {{"shape", use.types[k].shape}}) : given;
    feeds.emplace(given, t);
  }
  const std::vector<ValueId> results = b.emit_all(use.op.name, inputs, use.c.attrs);
  for (size_t k = 0; k < results.size(); ++k) b.output(cat("y", k), results[k]);
  const auto values = SerialValues::create(b.graph());
  if (!values.ok()) return false;
  const std::vector<Tensor> found = evaluate_graph(b.graph(), feeds, results);
  for (size_t k = 0; k < results.size(); ++k) {
    std::map<int64_t, int64_t> seen;  // root's element -> an element of the result
    for (int64_t e = 0; e < elements(found[k].type.shape); ++e) {
      const int64_t first = seen.try_emplace(root_element(values->layout(results[k]), e, 0), e).first->second;
      if (is_same(found[k], first, e)) continue;
      ADD_FAILURE() << describe(use.c) << ", operands " << alike << " alike along " << f.factors[factor].name
                    << ": elements " << first << " and " << e << " of output " << k << " are said to be the same";
      return true;
    }
  }
  return true;
}

// By the reference: of every op on every case of the tables, with operands that are the same all along a factor.
TEST(SerialValues, WhatIsSaidToBeTheSameIs) {
  std::set<std::string> tried;
  for (const OpCase& c : all_op_cases()) {
    const DrawnUse use(c);
    const bool empty =
        std::any_of(use.types.begin(), use.types.end(), [](const TensorType& t) { return elements(t.shape) == 0; });
    if (use.op.communicates || empty) continue;
    const Formula f = bound_formula(use.op, {c.attrs, use.types});
    for (int factor = 0; factor < static_cast<int>(f.factors.size()); ++factor) {
      unsigned has = 0;
      size_t operand = 0;
      for (size_t k = 0; k < use.inputs.size(); ++k) {
        const bool positions = c.op == "gather_rows_grad" && k == 1;  // each of which is there once
        if (!use.absent(k) && dimension_of(f.inputs[operand++], factor) >= 0 && !positions) has |= 1U << k;
      }
      // Every choice of those that have the factor.
      for (unsigned alike = has; alike != 0; alike = (alike - 1) & has) {
        if (check_alike(use, f, factor, alike)) tried.insert(c.op);
      }
    }
  }
  for (const char* op : {"cumsum", "scatter_elements", "scatter_nd", "attention", "attention_grad", "conv", "max_pool",
                         "softmax", "concat", "slice", "pad", "reverse", "grouped_matmul", "take_along", "topk"})
    EXPECT_TRUE(tried.contains(op)) << op;
}

}  // namespace
}  // namespace partita::verifier
