// Windows that slide over the spatial dimensions of [n, channels, spatial…]: what convolutions and pools share.
#pragma once

#include <array>
#include <string>
#include <vector>

#include "ir/op/op_def.h"

namespace partita {

// One spatial dimension: output o reads input o * stride - low + tap * dilation for every tap in [0, kernel); positions
// outside [0, in) are padding.
struct Window {
  int64_t in = 1, out = 1, kernel = 1, stride = 1, low = 0, high = 0, dilation = 1;

  int64_t position(int64_t o, int64_t tap) const { return o * stride - low + tap * dilation; }
  bool inside(int64_t position) const { return position >= 0 && position < in; }
};

// The windows of a tensor `shape` = [n, channels, spatial…] under attributes strides, pads_low, pads_high, dilations
// (absent: 1, 0, 0, 1). InvalidArgument where the rank is not 3 to 5, an attribute does not fit or a window is larger
// than the padded input.
absl::StatusOr<std::vector<Window>> make_windows(const Attrs& attrs, const Shape& shape,
                                                 const std::vector<int64_t>& kernel);
// The same for a use that has been inferred.
std::vector<Window> known_windows(const Attrs& attrs, const Shape& shape, const std::vector<int64_t>& kernel);
// InvalidArgument where some window may see nothing but padding.
absl::Status check_no_empty_window(const std::vector<Window>& windows);

// Three windows, the missing ones in front being trivial.
std::array<Window, 3> three_windows(const std::vector<Window>& windows);
// [n, channels] + each window's output size.
Shape window_output(int64_t n, int64_t channels, const std::vector<Window>& windows);

// The factors of the spatial dimensions as formula text, one leading space per dimension. A window in general keeps
// input i, kernel k and output h whole. Windows that tile the input exactly make it "(h k)", so that h, whose suffix is
// `role`, may be split.
struct WindowFactors {
  std::string in, kernel, out;
};
WindowFactors window_factors(const std::vector<Window>& windows, std::string_view role);

}  // namespace partita
