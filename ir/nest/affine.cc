#include "ir/nest/affine.h"

#include <algorithm>

namespace partita {

Affine constant_index(int64_t value, size_t loops) { return {value, std::vector<int64_t>(loops, 0)}; }

Affine operator+(Affine a, const Affine& b) {
  a.offset += b.offset;
  for (size_t k = 0; k < a.coefficients.size(); ++k) a.coefficients[k] += b.coefficients[k];
  return a;
}

Affine operator*(Affine a, int64_t factor) {
  a.offset *= factor;
  for (int64_t& c : a.coefficients) c *= factor;
  return a;
}

int64_t lowest(const Affine& a, const std::vector<int64_t>& sizes) {
  int64_t v = a.offset;
  for (size_t k = 0; k < sizes.size(); ++k) v += std::min<int64_t>(0, a.coefficients[k] * (sizes[k] - 1));
  return v;
}

int64_t highest(const Affine& a, const std::vector<int64_t>& sizes) {
  int64_t v = a.offset;
  for (size_t k = 0; k < sizes.size(); ++k) v += std::max<int64_t>(0, a.coefficients[k] * (sizes[k] - 1));
  return v;
}

Affine linearize(const IndexMap& map, const Shape& shape, size_t loops) {
  Affine at = constant_index(0, loops);
  int64_t stride = 1;
  for (size_t d = shape.size(); d-- > 0; stride *= shape[d]) at = at + map[d] * stride;
  return at;
}

Fit delinearize(Affine linear, const Shape& shape, const std::vector<int64_t>& sizes, IndexMap& map, LoopSplit& split) {
  size_t loops = sizes.size();
  map.assign(shape.size(), constant_index(0, loops));
  // The outermost dimension that is not 1 takes all that is left; no index there can be out of range.
  size_t first = 0;
  while (first + 1 < shape.size() && shape[first] == 1) ++first;
  for (size_t d = shape.size(); d-- > first;) {
    if (d == first) {
      map[d] = linear;
      break;
    }
    int64_t n = shape[d], reach = 0;
    if (n == 1) continue;
    if (linear.offset < 0) return Fit::kNo;
    Affine low = constant_index(linear.offset % n, loops), high = constant_index(linear.offset / n, loops);
    for (size_t k = 0; k < loops; ++k) {
      int64_t c = linear.coefficients[k];
      if (c == 0 || sizes[k] == 1) continue;
      if (c < 0) return Fit::kNo;
      if (c % n == 0) {
        high.coefficients[k] = c / n;
        continue;
      }
      if (c * (sizes[k] - 1) >= n) {
        if (n % c != 0 || sizes[k] % (n / c) != 0) return Fit::kNo;
        split = {static_cast<int>(k), n / c};
        return Fit::kSplit;
      }
      low.coefficients[k] = c;
      reach += c * (sizes[k] - 1);
    }
    if (low.offset + reach >= n) return Fit::kNo;
    map[d] = low;
    linear = high;
  }
  return Fit::kYes;
}

}  // namespace partita
