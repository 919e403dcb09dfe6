// Static tensor types. Shapes are in elements, outermost first; a rank-0 shape is a scalar.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/dtype.h"

namespace partita {

using Shape = std::vector<int64_t>;

struct TensorType {
  DType dtype = DType::kInvalid;
  Shape shape;

  int rank() const { return static_cast<int>(shape.size()); }
  bool operator==(const TensorType&) const = default;
};

// Number of elements; nullopt where there are more than 64 dimensions, one is negative, or the product (zeros aside)
// passes 2^59, so that bytes fit too.
std::optional<int64_t> checked_elements(const Shape& shape);
// Number of elements of a shape that is known to be sound (every type inside a Graph is).
int64_t elements(const Shape& shape);
// Bytes of a tensor of this type, unpadded.
int64_t byte_size(const TensorType& type);
// Row-major strides in elements.
std::vector<int64_t> row_major_strides(const Shape& shape);
// NumPy's broadcasting of two shapes; nullopt where they do not fit.
std::optional<Shape> broadcast_shapes(const Shape& a, const Shape& b);

std::string to_string(const Shape& shape);      // "[2,3]"
std::string to_string(const TensorType& type);  // "f32[2,3]"

}  // namespace partita
