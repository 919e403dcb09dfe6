#include "ir/ops/window.h"

#include "base/cat.h"
#include "base/status.h"

namespace partita {
namespace {

constexpr int64_t kLimit =
    int64_t{1} << 31;  // attributes stay below, so that sums and products of a few fit in 64 bits

absl::Status check_attribute(std::string_view name, const std::vector<int64_t>& values, size_t count, int64_t least) {
  if (values.size() != count)
    return absl::InvalidArgumentError(cat("expected ", count, " ", name, ", found ", values.size()));
  for (int64_t v : values) {
    if (v < least || v >= kLimit)
      return absl::InvalidArgumentError(cat("expected ", name, " of at least ", least, " and below 2^31, found ", v));
  }
  return absl::OkStatus();
}

bool tiles(const Window& w) {
  return w.low == 0 && w.high == 0 && w.stride == w.kernel && (w.dilation == 1 || w.kernel == 1) &&
         w.in == w.out * w.kernel;
}

}  // namespace

absl::StatusOr<std::vector<Window>> make_windows(const Attrs& attrs, const Shape& shape,
                                                 const std::vector<int64_t>& kernel) {
  if (shape.size() < 3 || shape.size() > 5) {
    return absl::InvalidArgumentError(
        cat("expected [n, channels, 1 to 3 spatial dimensions], found ", to_string(shape)));
  }
  size_t count = shape.size() - 2;
  std::vector<int64_t> strides = attrs.ints("strides", std::vector<int64_t>(count, 1)),
                       dilations = attrs.ints("dilations", std::vector<int64_t>(count, 1));
  std::vector<int64_t> low = attrs.ints("pads_low", std::vector<int64_t>(count, 0)),
                       high = attrs.ints("pads_high", std::vector<int64_t>(count, 0));
  PARTITA_RETURN_IF_ERROR(check_attribute("kernel sizes", kernel, count, 1));
  PARTITA_RETURN_IF_ERROR(check_attribute("strides", strides, count, 1));
  PARTITA_RETURN_IF_ERROR(check_attribute("dilations", dilations, count, 1));
  PARTITA_RETURN_IF_ERROR(check_attribute("pads", low, count, 0));
  PARTITA_RETURN_IF_ERROR(check_attribute("pads", high, count, 0));
  std::vector<Window> windows;
  for (size_t d = 0; d < count; ++d) {
    Window w{shape[d + 2], 0, kernel[d], strides[d], low[d], high[d], dilations[d]};
    if (w.in < 1 || w.in >= kLimit)
      return absl::InvalidArgumentError(
          cat("expected spatial dimensions of 1 to 2^31 - 1 elements, found ", to_string(shape)));
    int64_t extent = (w.kernel - 1) * w.dilation + 1, padded = w.in + w.low + w.high;
    if (extent > padded) {
      return absl::InvalidArgumentError(cat("spatial dimension ", d, ": a window of ", extent,
                                            " elements does not fit into ", w.in, " with padding ", w.low, " and ",
                                            w.high));
    }
    w.out = (padded - extent) / w.stride + 1;
    windows.push_back(w);
  }
  return windows;
}

std::vector<Window> known_windows(const Attrs& attrs, const Shape& shape, const std::vector<int64_t>& kernel) {
  auto windows = make_windows(attrs, shape, kernel);
  PARTITA_CHECK(windows.ok(), std::string(windows.status().message()));
  return *std::move(windows);
}

absl::Status check_no_empty_window(const std::vector<Window>& windows) {
  for (size_t d = 0; d < windows.size(); ++d) {
    const Window& w = windows[d];
    // A window that starts in front of the input has a tap below `dilation` inside it; the last one must not start
    // behind it.
    bool front = w.low <= (w.kernel - 1) * w.dilation && (w.low == 0 || w.dilation <= w.in),
         back = w.position(w.out - 1, 0) < w.in;
    if (!front || !back) {
      return absl::InvalidArgumentError(cat("spatial dimension ", d, ": padding ", w.low, " and ", w.high, " around ",
                                            w.in, " elements leaves windows of ", w.kernel, " (dilation ", w.dilation,
                                            ") without any element; pad less"));
    }
  }
  return absl::OkStatus();
}

std::array<Window, 3> three_windows(const std::vector<Window>& windows) {
  std::array<Window, 3> three;
  std::copy(windows.begin(), windows.end(), three.end() - static_cast<int64_t>(windows.size()));
  return three;
}

Shape window_output(int64_t n, int64_t channels, const std::vector<Window>& windows) {
  Shape shape{n, channels};
  for (const Window& w : windows) shape.push_back(w.out);
  return shape;
}

WindowFactors window_factors(const std::vector<Window>& windows, std::string_view role) {
  WindowFactors text;
  for (size_t d = 0; d < windows.size(); ++d) {
    const Window& w = windows[d];
    if (tiles(w) && w.kernel == 1) {
      std::string h = cat(" h", d, "=", w.out, role);
      append(text.in, h);
      append(text.kernel, " *");
      append(text.out, h);
    } else if (tiles(w)) {
      append(text.in, " (h", d, "=", w.out, role, " k", d, "=", w.kernel, "^)");
      append(text.kernel, " k", d, "=", w.kernel, "^");
      append(text.out, " h", d, "=", w.out, role);
    } else {
      append(text.in, " i", d, "=", w.in, "^");
      append(text.kernel, " k", d, "=", w.kernel, "^");
      append(text.out, " h", d, "=", w.out, "^");
    }
  }
  return text;
}

}  // namespace partita
