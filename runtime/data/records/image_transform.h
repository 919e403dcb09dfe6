// From a picture to what a graph's input takes: cut out, resized, flipped, normalized. Draws depend on seed, epoch and
// sample alone, so that every layout and every resumed run sees the same.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/kinds.h"
#include "runtime/data/records/image.h"

namespace partita::runtime {

// Which draws a sample takes.
struct SampleDraws {
  uint64_t seed = 0, epoch = 0, sample = 0;
  // Uniform in [0, 1); another one for each `number`.
  double uniform(uint64_t number) const;
};

// What becomes of a picture of height by width: it is first made `resized` (height, width), of which `box` is cut out;
// the box may reach into `padding` zeros around it, in whose coordinates it is. `out` pixels are made of the box.
struct ImagePlan {
  int height = 0, width = 0;  // resized to; those of the picture: as it is
  int padding = 0;
  ImageBox box;
  bool flip = false;
  bool operator==(const ImagePlan&) const = default;
};

// torchvision's Resize, CenterCrop, RandomCrop, RandomResizedCrop and RandomHorizontalFlip, by the settings.
// InvalidArgument where a crop is larger than what is there.
absl::StatusOr<ImagePlan> plan_image(const ImageSettings& settings, int height, int width, int out_height,
                                     int out_width, const SampleDraws& draws);

// The picture as float32: pixels / 255, minus mean, over std; [channels, height, width], or with the channels last.
void write_pixels(const Image& image, const ImageSettings& settings, bool channels_last, std::span<float> out);

// A picture's bytes as out_height by out_width pixels. The errors of decode_image and plan_image.
absl::StatusOr<Image> transform_image(std::span<const std::byte> file, const ImageSettings& settings, int channels,
                                      int out_height, int out_width, const SampleDraws& draws);

}  // namespace partita::runtime
