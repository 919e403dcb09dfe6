#include "base/cat.h"
#include "base/status.h"
#include "ir/graph/builder.h"
#include "ir/ops/window.h"

namespace partita {
namespace {

bool counts_padding(const Attrs& attrs) { return attrs.i("count_include_pad", 0) != 0; }

absl::StatusOr<std::vector<Window>> avg_pool_windows(const Attrs& attrs, const Shape& x) {
  PARTITA_ASSIGN_OR_RETURN(std::vector<Window> windows, make_windows(attrs, x, attrs.ints("kernel")));
  if (!counts_padding(attrs)) PARTITA_RETURN_IF_ERROR(check_no_empty_window(windows));
  return windows;
}

absl::StatusOr<std::vector<TensorType>> avg_pool_types(const OpView& use) {
  if (!is_float(use.dtype()))
    return absl::InvalidArgumentError(cat("expected a float type, found ", dtype_name(use.dtype())));
  PARTITA_ASSIGN_OR_RETURN(std::vector<Window> windows, avg_pool_windows(use.attrs, use.shape(0)));
  Shape out = window_output(use.shape(0)[0], use.shape(0)[1], windows);
  if (!checked_elements(out))
    return absl::InvalidArgumentError(cat("a result of ", to_string(out), " elements is too large"));
  return std::vector<TensorType>{{use.dtype(), std::move(out)}};
}

absl::StatusOr<std::vector<TensorType>> avg_pool_grad_types(const OpView& use) {
  const Shape& to = use.attrs.ints("input_shape");
  if (!is_float(use.dtype()))
    return absl::InvalidArgumentError(cat("expected a float type, found ", dtype_name(use.dtype())));
  if (!checked_elements(to))
    return absl::InvalidArgumentError(cat("input_shape ", to_string(to), " is negative or too large"));
  PARTITA_ASSIGN_OR_RETURN(std::vector<Window> windows, avg_pool_windows(use.attrs, to));
  Shape expected = window_output(to[0], to[1], windows);
  if (use.shape(0) != expected) {
    return absl::InvalidArgumentError(cat("the gradient for input ", to_string(to), ": expected ", to_string(expected),
                                          ", found ", to_string(use.shape(0))));
  }
  return std::vector<TensorType>{{use.dtype(), to}};
}

WindowFactors factors(const Attrs& attrs, const Shape& x) {
  return window_factors(known_windows(attrs, x, attrs.ints("kernel")), "");
}

std::string avg_pool_formula(const OpView& use) {
  WindowFactors f = factors(use.attrs, use.shape(0));
  return cat("~ n c", f.in, " -> n c", f.out);
}

std::string avg_pool_grad_formula(const OpView& use) {
  WindowFactors f = factors(use.attrs, use.attrs.ints("input_shape"));
  return cat("~ n c", f.out, " -> n c", f.in);
}

// Calls visit(index in x, index in y, weight) for every element of every window.
template <typename Visit>
void for_each_element(const Attrs& attrs, const Shape& x, Visit visit) {
  auto [a, b, c] = three_windows(known_windows(attrs, x, attrs.ints("kernel")));
  auto present = [](const Window& w, int64_t h) {
    int64_t count = 0;
    for (int64_t k = 0; k < w.kernel; ++k) count += w.inside(w.position(h, k));
    return count;
  };
  int64_t at = 0;
  for (int64_t nc = 0; nc < x[0] * x[1]; ++nc)
    for (int64_t h0 = 0; h0 < a.out; ++h0)
      for (int64_t h1 = 0; h1 < b.out; ++h1)
        for (int64_t h2 = 0; h2 < c.out; ++h2, ++at) {
          int64_t count =
              counts_padding(attrs) ? a.kernel * b.kernel * c.kernel : present(a, h0) * present(b, h1) * present(c, h2);
          for (int64_t k0 = 0; k0 < a.kernel; ++k0)
            for (int64_t k1 = 0; k1 < b.kernel; ++k1)
              for (int64_t k2 = 0; k2 < c.kernel; ++k2) {
                int64_t i0 = a.position(h0, k0), i1 = b.position(h1, k1), i2 = c.position(h2, k2);
                if (!a.inside(i0) || !b.inside(i1) || !c.inside(i2)) continue;
                visit(((nc * a.in + i0) * b.in + i1) * c.in + i2, at, 1.0 / static_cast<double>(count));
              }
        }
}

}  // namespace

// Mean of each window of x [n, c, spatial…]; padding counts as zeros where count_include_pad = 1, else not at all.
// Attributes kernel, strides, pads_low, pads_high.
extern const OpDef kAvgPool = {
    .name = "avg_pool",
    .attributes = "ints kernel, ints strides?, ints pads_low?, ints pads_high?, i count_include_pad?",
    .formula_of = avg_pool_formula,
    .infer = avg_pool_types,
    .flops_per_point = 1,
    .gradient = [](const OpUse& use) -> std::vector<ValueId> {
      Attrs attrs = use.attrs;
      attrs.set("input_shape", use.types[0].shape);
      return {use.b.emit("avg_pool_grad", {use.gradients[0]}, std::move(attrs))};
    },
    .evaluate =
        [](const OpView& use, std::span<const Tensor* const> in, std::vector<Tensor>& out) {
          for_each_element(use.attrs, use.shape(0),
                           [&](int64_t x, int64_t y, double weight) { out[0].f[y] += in[0]->f[x] * weight; });
        },
    .kernel = true,
};

// Gradient of avg_pool's output -> gradient of x, which has the shape `input_shape`; the other attributes are
// avg_pool's.
extern const OpDef kAvgPoolGrad = {
    .name = "avg_pool_grad",
    .attributes = "ints kernel, ints strides?, ints pads_low?, ints pads_high?, i count_include_pad?, ints input_shape",
    .formula_of = avg_pool_grad_formula,
    .infer = avg_pool_grad_types,
    .flops_per_point = 1,
    .gradient = [](const OpUse& use) -> std::vector<ValueId> {
      Attrs attrs;
      for (const auto& [name, value] : use.attrs.items()) {
        if (name != "input_shape") attrs.set(name, value);
      }
      return {use.b.emit("avg_pool", {use.gradients[0]}, std::move(attrs))};
    },
    .evaluate =
        [](const OpView& use, std::span<const Tensor* const> in, std::vector<Tensor>& out) {
          for_each_element(use.attrs, use.attrs.ints("input_shape"),
                           [&](int64_t x, int64_t y, double weight) { out[0].f[x] += in[0]->f[y] * weight; });
        },
    .localize =
        [](const Attrs& attrs, std::span<const Shape>, std::span<const Shape> out) {
          Attrs local = attrs;
          local.set("input_shape", out[0]);
          return local;
        },
    .kernel = true,
};

}  // namespace partita
