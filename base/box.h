// Boxes (offset + extent per dimension) of a row-major tensor, and their rows that lie contiguously in it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"

namespace partita::runtime {

// Elements of `shape`; nothing when a dimension is negative or the product exceeds 2^62. An empty shape has one
// element.
std::optional<int64_t> element_count(std::span<const int64_t> shape);

// "[2, 3]"
std::string shape_text(std::span<const int64_t> shape);

// InvalidArgument (naming shape, offset, extent) unless the box lies inside `shape`.
absl::Status check_box(std::span<const int64_t> shape, std::span<const int64_t> offset,
                       std::span<const int64_t> extent);

// Calls `run(element in the tensor, element in the packed box, count)` for each longest contiguous run of the box, in
// order, until one call fails. The box must have passed check_box.
absl::Status for_each_run(std::span<const int64_t> shape, std::span<const int64_t> offset,
                          std::span<const int64_t> extent,
                          absl::FunctionRef<absl::Status(int64_t, int64_t, int64_t)> run);

}  // namespace partita::runtime
