// Kinds that the compiler, rank programs and the runtime all speak of, by the same names.
#pragma once

#include <cstdint>

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
enum class DataKind : uint8_t { kNpz, kNpy, kTokens, kRaw, kSynthetic };
template <>
inline constexpr auto kEnumNames<DataKind> = name_table("npz", "npy", "tokens", "raw", "synthetic");

// What the ends of documents mean to windows of tokens.
enum class DocumentMode : uint8_t {
  kJoin,      // nothing
  kSeparate,  // windows run across them, but labels do not, and positions begin again
  kPack,      // as many whole documents as fit into a window; longer ones are cut
  kPad,       // one document a window
};
template <>
inline constexpr auto kEnumNames<DocumentMode> = name_table("join", "separate", "pack", "pad");

}  // namespace partita
