#include <algorithm>

#include "base/cat.h"
#include "base/status.h"
#include "ir/ops/matmul.h"

namespace partita {
namespace {

bool is_set(const OpView& use, const char* name) { return use.attrs.i(name, 0) != 0; }

// The dimension that is summed over.
int64_t inner(const OpView& use, int operand) {
  const int64_t last = use.rank() - 1;
  return operand == 0 ? last - is_set(use, "transpose_a") : last - 1 + is_set(use, "transpose_b");
}

absl::StatusOr<std::vector<TensorType>> fp8_matmul_types(const OpView& use) {
  PARTITA_ASSIGN_OR_RETURN(auto types, matmul_types(use));
  const int64_t block = use.attrs.i("fp8"), last = use.rank() - 1;
  auto is_divided = [&](int operand, int64_t dim) { return use.shape(operand)[dim] % block == 0; };
  if (block < 1 || !is_divided(0, inner(use, 0)) ||
      (is_set(use, "tiles") && !(is_divided(1, last) && is_divided(1, last - 1)))) {
    return absl::InvalidArgumentError(cat("expected dimensions in blocks of ", block, ", found ",
                                          to_string(use.inputs[0]), " and ", to_string(use.inputs[1])));
  }
  return types;
}

// Blocks are of all of it: nothing is split before it is spelled out.
std::string fp8_matmul_formula(const OpView& use) {
  Formula f = *parse_formula(matmul_formula(use));
  for (Factor& factor : f.factors) factor.role = FactorRole::kWhole;
  for (FormulaOperand& operand : f.inputs) operand.linear = -1;
  return to_string(f);
}

ValueId rounded(const OpUse& use, int operand, std::vector<int64_t> dims) {
  Attrs attrs;
  attrs.set("dims", std::move(dims));
  attrs.set("block", use.attrs.i("fp8"));
  attrs.set("format", use.attrs.s(operand == 0 ? "a" : "b"));
  return use.b.emit("round_to_fp8", {use.inputs[operand]}, std::move(attrs));
}

std::vector<ValueId> fp8_matmul_expand(const OpUse& use) {
  const OpView view = use.view();
  const int64_t last = view.rank() - 1;
  const bool tiles = is_set(view, "tiles");
  const ValueId x = rounded(use, 0, {inner(view, 0)});
  const ValueId y =
      rounded(use, 1, tiles ? std::vector<int64_t>{last - 1, last} : std::vector<int64_t>{inner(view, 1)});
  Attrs attrs;
  for (const char* name : {"transpose_a", "transpose_b"}) {
    if (is_set(view, name)) attrs.set(name, int64_t{1});
  }
  attrs.set("fp8", use.attrs.i("fp8"));
  return use.b.emit_all("matmul", {x, y}, std::move(attrs));
}

// Of x [batch…, m, k] and a weight y [k, n] or, transposed, [n, k]: x's gradient is a product of the result's with the
// weight, whose tiles are the same however it lies; the weight's is one over rows, in blocks of rows where attribute
// `rows` allows, else in the type that the operands have.
std::vector<ValueId> fp8_matmul_gradient(const OpUse& use) {
  Builder& b = use.b;
  PARTITA_CHECK(is_set(use.view(), "tiles") && !is_set(use.view(), "transpose_a"), "a weight on the right");
  const bool tb = is_set(use.view(), "transpose_b");
  const ValueId x = fold_batch(b, use.inputs[0]), g = fold_batch(b, use.gradients[0]), y = use.inputs[1];
  const std::string form{use.attrs.s("a")}, gradient{use.attrs.s("gradient")};
  auto product = [&](ValueId p, ValueId q, bool tp, bool tq, const std::string& of_p, const std::string& of_q,
                     bool tiles) {
    Attrs attrs;
    if (tp) attrs.set("transpose_a", int64_t{1});
    if (tq) attrs.set("transpose_b", int64_t{1});
    if (tiles) attrs.set("tiles", int64_t{1});
    attrs.set("fp8", use.attrs.i("fp8"));
    attrs.set("a", of_p), attrs.set("b", of_q);
    return b.emit("fp8_matmul", {p, q}, std::move(attrs));
  };
  const ValueId dx = product(use.gradients[0], y, false, !tb, gradient, std::string(use.attrs.s("b")), true);
  const bool rows = is_set(use.view(), "rows");
  const ValueId p = tb ? g : x, q = tb ? x : g;
  const ValueId dy = rows ? product(p, q, true, false, tb ? gradient : form, tb ? form : gradient, false)
                          : b.matmul(p, q, true, false);
  return {dx, b.sum_to(dy, use.types[1].shape)};
}

}  // namespace

// A matrix product (ir/ops/matmul.cc) of operands that are rounded to fp8 first: in blocks of `fp8` elements along
// the dimension that is summed over, and operand b, where `tiles` is set, in tiles of as many by as many. `a` and
// `b` are their formats, `gradient` that of the result's gradient. It stands in the graph until gradients are there
// (passes/training/expand_fp8.h).
extern const OpDef kFp8MatMul = {
    .name = "fp8_matmul",
    .min_inputs = 2,
    .max_inputs = 2,
    .attributes = "i transpose_a?, i transpose_b?, i fp8, s a, s b, i tiles?, s gradient?, i rows?",
    .formula_of = fp8_matmul_formula,
    .infer = fp8_matmul_types,
    .work = WorkKind::kMatrix,
    .flops_per_point = 2,
    .gradient = fp8_matmul_gradient,
    .expand = fp8_matmul_expand,
    .precision = OperandPrecision::kNarrow,
};

}  // namespace partita
