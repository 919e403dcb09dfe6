// Tensors that somebody else computed, PyTorch say, as a side of a comparison.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "tools/compare/rank_copies.h"

namespace partita {

// The tensors of a safetensors file whose keys are names of values of the serial graph (ONNX's), of states or inputs:
// of all samples of a step, in their order. InvalidArgument: a key that is no such name (with the nearest), another
// shape or type than the value's.
absl::StatusOr<RankCopies::Copies> read_dump(const std::string& path, const verifier::SerialValues& serial,
                                             StepRuns runs);

}  // namespace partita
