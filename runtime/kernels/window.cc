#include "runtime/kernels/window.h"

namespace partita::runtime {

absl::StatusOr<Window> Window::make(const KernelRequest& r, const Shape& x, const Shape& y, const Shape& kernel,
                                    bool exact) {
  constexpr int64_t kLimit = int64_t{1} << 31;
  if (x.size() < 3 || x.size() > 5 || y.size() != x.size() || kernel.size() != x.size() - 2)
    return r.error("one to three spatial dims");
  Window w;
  w.rank = x.size() - 2;
  w.batch = x[0];
  w.channels = x[1];
  const Shape ones(w.rank, 1), zeros(w.rank, 0);
  const Shape strides = r.ints("strides", ones), low = r.ints("pads_low", zeros), high = r.ints("pads_high", zeros),
              dilations = r.ints("dilations", ones);
  if (strides.size() != w.rank || low.size() != w.rank || high.size() != w.rank || dilations.size() != w.rank)
    return r.error("one stride, dilation and pair of pads per spatial dim");
  for (size_t i = 0; i < w.rank; ++i) {
    const size_t d = 3 - w.rank + i;
    w.in[d] = x[i + 2];
    w.out[d] = y[i + 2];
    w.kernel[d] = kernel[i];
    w.stride[d] = strides[i];
    w.low[d] = low[i];
    w.high[d] = high[i];
    w.dilation[d] = dilations[i];
    const bool sane = kernel[i] >= 1 && strides[i] >= 1 && dilations[i] >= 1 && low[i] >= 0 && high[i] >= 0 &&
                      x[i + 2] >= 1 && kernel[i] < kLimit && strides[i] < kLimit && dilations[i] < kLimit &&
                      low[i] < kLimit && high[i] < kLimit && x[i + 2] < kLimit;
    if (!sane) return r.error("positive strides, dilations and kernel sizes, pads >= 0");
    const int64_t room = x[i + 2] + low[i] + high[i] - dilations[i] * (kernel[i] - 1) - 1;
    if (exact && (room < 0 || room / strides[i] + 1 != y[i + 2]))
      return r.error(cat("an output of ", room < 0 ? 0 : room / strides[i] + 1, " along spatial dim ", i));
  }
  return w;
}

}  // namespace partita::runtime
