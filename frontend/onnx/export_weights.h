// An ONNX file with other weights: what a training run gives back.
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "ir/type/tensor_type.h"

namespace partita {

// New bytes of an initializer (row-major, in its own dtype), or nothing to leave it as it is.
using WeightValues = std::function<absl::StatusOr<std::optional<std::vector<std::byte>>>(const std::string& name,
                                                                                         const TensorType& type)>;

// Writes the graph of `model` to `output` (a path ending in .onnx), its new weights to OUTPUT.weights beside it as
// external data, and those that were external before along with them. Returns how many were replaced. Both files appear
// whole or not at all, the graph last. InvalidArgument, NotFound (external data of `model` that are not there).
absl::StatusOr<int64_t> write_onnx_with_weights(const std::string& model, const std::string& output,
                                                const WeightValues& values);

}  // namespace partita
