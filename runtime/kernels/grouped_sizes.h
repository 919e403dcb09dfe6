// What grouped_matmul and its gradient compute, whoever computes it.
#pragma once

#include "runtime/kernels/kernel_request.h"

namespace partita::runtime {

// y [rows, columns] = x [rows, inner] times, for each row, one of `matrices` [inner, columns] (or, transposed,
// [columns, inner]); the gradient of the matrices is the sum of a [rows, inner] and b [rows, columns] over the rows of
// each.
struct GroupedSizes {
  int64_t rows, inner, columns, matrices;
  bool transposed = false;

  int64_t matrix() const { return inner * columns; }

  // InvalidArgument where the operands do not fit together.
  static absl::StatusOr<GroupedSizes> of_product(const KernelRequest& r);
  static absl::StatusOr<GroupedSizes> of_gradient(const KernelRequest& r);
};

}  // namespace partita::runtime
