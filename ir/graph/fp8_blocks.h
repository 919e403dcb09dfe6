// Where values are roundings to fp8 (ir/ops/round_to_fp8.cc), and how their blocks lie in a matrix.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "ir/graph/graph.h"

namespace partita {

// A block of a matrix: so many of its rows and columns, side by side.
struct Fp8Block {
  int64_t rows = 1, columns = 1;
  bool operator==(const Fp8Block&) const = default;
};
// Of `shape` with blocks over `dims`, in rows of `columns` elements; nullopt where a block is no rectangle of those.
std::optional<Fp8Block> fp8_block(const Shape& shape, const std::vector<int64_t>& dims, int64_t columns);

// A shape with each of some dimensions as two: blocks, and what is inside of one.
struct BlockedShape {
  Shape shape;
  std::vector<int64_t> dims;  // those inside
};
// `dims` of the shape are multiples of `block`.
BlockedShape in_blocks(const Shape& shape, const std::vector<int64_t>& dims, int64_t block);

// What a value is the rounding of.
struct Fp8Rounding : BlockedShape {
  ValueId of = kNoValue;
  std::string format;
};
// By result. Values are those of `now`, which `graph` has become, and no views: `became`, per value of `graph`, which
// one it is there, or kNoValue.
std::map<ValueId, Fp8Rounding> fp8_roundings(const Graph& graph, const Graph& now, const std::vector<ValueId>& became);

}  // namespace partita
