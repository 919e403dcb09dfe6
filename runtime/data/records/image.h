// Pictures: JPEG and PNG files as bytes per pixel, resized as Pillow does.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "base/kinds.h"

namespace partita::runtime {

constexpr int64_t kMostPixels = int64_t{1} << 28;

struct Image {
  int height = 0, width = 0, channels = 0;
  std::vector<uint8_t> pixels;  // [height, width, channels]
};

// Pixels [top, top + height) by [left, left + width).
struct ImageBox {
  int top = 0, left = 0, height = 0, width = 0;
  bool operator==(const ImageBox&) const = default;
};

// "jpg", "jpeg", "png"
bool is_image_suffix(std::string_view suffix);

// JPEG or PNG, by what it begins with; `channels` 3 (RGB) or 1 (grey: Rec. 601's luma), transparency left out. An
// orientation that a camera noted is not applied. InvalidArgument, without the file's name, where it is neither, cut
// short, or of more than 2^28 pixels.
absl::StatusOr<Image> decode_image(std::span<const std::byte> file, int channels);

// The pixels of `box`, which lies inside the image, as height by width: to the bit what Pillow's resize makes of the
// cut box (up to Pillow 12; later ones choose which pass comes first), with filters that widen as the image shrinks.
Image resize_image(const Image& image, const ImageBox& box, int height, int width, ImageFilter filter);

}  // namespace partita::runtime
