// The geometry of convolutions and poolings: x [n, c, spatial...], one to three spatial dimensions, brought to three by
// ones in front.
#pragma once

#include <array>

#include "runtime/kernels/kernel_request.h"

namespace partita::runtime {

struct Window {
  using Dims = std::array<int64_t, 3>;
  int64_t batch = 1, channels = 1;  // of x
  size_t rank = 2;                  // spatial dimensions there really are
  Dims in{1, 1, 1}, out{1, 1, 1}, kernel{1, 1, 1}, stride{1, 1, 1}, low{0, 0, 0}, high{0, 0, 0}, dilation{1, 1, 1};

  // From the whole shapes of x and y and the attributes strides, pads_low, pads_high, dilations; InvalidArgument when
  // they do not fit together, where `exact` also asks for as many outputs as windows fit.
  static absl::StatusOr<Window> make(const KernelRequest& r, const Shape& x, const Shape& y, const Shape& kernel,
                                     bool exact);

  int64_t in_plane() const { return in[0] * in[1] * in[2]; }
  int64_t out_plane() const { return out[0] * out[1] * out[2]; }
  int64_t kernel_size() const { return kernel[0] * kernel[1] * kernel[2]; }
  // Outputs o in [begin, end) along dimension d whose tap k lies inside x.
  void valid(size_t d, int64_t k, int64_t& begin, int64_t& end) const {
    const int64_t shift = k * dilation[d] - low[d];
    begin = shift >= 0 ? 0 : (-shift + stride[d] - 1) / stride[d];
    end = shift >= in[d] ? 0 : std::min(out[d], (in[d] - 1 - shift) / stride[d] + 1);
  }
};

}  // namespace partita::runtime
