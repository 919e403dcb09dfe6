// In which order a nest adds up, which decides how its sums are rounded.
#pragma once

#include <cstdint>
#include <vector>

#include "ir/nest/loop_nest.h"
#include "ir/type/tensor_type.h"

namespace partita {

inline constexpr int64_t kUnitPoints = 4096;        // points that are worth handing to another thread
inline constexpr int64_t kChunk = 4096;             // columns of a row, where one long loop is cut into rows
inline constexpr int64_t kSerialReduction = 16384;  // elements that one thread may reduce to a scalar on its own
inline constexpr int64_t kWideFold = 1 << 17;       // columns of a fold at most
inline constexpr int64_t kFewestRows = 8;           // of a fold
inline constexpr int64_t kStrictRows = 16;          // of a unit of a strict fold, where that makes few units
inline constexpr int64_t kRowPoints = 256;          // that make up a row worth vectorizing
inline constexpr int64_t kFoldUnits = 64;  // partial results of a fold at most, as many as there may be threads

// Elements come in row-major order. Loops over columns go one within the other; a fold adds up rows, so many a unit,
// and then what the units have left.
struct ReductionOrder {
  std::vector<int64_t> columns;  // points of the loops over what a row reduces, outermost first
  int64_t lanes = 0;             // the last of them goes in vectors of elements of so many bytes; 0: one by one
  int64_t clip = 0;              // as LoopNest::clip
  int64_t rows = 0;              // of a fold
  int64_t rows_per_unit = 0;
  bool operator==(const ReductionOrder&) const = default;
};

// Of all reductions of a scheduled nest over its columns.
ReductionOrder column_order(const LoopNest& nest);
// Of a fold of it.
ReductionOrder fold_order(const LoopNest& nest, const NestFold& fold);

// Of a strict fold over so many rows: by their number alone, so that ranks that divide what is kept add up alike.
int64_t strict_rows_per_unit(int64_t rows);

// The order in which every strict nest reduces a value of this shape and type over some of its dimensions,
// `reduced`, whatever else it computes. Empty where there is nothing to add up.
ReductionOrder strict_order(const Shape& shape, const std::vector<bool>& reduced, DType type);
// Of the partial results that a strict fold leaves, `extent` elements each.
ReductionOrder strict_order_of_parts(int64_t parts, int64_t extent, DType type);

// The innermost dimensions that make up a row worth vectorizing.
std::vector<bool> inner_columns(const Shape& shape);

}  // namespace partita
