#include <cmath>
#include <limits>

#include "base/cat.h"
#include "base/status.h"
#include "ir/graph/builder.h"
#include "ir/ops/window.h"

namespace partita {
namespace {

absl::Status check_spatial_size(const Shape& x) {
  auto spatial = checked_elements(Shape(x.begin() + 2, x.end()));
  if (!spatial || *spatial > std::numeric_limits<int32_t>::max()) {
    return absl::InvalidArgumentError(
        cat("the spatial dimensions of ", to_string(x), " have too many elements for 32-bit positions"));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<TensorType>> max_pool_types(const OpView& use) {
  if (!is_float(use.dtype()))
    return absl::InvalidArgumentError(cat("expected a float type, found ", dtype_name(use.dtype())));
  PARTITA_ASSIGN_OR_RETURN(std::vector<Window> windows,
                           make_windows(use.attrs, use.shape(0), use.attrs.ints("kernel")));
  PARTITA_RETURN_IF_ERROR(check_no_empty_window(windows));
  PARTITA_RETURN_IF_ERROR(check_spatial_size(use.shape(0)));
  Shape out = window_output(use.shape(0)[0], use.shape(0)[1], windows);
  if (!checked_elements(out))
    return absl::InvalidArgumentError(cat("a result of ", to_string(out), " elements is too large"));
  return std::vector<TensorType>{{use.dtype(), out}, {DType::kI32, out}};
}

// Every spatial dimension stays whole, since indices count from the start of the whole.
std::string max_pool_formula(const OpView& use) {
  auto windows = known_windows(use.attrs, use.shape(0), use.attrs.ints("kernel"));
  std::string in, out;
  for (size_t d = 0; d < windows.size(); ++d) {
    append(in, " i", d, "^");
    append(out, " h", d, "=", windows[d].out, "^");
  }
  return cat("n c", in, " -> n c", out, ", n c", out);
}

void max_pool_evaluate(const OpView& use, std::span<const Tensor* const> in, std::vector<Tensor>& outputs) {
  const Shape& x = use.shape(0);
  auto [a, b, c] = three_windows(known_windows(use.attrs, x, use.attrs.ints("kernel")));
  int64_t at = 0, plane = a.in * b.in * c.in;
  for (int64_t nc = 0; nc < x[0] * x[1]; ++nc)
    for (int64_t h0 = 0; h0 < a.out; ++h0)
      for (int64_t h1 = 0; h1 < b.out; ++h1)
        for (int64_t h2 = 0; h2 < c.out; ++h2, ++at) {
          double best = -std::numeric_limits<double>::infinity();
          int64_t index = -1;
          for (int64_t k0 = 0; k0 < a.kernel; ++k0)
            for (int64_t k1 = 0; k1 < b.kernel; ++k1)
              for (int64_t k2 = 0; k2 < c.kernel; ++k2) {
                int64_t i0 = a.position(h0, k0), i1 = b.position(h1, k1), i2 = c.position(h2, k2);
                if (!a.inside(i0) || !b.inside(i1) || !c.inside(i2)) continue;
                int64_t i = (i0 * b.in + i1) * c.in + i2;
                double v = in[0]->f[nc * plane + i];
                if (index < 0 || v > best || (std::isnan(v) && !std::isnan(best))) best = v, index = i;
              }
          outputs[0].f[at] = best;
          outputs[1].i[at] = index;
        }
}

absl::StatusOr<std::vector<TensorType>> max_pool_grad_types(const OpView& use) {
  const Shape &g = use.shape(0), &to = use.attrs.ints("input_shape");
  if (!is_float(use.dtype(0)) || use.dtype(1) != DType::kI32 || g != use.shape(1)) {
    return absl::InvalidArgumentError(cat("expected a float gradient and i32 indices of one shape, found ",
                                          to_string(use.inputs[0]), " and ", to_string(use.inputs[1])));
  }
  if (!checked_elements(to) || g.size() < 3 || g.size() > 5 || to.size() != g.size() || to[0] != g[0] ||
      to[1] != g[1]) {
    return absl::InvalidArgumentError(
        cat("a gradient ", to_string(g), " cannot be that of a pool over ", to_string(to)));
  }
  PARTITA_RETURN_IF_ERROR(check_spatial_size(to));
  return std::vector<TensorType>{{use.dtype(), to}};
}

std::string max_pool_grad_formula(const OpView& use) {
  const Shape& to = use.attrs.ints("input_shape");
  std::string in, out;
  for (size_t d = 2; d < to.size(); ++d) {
    append(in, " h", d - 2, "^");
    append(out, " i", d - 2, "=", to[d], "^");
  }
  return cat("~ n c", in, ", n c", in, " -> n c", out);
}

void max_pool_grad_evaluate(const OpView& use, std::span<const Tensor* const> in, std::vector<Tensor>& outputs) {
  const Shape &g = use.shape(0), &to = use.attrs.ints("input_shape");
  int64_t windows = elements(Shape(g.begin() + 2, g.end())), plane = elements(Shape(to.begin() + 2, to.end()));
  for (int64_t nc = 0; nc < g[0] * g[1]; ++nc) {
    for (int64_t k = 0; k < windows; ++k) {
      int64_t i = in[1]->i[nc * windows + k];
      if (i >= 0 && i < plane) outputs[0].f[nc * plane + i] += in[0]->f[nc * windows + k];
    }
  }
}

}  // namespace

// Largest element of each window of x [n, c, spatial…], padding ignored, and its flat position inside the spatial
// dimensions of x (the first of equals; a NaN wins). Attributes kernel, strides, pads_low, pads_high, dilations.
extern const OpDef kMaxPool = {
    .name = "max_pool",
    .attributes = "ints kernel, ints strides?, ints pads_low?, ints pads_high?, ints dilations?",
    .formula_of = max_pool_formula,
    .infer = max_pool_types,
    .flops_per_point = 1,
    .gradient = [](const OpUse& use) -> std::vector<ValueId> {
      if (use.gradients[0] == kNoValue) return {kNoValue};
      Attrs attrs = use.attrs;
      attrs.set("input_shape", use.types[0].shape);
      return {use.b.emit("max_pool_grad", {use.gradients[0], use.outputs[1]}, std::move(attrs))};
    },
    .evaluate = max_pool_evaluate,
    .kernel = true,
};

// (gradient of max_pool's first output, its indices) -> gradient of x, which has the shape `input_shape`. An index
// outside is ignored. The windows are max_pool's: a GPU goes from an element to those that it lies in.
extern const OpDef kMaxPoolGrad = {
    .name = "max_pool_grad",
    .min_inputs = 2,
    .max_inputs = 2,
    .attributes = "ints input_shape, ints kernel, ints strides?, ints pads_low?, ints pads_high?, ints dilations?",
    .formula_of = max_pool_grad_formula,
    .infer = max_pool_grad_types,
    .flops_per_point = 1,
    .evaluate = max_pool_grad_evaluate,
    .localize =
        [](const Attrs& attrs, std::span<const Shape>, std::span<const Shape> out) {
          Attrs local = attrs;
          local.set("input_shape", out[0]);
          return local;
        },
    .kernel = true,
};

}  // namespace partita
