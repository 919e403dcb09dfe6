// The four reductions: alike but for the operation and what a split leaves behind.
#include <cmath>
#include <limits>

#include "base/cat.h"
#include "base/status.h"
#include "ir/graph/builder.h"
#include "ir/ops/indexing.h"

namespace partita {
namespace {

Shape reduced_shape(const Shape& from, const std::vector<bool>& reduced, bool keep) {
  Shape shape;
  for (size_t d = 0; d < from.size(); ++d) {
    if (!reduced[d]) shape.push_back(from[d]);
    if (reduced[d] && keep) shape.push_back(1);
  }
  return shape;
}

absl::StatusOr<std::vector<TensorType>> reduced_types(const OpView& use) {
  PARTITA_RETURN_IF_ERROR(check_dims(use.attrs.ints("dims"), use.rank()));
  Shape shape = reduced_shape(use.shape(0), dim_flags(use.attrs.ints("dims"), use.rank()), use.attrs.i("keep") != 0);
  return one_output(use.dtype(), std::move(shape));
}

absl::StatusOr<std::vector<TensorType>> reduced_number_types(const OpView& use) {
  if (use.dtype() == DType::kBool) return absl::InvalidArgumentError("expected a float or integer type, found bool");
  return reduced_types(use);
}

template <char suffix>
std::string reduced_formula(const OpView& use) {
  std::vector<bool> reduced = dim_flags(use.attrs.ints("dims"), use.rank());
  std::string in = suffix == '+' ? "~" : "", out;
  if (use.rank() == 0) in += " .";
  for (int d = 0; d < use.rank(); ++d) {
    append(in, " ", factor_name(d));
    if (reduced[d]) in += suffix;
    if (!reduced[d]) append(out, " ", factor_name(d));
    if (reduced[d] && use.attrs.i("keep") != 0) out += " *";
  }
  return in + " ->" + out;
}

// Merges all elements, as scatter_element does in `mode`, into the neutral value.
void reduce(const OpView& use, const Tensor& x, Tensor& out, double neutral, int64_t neutral_integer,
            const std::string& mode) {
  std::vector<bool> reduced = dim_flags(use.attrs.ints("dims"), use.rank());
  out.f.assign(out.f.size(), neutral);
  out.i.assign(out.i.size(), neutral_integer);
  int64_t source = 0;
  for_each_index(x.type.shape, [&](const std::vector<int64_t>& index) {
    int64_t target = 0;
    for (size_t d = 0; d < index.size(); ++d) target = reduced[d] ? target : target * x.type.shape[d] + index[d];
    scatter_element(mode, x, source++, out, target);
  });
}

// The least (greatest) value of an integer type or bool, as a Tensor holds it.
int64_t least(DType t) { return is_unsigned(t) ? 0 : -(int64_t{1} << (8 * dtype_size(t) - 2)) * 2; }
int64_t greatest(DType t) {
  return t == DType::kBool  ? 1
         : t == DType::kU64 ? -1
         : is_unsigned(t)   ? (int64_t{1} << 8 * dtype_size(t)) - 1
                            : -1 - least(t);
}

template <bool largest>
void extremum_evaluate(const OpView& use, std::span<const Tensor* const> in, std::vector<Tensor>& outputs) {
  double infinity = std::numeric_limits<double>::infinity();
  reduce(use, *in[0], outputs[0], largest ? -infinity : infinity, largest ? least(use.dtype()) : greatest(use.dtype()),
         largest ? "max" : "min");
}

// A result or gradient as if the reduction had kept its dimensions, to broadcast against x.
ValueId kept(const OpUse& use, ValueId v) {
  return use.b.reshape(v,
                       reduced_shape(use.types[0].shape, dim_flags(use.attrs.ints("dims"), use.view().rank()), true));
}

// Elements that attain the extremum share its gradient evenly, as PyTorch's amax does.
std::vector<ValueId> extremum_gradient(const OpUse& use) {
  Builder& b = use.b;
  ValueId attains = b.cast(b.emit("eq", {use.inputs[0], kept(use, use.outputs[0])}), use.types[0].dtype);
  ValueId count = b.reduce_sum(attains, use.attrs.ints("dims"), true);
  return {b.mul(b.div(kept(use, use.gradients[0]), count), attains)};
}

// The product of all other elements: with p the product of those that are not zero, p/x where there is no zero, p at
// the only zero, else 0.
std::vector<ValueId> product_gradient(const OpUse& use) {
  Builder& b = use.b;
  DType type = use.types[0].dtype;
  ValueId x = use.inputs[0], zero = b.scalar(type, 0), one = b.scalar(type, 1);
  ValueId is_zero = b.emit("eq", {x, zero}), safe = b.select(is_zero, one, x);
  ValueId zeros = b.reduce_sum(b.cast(is_zero, type), use.attrs.ints("dims"), true);
  ValueId product = b.reduce("reduce_prod", safe, use.attrs.ints("dims"), true);
  ValueId others = b.select(is_zero, b.select(b.emit("eq", {zeros, one}), product, zero),
                            b.select(b.emit("eq", {zeros, zero}), b.div(product, safe), zero));
  return {b.mul(kept(use, use.gradients[0]), others)};
}

}  // namespace

// The sum over attribute `dims`, which stay as 1 where `keep` is set. A split leaves a partial sum.
extern const OpDef kReduceSum = {
    .name = "reduce_sum",
    .attributes = "ints dims, i keep",
    .formula_of = reduced_formula<'+'>,
    .infer = reduced_number_types,
    .flops_per_point = 1,
    .gradient = [](const OpUse& use) -> std::vector<ValueId> {
      return {use.b.broadcast_to(kept(use, use.gradients[0]), use.types[0].shape)};
    },
    .evaluate = [](const OpView& use, std::span<const Tensor* const> in,
                   std::vector<Tensor>& outputs) { reduce(use, *in[0], outputs[0], 0, 0, "add"); },
    .precision = OperandPrecision::kWide,
};

// The greatest element over `dims`; NaN where there is one; the least value of the type where there is none.
extern const OpDef kReduceMax = {
    .name = "reduce_max",
    .attributes = "ints dims, i keep",
    .formula_of = reduced_formula<'>'>,
    .infer = reduced_types,
    .flops_per_point = 1,
    .gradient = extremum_gradient,
    .evaluate = extremum_evaluate<true>,
};

// The least element over `dims`.
extern const OpDef kReduceMin = {
    .name = "reduce_min",
    .attributes = "ints dims, i keep",
    .formula_of = reduced_formula<'<'>,
    .infer = reduced_types,
    .flops_per_point = 1,
    .gradient = extremum_gradient,
    .evaluate = extremum_evaluate<false>,
};

// The product over `dims`, which must not be split.
extern const OpDef kReduceProd = {
    .name = "reduce_prod",
    .attributes = "ints dims, i keep",
    .formula_of = reduced_formula<'^'>,
    .infer = reduced_number_types,
    .flops_per_point = 1,
    .gradient = product_gradient,
    .evaluate = [](const OpView& use, std::span<const Tensor* const> in,
                   std::vector<Tensor>& outputs) { reduce(use, *in[0], outputs[0], 1, 1, "mul"); },
    .precision = OperandPrecision::kWide,
};

}  // namespace partita
