// Kinds that the compiler, rank programs and the runtime all speak of, by the same names.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "base/enum_names.h"

namespace partita {

// A part of a step that a schedule runs on its own. Prologue, reduce and update run once a step, forward and backward
// once for each micro-batch, evaluation on its own.
enum class Segment : uint8_t { kPrologue, kForward, kBackward, kReduce, kUpdate, kEvaluation };
template <>
inline constexpr auto kEnumNames<Segment> = name_table("prologue", "forward", "backward", "reduce", "update",
                                                       "evaluation");

enum class InputKind : uint8_t {
  kData,        // one micro-batch of a data column
  kMicroBatch,  // i64 scalar: index of the micro-batch within the step
  kCoordinate,  // i64 scalar: this rank's index along the mesh axis of the input's name
};
template <>
inline constexpr auto kEnumNames<InputKind> = name_table("data", "micro_batch", "coordinate");

enum class StateKind : uint8_t {
  kParameter,    // trained
  kFrozen,       // a float initializer that is not trained; never written
  kRunning,      // running statistics: written in the forward segment or the update
  kOptimizer,    // belongs to a parameter
  kStep,         // i64 scalar: optimizer steps taken
  kAccumulator,  // zero at the start of every step
};
template <>
inline constexpr auto kEnumNames<StateKind> = name_table("parameter", "frozen", "running", "optimizer", "step",
                                                         "accumulator");

// What is done about a training step whose loss or gradients are not finite, or whose loss is a spike.
enum class DivergenceAction : uint8_t {
  kWarn,      // it is said, and the run goes on
  kSkip,      // the step's update is not done: the program holds all states
  kRollback,  // back to the newest good checkpoint, and on without the samples of that step
  kStop,      // the run ends, with the good checkpoints kept
};
template <>
inline constexpr auto kEnumNames<DivergenceAction> = name_table("warn", "skip", "rollback", "stop");

// Files that samples come from.
enum class DataKind : uint8_t { kNpz, kNpy, kTokens, kRaw, kSynthetic, kImages, kWebDataset };
template <>
inline constexpr auto kEnumNames<DataKind> = name_table("npz", "npy", "tokens", "raw", "synthetic", "images",
                                                        "webdataset");

// The two formats of 8-bit floats: more fraction, or more range.
enum class Fp8Format : uint8_t { kE4M3, kE5M2 };
template <>
inline constexpr auto kEnumNames<Fp8Format> = name_table("e4m3", "e5m2");

// How pictures become larger or smaller.
enum class ImageFilter : uint8_t { kBilinear, kBicubic };
template <>
inline constexpr auto kEnumNames<ImageFilter> = name_table("bilinear", "bicubic");

// Which part of a picture a sample is.
enum class ImageCrop : uint8_t { kCenter, kRandom, kRandomResized, kNone };
template <>
inline constexpr auto kEnumNames<ImageCrop> = name_table("center", "random", "random_resized", "none");

// What the ends of documents mean to windows of tokens.
enum class DocumentMode : uint8_t {
  kJoin,      // nothing
  kSeparate,  // windows run across them, but labels do not, and positions begin again
  kPack,      // as many whole documents as fit into a window; longer ones are cut
  kPad,       // one document a window
};
template <>
inline constexpr auto kEnumNames<DocumentMode> = name_table("join", "separate", "pack", "pad");

// What becomes of pictures before a graph's input takes them, by torchvision's rules.
struct ImageSettings {
  ImageCrop crop = ImageCrop::kCenter;
  // Before the crop, not with random_resized: the shorter side, or height and width. Empty: as much as the input needs
  // (center), its size (none), not at all (random).
  std::vector<int64_t> resize;
  ImageFilter interpolation = ImageFilter::kBilinear;
  std::array<double, 2> scale = {0.08, 1};           // random_resized: share of the picture's area
  std::array<double, 2> ratio = {3.0 / 4, 4.0 / 3};  // random_resized: width over height
  int64_t padding = 0;                               // random: zeros on each side
  double flip = 0;                                   // probability of left for right
  std::vector<double> mean, std;                     // of each channel, of pixels in [0, 1]; empty: 0 and 1
  bool operator==(const ImageSettings&) const = default;
};

}  // namespace partita
