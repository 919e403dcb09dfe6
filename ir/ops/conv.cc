// Convolution and its two gradients, each a sum over the same taps: an element of x and an element of w meet in an
// element of y. conv reads x and w, conv_grad_data y and w, conv_grad_weight y and x; each is linear in both, and the
// gradient of one is made of the other two.
#include "base/cat.h"
#include "base/status.h"
#include "ir/graph/builder.h"
#include "ir/ops/window.h"

namespace partita {
namespace {

// x [n, groups * c, in…], w [groups * o, c, kernel…], y [n, groups * o, out…].
struct Conv {
  int64_t n = 0, groups = 1, o = 0, c = 0;
  std::vector<Window> windows;

  Shape output() const { return window_output(n, groups * o, windows); }
};

std::vector<int64_t> kernel_of(const Shape& w) { return {w.begin() + std::min<size_t>(2, w.size()), w.end()}; }

absl::StatusOr<Conv> make_conv(const Attrs& attrs, const Shape& x, const Shape& w) {
  if (x.size() < 3 || x.size() != w.size()) {
    return absl::InvalidArgumentError(
        cat("expected input and weight of one rank of 3 to 5, found ", to_string(x), " and ", to_string(w)));
  }
  PARTITA_ASSIGN_OR_RETURN(std::vector<Window> windows, make_windows(attrs, x, kernel_of(w)));
  int64_t groups = attrs.i("groups", 1);
  if (groups < 1 || x[1] % groups != 0 || w[0] % groups != 0 || x[1] / groups != w[1]) {
    return absl::InvalidArgumentError(cat("channels of input ", to_string(x), " and weight ", to_string(w),
                                          " do not fit ", groups,
                                          " groups: expected a weight [outputs, inputs / groups, kernel…]"));
  }
  return Conv{x[0], groups, w[0] / groups, w[1], std::move(windows)};
}

absl::Status check_types(const OpView& use) {
  if (!is_float(use.dtype(0)) || use.dtype(0) != use.dtype(1)) {
    return absl::InvalidArgumentError(cat("expected two operands of one float type, found ", to_string(use.inputs[0]),
                                          " and ", to_string(use.inputs[1])));
  }
  return absl::OkStatus();
}

absl::Status check_shape(std::string_view what, const Shape& found, const Shape& expected) {
  if (found == expected) return absl::OkStatus();
  return absl::InvalidArgumentError(cat(what, ": expected ", to_string(expected), ", found ", to_string(found)));
}

absl::Status check_size(std::string_view what, const Shape& shape) {
  if (checked_elements(shape)) return absl::OkStatus();
  return absl::InvalidArgumentError(cat(what, " ", to_string(shape), " is negative or too large"));
}

absl::StatusOr<std::vector<TensorType>> conv_types(const OpView& use) {
  PARTITA_RETURN_IF_ERROR(check_types(use));
  PARTITA_ASSIGN_OR_RETURN(Conv conv, make_conv(use.attrs, use.shape(0), use.shape(1)));
  PARTITA_RETURN_IF_ERROR(check_size("the output", conv.output()));
  return std::vector<TensorType>{{use.dtype(), conv.output()}};
}

absl::StatusOr<std::vector<TensorType>> conv_grad_data_types(const OpView& use) {
  PARTITA_RETURN_IF_ERROR(check_types(use));
  const Shape& x = use.attrs.ints("input_shape");
  PARTITA_RETURN_IF_ERROR(check_size("input_shape", x));
  PARTITA_ASSIGN_OR_RETURN(Conv conv, make_conv(use.attrs, x, use.shape(1)));
  PARTITA_RETURN_IF_ERROR(check_size("the convolution's output", conv.output()));
  PARTITA_RETURN_IF_ERROR(check_shape(cat("the gradient for input ", to_string(x)), use.shape(0), conv.output()));
  return std::vector<TensorType>{{use.dtype(), x}};
}

absl::StatusOr<std::vector<TensorType>> conv_grad_weight_types(const OpView& use) {
  PARTITA_RETURN_IF_ERROR(check_types(use));
  const Shape& w = use.attrs.ints("weight_shape");
  PARTITA_RETURN_IF_ERROR(check_size("weight_shape", w));
  PARTITA_ASSIGN_OR_RETURN(Conv conv, make_conv(use.attrs, use.shape(1), w));
  PARTITA_RETURN_IF_ERROR(check_size("the convolution's output", conv.output()));
  PARTITA_RETURN_IF_ERROR(check_shape(cat("the gradient for weight ", to_string(w)), use.shape(0), conv.output()));
  return std::vector<TensorType>{{use.dtype(), w}};
}

Conv known_conv(const Attrs& attrs, const Shape& x, const Shape& w) {
  auto conv = make_conv(attrs, x, w);
  PARTITA_CHECK(conv.ok(), std::string(conv.status().message()));
  return *std::move(conv);
}

// "(g=4 c+)", or "c+" without groups.
std::string grouped(const Conv& conv, std::string_view factor) {
  return conv.groups == 1 ? std::string(factor) : cat("(g=", conv.groups, " ", factor, ")");
}

// "~ n c+ i0^ i1^, ~ o c k0^ k1^ -> n o h0=8^ h1=8^"
std::string conv_formula(const OpView& use) {
  Conv conv = known_conv(use.attrs, use.shape(0), use.shape(1));
  WindowFactors f = window_factors(conv.windows, "");
  return cat("~ n ", grouped(conv, "c+"), f.in, ", ~ ", grouped(conv, "o"), " c", f.kernel, " -> n ",
             grouped(conv, "o"), f.out);
}

// "~ n o+ h0^ h1^, ~ o c k0^ k1^ -> n c i0=8^ i1=8^"
std::string conv_grad_data_formula(const OpView& use) {
  Conv conv = known_conv(use.attrs, use.attrs.ints("input_shape"), use.shape(1));
  WindowFactors f = window_factors(conv.windows, "");
  return cat("~ n ", grouped(conv, "o+"), f.out, ", ~ ", grouped(conv, "o"), " c", f.kernel, " -> n ",
             grouped(conv, "c"), f.in);
}

// "~ n+ o h0^ h1^, ~ n c i0^ i1^ -> o c k0=3^ k1=3^"; windows that tile the input make h0 and h1 sums as well.
std::string conv_grad_weight_formula(const OpView& use) {
  Conv conv = known_conv(use.attrs, use.shape(1), use.attrs.ints("weight_shape"));
  WindowFactors f = window_factors(conv.windows, "+");
  return cat("~ n+ ", grouped(conv, "o"), f.out, ", ~ n ", grouped(conv, "c"), f.in, " -> ", grouped(conv, "o"), " c",
             f.kernel);
}

// A product over the taps of every element of y; taps on padding count: a GEMM has them.
double conv_flops(const Conv& conv) {
  double flops = 2 * static_cast<double>(conv.c);
  for (int64_t size : conv.output()) flops *= static_cast<double>(size);
  for (const Window& w : conv.windows) flops *= static_cast<double>(w.kernel);
  return flops;
}

// Calls visit(index in x, index in w, index in y) for every tap that is not padding.
template <typename Visit>
void for_each_tap(const Conv& conv, Visit visit) {
  auto [a, b, c] = three_windows(conv.windows);
  for (int64_t n = 0; n < conv.n; ++n) {
    for (int64_t oc = 0; oc < conv.groups * conv.o; ++oc) {
      for (int64_t ic = 0; ic < conv.c; ++ic) {
        int64_t x0 = n * conv.groups * conv.c + oc / conv.o * conv.c + ic, w0 = oc * conv.c + ic,
                y0 = n * conv.groups * conv.o + oc;
        for (int64_t h0 = 0; h0 < a.out; ++h0)
          for (int64_t h1 = 0; h1 < b.out; ++h1)
            for (int64_t h2 = 0; h2 < c.out; ++h2)
              for (int64_t k0 = 0; k0 < a.kernel; ++k0)
                for (int64_t k1 = 0; k1 < b.kernel; ++k1)
                  for (int64_t k2 = 0; k2 < c.kernel; ++k2) {
                    int64_t i0 = a.position(h0, k0), i1 = b.position(h1, k1), i2 = c.position(h2, k2);
                    if (!a.inside(i0) || !b.inside(i1) || !c.inside(i2)) continue;
                    visit(((x0 * a.in + i0) * b.in + i1) * c.in + i2,
                          ((w0 * a.kernel + k0) * b.kernel + k1) * c.kernel + k2,
                          ((y0 * a.out + h0) * b.out + h1) * c.out + h2);
                  }
      }
    }
  }
}

// Attributes strides, pads_low, pads_high, dilations, groups alone.
Attrs window_attrs(const Attrs& attrs) {
  Attrs own;
  for (const auto& [name, value] : attrs.items()) {
    if (name != "input_shape" && name != "weight_shape") own.set(name, value);
  }
  return own;
}

Attrs with(const Attrs& attrs, std::string_view name, const Shape& shape) {
  Attrs own = window_attrs(attrs);
  own.set(name, shape);
  return own;
}

ValueId conv(const OpUse& use, ValueId x, ValueId w) { return use.b.emit("conv", {x, w}, window_attrs(use.attrs)); }
ValueId grad_data(const OpUse& use, ValueId y, ValueId w, const Shape& x) {
  return use.b.emit("conv_grad_data", {y, w}, with(use.attrs, "input_shape", x));
}
ValueId grad_weight(const OpUse& use, ValueId y, ValueId x, const Shape& w) {
  return use.b.emit("conv_grad_weight", {y, x}, with(use.attrs, "weight_shape", w));
}

// Groups that a local x and a local w still hold.
Attrs localized(const Attrs& attrs, const Shape& x, const Shape& w) {
  Attrs local = attrs;
  if (w[1] > 0) local.set("groups", x[1] / w[1]);
  if (attrs.has("input_shape")) local.set("input_shape", x);
  if (attrs.has("weight_shape")) local.set("weight_shape", w);
  return local;
}

}  // namespace

// Cross-correlation (what every framework calls convolution) of x [n, c, spatial…] and w [o, c / groups, kernel…] ->
// [n, o, spatial…], 1 to 3 spatial dimensions. 2 n o (c / groups) prod(kernel) prod(output) operations.
extern const OpDef kConv = {
    .name = "conv",
    .min_inputs = 2,
    .max_inputs = 2,
    .attributes = "ints strides?, ints pads_low?, ints pads_high?, ints dilations?, i groups?, i tf32?, i ordered?",
    .formula_of = conv_formula,
    .infer = conv_types,
    .work = WorkKind::kMatrix,
    .flops = [](const OpView& use) { return conv_flops(known_conv(use.attrs, use.shape(0), use.shape(1))); },
    .gradient = [](const OpUse& use) -> std::vector<ValueId> {
      ValueId g = use.gradients[0];
      return {grad_data(use, g, use.inputs[1], use.types[0].shape),
              grad_weight(use, g, use.inputs[0], use.types[1].shape)};
    },
    .evaluate =
        [](const OpView& use, std::span<const Tensor* const> in, std::vector<Tensor>& out) {
          for_each_tap(known_conv(use.attrs, use.shape(0), use.shape(1)),
                       [&](int64_t x, int64_t w, int64_t y) { out[0].f[y] += in[0]->f[x] * in[1]->f[w]; });
        },
    .localize = [](const Attrs& attrs, std::span<const Shape> in,
                   std::span<const Shape>) { return localized(attrs, in[0], in[1]); },
    .kernel = true,
    .precision = OperandPrecision::kNarrow,
};

// (gradient of conv's output, w) -> gradient of x, which has the shape `input_shape`. As an op of its own: transposed
// convolution.
extern const OpDef kConvGradData = {
    .name = "conv_grad_data",
    .min_inputs = 2,
    .max_inputs = 2,
    .attributes =
        "ints strides?, ints pads_low?, ints pads_high?, ints dilations?, i groups?, i tf32?, i ordered?, ints "
        "input_shape",
    .formula_of = conv_grad_data_formula,
    .infer = conv_grad_data_types,
    .work = WorkKind::kMatrix,
    .flops =
        [](const OpView& use) {
          return conv_flops(known_conv(use.attrs, use.attrs.ints("input_shape"), use.shape(1)));
        },
    .gradient = [](const OpUse& use) -> std::vector<ValueId> {
      ValueId g = use.gradients[0];
      return {conv(use, g, use.inputs[1]), grad_weight(use, use.inputs[0], g, use.types[1].shape)};
    },
    .evaluate =
        [](const OpView& use, std::span<const Tensor* const> in, std::vector<Tensor>& out) {
          Conv conv = known_conv(use.attrs, use.attrs.ints("input_shape"), use.shape(1));
          for_each_tap(conv, [&](int64_t x, int64_t w, int64_t y) { out[0].f[x] += in[0]->f[y] * in[1]->f[w]; });
        },
    .localize = [](const Attrs& attrs, std::span<const Shape> in,
                   std::span<const Shape> out) { return localized(attrs, out[0], in[1]); },
    .kernel = true,
    .precision = OperandPrecision::kNarrow,
};

// (gradient of conv's output, x) -> gradient of w, which has the shape `weight_shape`.
extern const OpDef kConvGradWeight = {
    .name = "conv_grad_weight",
    .min_inputs = 2,
    .max_inputs = 2,
    .attributes =
        "ints strides?, ints pads_low?, ints pads_high?, ints dilations?, i groups?, i tf32?, i ordered?, ints "
        "weight_shape",
    .formula_of = conv_grad_weight_formula,
    .infer = conv_grad_weight_types,
    .work = WorkKind::kMatrix,
    .flops =
        [](const OpView& use) {
          return conv_flops(known_conv(use.attrs, use.shape(1), use.attrs.ints("weight_shape")));
        },
    .gradient = [](const OpUse& use) -> std::vector<ValueId> {
      ValueId g = use.gradients[0];
      return {conv(use, use.inputs[1], g), grad_data(use, use.inputs[0], g, use.types[1].shape)};
    },
    .evaluate =
        [](const OpView& use, std::span<const Tensor* const> in, std::vector<Tensor>& out) {
          Conv conv = known_conv(use.attrs, use.shape(1), use.attrs.ints("weight_shape"));
          for_each_tap(conv, [&](int64_t x, int64_t w, int64_t y) { out[0].f[w] += in[0]->f[y] * in[1]->f[x]; });
        },
    .localize = [](const Attrs& attrs, std::span<const Shape> in,
                   std::span<const Shape> out) { return localized(attrs, in[1], out[0]); },
    .kernel = true,
    .precision = OperandPrecision::kNarrow,
};

}  // namespace partita
