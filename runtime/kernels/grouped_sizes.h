// What grouped_matmul and its gradient compute, whoever computes it.
#pragma once

#include "runtime/kernels/kernel_request.h"

namespace partita::runtime {

// y [rows, columns] = x [rows, inner] times, for each row, one of `matrices` [inner, columns] (or, transposed,
// [columns, inner]); the gradient of the matrices is the sum of a [rows, inner] and b [rows, columns] over the rows of
// each. Rows are those of `parts` parts, one for each of `indices` in each of them; of a part those count whose index
// is one of its matrices', the others are zero in y.
struct GroupedSizes {
  // An operand's row for a row of all parts: operands may have one for every part, or for several indices.
  struct Rows {
    int64_t modulo, divisor;
    int64_t operator()(int64_t row) const { return row % modulo / divisor; }
  };

  int64_t indices = 0, inner = 0, columns = 0, matrices = 0;
  int64_t parts = 1, total = 0;  // total: matrices that indices count
  Rows a = {1, 1}, b = {1, 1};   // of x, or of the gradient's operands
  bool transposed = false;

  int64_t matrix() const { return inner * columns; }
  int64_t rows() const { return indices * parts; }

  // InvalidArgument where the operands do not fit together.
  static absl::StatusOr<GroupedSizes> of_product(const KernelRequest& r);
  static absl::StatusOr<GroupedSizes> of_gradient(const KernelRequest& r);
};

}  // namespace partita::runtime
