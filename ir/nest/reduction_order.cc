#include "ir/nest/reduction_order.h"

#include <algorithm>

namespace partita {
namespace {

int64_t rows_per_unit(int64_t rows, int64_t points) {
  const int64_t worth = std::clamp<int64_t>(kUnitPoints / std::max<int64_t>(points, 1), 1, std::max<int64_t>(rows, 1));
  return std::max(worth, (rows + kFoldUnits - 1) / kFoldUnits);
}

int64_t lanes_of(DType type) { return type == DType::kF64 ? 8 : std::max<int64_t>(4, dtype_size(type)); }

// Of everything: rows are reduced first, those of one long loop are parts of it.
ReductionOrder total_order(const Shape& shape, int64_t size, DType type) {
  const std::vector<bool> column = inner_columns(shape);
  int64_t columns = 1;
  for (size_t d = 0; d < shape.size(); ++d) columns *= column[d] ? shape[d] : 1;
  ReductionOrder order{.columns = {columns}, .lanes = lanes_of(type), .rows = size / columns};
  if (columns >= 2 * kChunk) {
    order.columns = {kChunk};
    order.rows *= (columns + kChunk - 1) / kChunk;
    order.clip = columns % kChunk == 0 ? 0 : columns;
  }
  order.rows_per_unit = rows_per_unit(order.rows, order.columns[0]);
  return order;
}

}  // namespace

ReductionOrder column_order(const LoopNest& nest) {
  ReductionOrder order{.columns = {nest.sizes.begin() + nest.rows(), nest.sizes.end()}, .clip = nest.clip};
  order.lanes = nest.lane_is_row || nest.columns == 0 ? 0 : lane_bytes(nest);
  return order;
}

ReductionOrder fold_order(const LoopNest& nest, const NestFold& fold) {
  const bool total = nest.nodes[static_cast<size_t>(fold.node)].op == NestOp::kReduce;
  if (!total && nest.items() == 1) return {};
  ReductionOrder order = total ? column_order(nest) : ReductionOrder{};
  order.rows = nest.items();
  order.rows_per_unit = nest.rows_per_unit;
  return order;
}

int64_t strict_rows_per_unit(int64_t rows) {
  return std::max(std::clamp<int64_t>(rows, 1, kStrictRows), (rows + kFoldUnits - 1) / kFoldUnits);
}

ReductionOrder strict_order(const Shape& shape, const std::vector<bool>& reduced, DType type) {
  ReductionOrder order;
  int64_t size = 1, kept = 1, terms = 1;
  bool innermost = false, beside = false;
  for (size_t d = 0; d < shape.size(); ++d) {
    if (shape[d] == 1) continue;
    size *= shape[d];
    (reduced[d] ? terms : kept) *= shape[d];
    innermost = reduced[d];
    if (innermost && beside) order.columns.back() *= shape[d];
    if (innermost && !beside) order.columns.push_back(shape[d]);
    beside = innermost;
  }
  if (terms == 1) return {};
  if (kept == 1 && size > kSerialReduction) return total_order(shape, size, type);
  if (innermost) {
    order.lanes = lanes_of(type);
  } else if (kept <= kWideFold && terms >= kFewestRows) {
    return {.rows = terms, .rows_per_unit = strict_rows_per_unit(terms)};
  }
  return order;
}

ReductionOrder strict_order_of_parts(int64_t parts, int64_t extent, DType type) {
  if (parts == 1) return {};
  return {.columns = {parts}, .lanes = extent == 1 ? lanes_of(type) : 0};
}

std::vector<bool> inner_columns(const Shape& shape) {
  std::vector<bool> column(shape.size(), false);
  int64_t n = 1;
  for (size_t d = shape.size(); d-- > 0 && n < kRowPoints;) {
    column[d] = true;
    n *= shape[d];
  }
  return column;
}

}  // namespace partita
