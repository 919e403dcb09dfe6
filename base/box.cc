#include "base/box.h"

#include <algorithm>

#include "base/cat.h"

namespace partita::runtime {

std::optional<int64_t> element_count(std::span<const int64_t> shape) {
  int64_t count = 1;
  bool empty = false;
  for (int64_t d : shape) {
    if (d < 0) return std::nullopt;
    if (d == 0) empty = true;
  }
  if (empty) return 0;
  for (int64_t d : shape) {
    if (__builtin_mul_overflow(count, d, &count) || count > (int64_t{1} << 62)) return std::nullopt;
  }
  return count;
}

std::string shape_text(std::span<const int64_t> shape) {
  // Shapes may come from a damaged file: a long one is cut.
  constexpr size_t kShown = 16;
  std::string out = "[";
  for (size_t d = 0; d < std::min(shape.size(), kShown); ++d) append(out, d ? ", " : "", shape[d]);
  return out + (shape.size() > kShown ? ", …]" : "]");
}

absl::Status check_box(std::span<const int64_t> shape, std::span<const int64_t> offset,
                       std::span<const int64_t> extent) {
  bool inside = offset.size() == shape.size() && extent.size() == shape.size();
  for (size_t d = 0; inside && d < shape.size(); ++d) {
    inside = offset[d] >= 0 && extent[d] >= 0 && offset[d] <= shape[d] && extent[d] <= shape[d] - offset[d];
  }
  if (inside) return absl::OkStatus();
  return absl::InvalidArgumentError(cat("box at ", shape_text(offset), " of extent ", shape_text(extent),
                                        " is not inside a tensor of shape ", shape_text(shape)));
}

// Trailing dimensions that the box covers whole merge with the one before them into a run; the others are counted
// through.
//   shape [4, 3, 8], offset [1, 0, 0], extent [2, 3, 8]  ->  one run of 48 elements at element 24
//   shape [4, 3, 8], offset [1, 1, 0], extent [2, 1, 8]  ->  runs of 8 at elements 32 and 56
absl::Status for_each_run(std::span<const int64_t> shape, std::span<const int64_t> offset,
                          std::span<const int64_t> extent,
                          absl::FunctionRef<absl::Status(int64_t, int64_t, int64_t)> run) {
  for (int64_t e : extent) {
    if (e == 0) return absl::OkStatus();
  }
  const size_t rank = shape.size();
  std::vector<int64_t> stride(rank, 1);
  for (size_t d = rank; d-- > 1;) stride[d - 1] = stride[d] * shape[d];
  int64_t start = 0, length = 1;
  for (size_t d = 0; d < rank; ++d) start += offset[d] * stride[d];
  size_t outer = rank;
  while (outer > 0) {
    --outer;
    length *= extent[outer];
    if (extent[outer] != shape[outer]) break;
  }
  std::vector<int64_t> index(outer, 0);
  for (int64_t packed = 0;; packed += length) {
    int64_t at = start;
    for (size_t d = 0; d < outer; ++d) at += index[d] * stride[d];
    if (absl::Status status = run(at, packed, length); !status.ok()) return status;
    size_t d = outer;
    while (d > 0 && ++index[d - 1] == extent[d - 1]) index[--d] = 0;
    if (d == 0) return absl::OkStatus();
  }
}

}  // namespace partita::runtime
