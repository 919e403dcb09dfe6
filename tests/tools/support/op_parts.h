// Parts of an op's operands, and what of a serial value a rank's is, as the verifier's layouts say.
#pragma once

#include <algorithm>
#include <vector>

#include "ir/ops/indexing.h"
#include "tools/verify/layout/index_map.h"

namespace partita::verifier {

// The dimension that is `factor` alone; -1 where the operand has none.
inline int dimension_of(const FormulaOperand& operand, int factor) {
  const auto at = std::find(operand.dims.begin(), operand.dims.end(), std::vector<int>{factor});
  return at == operand.dims.end() ? -1 : static_cast<int>(at - operand.dims.begin());
}

// Indices `from`, `from` + `step`, … along a dimension, `size` of them.
inline Tensor along(const Tensor& t, int dim, int64_t from, int64_t step, int64_t size) {
  TensorType type = t.type;
  type.shape[static_cast<size_t>(dim)] = size;
  Tensor out = Tensor::zeros(type);
  int64_t at = 0;
  for_each_index(type.shape, [&](std::vector<int64_t> index) {
    int64_t& i = index[static_cast<size_t>(dim)];
    i = from + i * step;
    copy_element(t, position(index, t.type.shape), out, at++);
  });
  return out;
}

inline int64_t element_of(const std::vector<Digit>& digits, int64_t index) {
  int64_t element = 0;
  for (size_t d = digits.size(); d-- > 0; index /= digits[d].size) element += index % digits[d].size * digits[d].stride;
  return element;
}

// The element of the root that an element of a rank's value is.
inline int64_t root_element(const IndexMap& layout, int64_t index, int64_t rank) {
  int64_t element = element_of(layout.digits, index);
  for (const AxisDigit& a : layout.axes) element += rank / a.divisor % a.size * a.stride;
  return layout.through.empty() ? element : element_of(layout.through, element);
}

}  // namespace partita::verifier
