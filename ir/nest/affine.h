// Index expressions of loop nests: offset + sum of coefficient * loop index, one coefficient for each loop.
#pragma once

#include <cstdint>
#include <vector>

#include "ir/type/tensor_type.h"

namespace partita {

struct Affine {
  int64_t offset = 0;
  std::vector<int64_t> coefficients;  // one per loop
  bool operator==(const Affine&) const = default;
};
// The index along each dimension of a value, as seen from a point of the loops.
using IndexMap = std::vector<Affine>;

Affine constant_index(int64_t value, size_t loops);
Affine operator+(Affine a, const Affine& b);
Affine operator*(Affine a, int64_t factor);

// Smallest and largest value over loops of these sizes (each at least 1).
int64_t lowest(const Affine& a, const std::vector<int64_t>& sizes);
int64_t highest(const Affine& a, const std::vector<int64_t>& sizes);

// The row-major element number of `map` in a tensor of `shape`.
Affine linearize(const IndexMap& map, const Shape& shape, size_t loops);

// The inverse: the index along each dimension of `shape`, from an element number. Exact only where every loop's steps
// stay within one dimension; kSplit: they would if loop `split.loop` were two, the inner one of size `split.inner`.
enum class Fit { kYes, kSplit, kNo };
struct LoopSplit {
  int loop = -1;
  int64_t inner = 1;
};
Fit delinearize(Affine linear, const Shape& shape, const std::vector<int64_t>& sizes, IndexMap& map, LoopSplit& split);

}  // namespace partita
