#include "ir/type/tensor_type.h"

#include <algorithm>

namespace partita {

std::optional<int64_t> checked_elements(const Shape& shape) {
  constexpr int64_t kLimit = int64_t{1} << 59;  // bytes of the widest type stay below 2^62
  constexpr size_t kMaxRank = 64;
  if (shape.size() > kMaxRank) return std::nullopt;
  int64_t n = 1;
  bool zero = false;
  for (int64_t d : shape) {
    if (d < 0) return std::nullopt;
    if (d == 0) {
      zero = true;
      continue;
    }
    if (n > kLimit / d) return std::nullopt;
    n *= d;
  }
  return zero ? 0 : n;
}

int64_t elements(const Shape& shape) {
  int64_t n = 1;
  for (int64_t d : shape) n *= d;
  return n;
}

int64_t byte_size(const TensorType& type) { return elements(type.shape) * dtype_size(type.dtype); }

std::vector<int64_t> row_major_strides(const Shape& shape) {
  std::vector<int64_t> strides(shape.size(), 1);
  for (int i = static_cast<int>(shape.size()) - 2; i >= 0; --i) strides[i] = strides[i + 1] * shape[i + 1];
  return strides;
}

std::optional<Shape> broadcast_shapes(const Shape& a, const Shape& b) {
  Shape out(std::max(a.size(), b.size()));
  for (size_t i = 0; i < out.size(); ++i) {
    int64_t x = i < a.size() ? a[a.size() - 1 - i] : 1;
    int64_t y = i < b.size() ? b[b.size() - 1 - i] : 1;
    if (x != y && x != 1 && y != 1) return std::nullopt;
    out[out.size() - 1 - i] = x == 1 ? y : x;
  }
  return out;
}

std::string to_string(const Shape& shape) {
  std::string s = "[";
  for (size_t i = 0; i < shape.size(); ++i) s += (i ? "," : "") + std::to_string(shape[i]);
  return s + "]";
}

std::string to_string(const TensorType& type) { return std::string(dtype_name(type.dtype)) + to_string(type.shape); }

}  // namespace partita
