// A fusion group's code before any target: loops over rows and over the columns of a row, and a graph of scalar
// operations at each point.
//
//   rows [2048] columns [768]: f32 -> f32          softmax over the columns
//     %0 = load 0 [768 1]                          element address = offset + sum of stride * loop index
//     %1 = max over columns of %0                  a reduction: what uses it runs in a later pass over the row
//     %2 = sub %0 %1
//     %3 = exp %2
//     %4 = sum over columns of %3
//     %5 = div %3 %4
//     store 1 [768 1] = %5
//
// Values that vary along no column are computed once a row. A fold reduces over rows as well: each unit (a fixed number
// of rows) leaves a partial result.
#pragma once

#include <cstdint>
#include <vector>

#include "base/dtype.h"
#include "ir/op/scalar.h"

namespace partita {

enum class ReduceKind : uint8_t { kSum, kMax, kMin, kProd };

struct NestAccess {
  int operand = -1;
  std::vector<int64_t> strides;  // in elements, one per loop
  int64_t offset = 0;
  bool operator==(const NestAccess&) const = default;
};

enum class NestOp : uint8_t {
  kScalar,  // `scalar` on nodes scalar.a, b, c
  kLoad,    // `access`
  kIndex,   // i64: access.offset + sum of strides * loop indices
  kReduce,  // of node scalar.a over all columns, by `reduce`
};

struct NestNode {
  NestOp op = NestOp::kScalar;
  ScalarNode scalar{};  // scalar.type is the node's type in every case
  NestAccess access;
  ReduceKind reduce = ReduceKind::kSum;
  bool operator==(const NestNode&) const = default;
};

struct NestStore {
  int node = -1;
  NestAccess access;
};

// Reduces `node` over the rows of a unit (over its columns too where the node is a reduction) into operand[unit *
// extent + offset + strides of the columns].
struct NestFold {
  int node = -1;
  ReduceKind reduce = ReduceKind::kSum;
  NestAccess access;   // strides of row loops are 0
  int64_t extent = 1;  // elements from one unit's partial to the next
};

inline constexpr int64_t kLaneBlock = 64, kTileRows = 32;

struct LoopNest {
  std::vector<int64_t> sizes;  // row loops, then column loops
  int columns = 0;             // how many of them are column loops
  std::vector<DType> operands;
  int inputs = 0;  // operands [0, inputs) are only read; the others are written, and read back by their writers at most
  std::vector<NestNode> nodes;
  std::vector<NestStore> stores;
  std::vector<NestFold> folds;
  std::vector<NestStore> kept;  // stores whose place later passes read instead of computing the node again

  // What is computed does not depend on what else the nest computes: each operation is rounded to its own type, no
  // product is joined to the sum that it goes into, and reductions have the order of their shapes (reduction_order.h).
  bool strict = false;

  // The schedule.
  bool lane_is_row = false;  // vectorized over the last row loop instead of the last column loop
  int tile = -1;  // a row loop along which loads are contiguous that are not along the lanes: rows go in blocks of
                  // kTileRows, so that blocks can be transposed
  int64_t rows_per_unit = 1;  // a unit of work is that many items: points of the row loops, the last one in blocks of
                              // kLaneBlock where lane_is_row
  int64_t clip = 0;  // > 0: the last column loop ends at min(its size, clip - index of the last row loop * its size)

  // Points of a row loop, counted in blocks where it goes in blocks.
  int64_t blocks(int loop) const {
    int64_t block = lane_is_row && loop == rows() - 1 ? kLaneBlock : loop == tile ? kTileRows : 1;
    return (sizes[loop] + block - 1) / block;
  }
  int64_t items() const {
    int64_t n = 1;
    for (int k = 0; k < rows(); ++k) n *= blocks(k);
    return n;
  }
  int rows() const { return static_cast<int>(sizes.size()) - columns; }
};

// exp, log, tanh, …: operations that take tens of instructions.
bool is_transcendental(ScalarOp op);
// Which loops a node's value varies along, through its operands; a reduction varies along no column.
std::vector<std::vector<bool>> variation(const LoopNest& nest);
bool has_reductions(const LoopNest& nest);
// How many reductions deep each node is: the pass over a row in which it is first known.
std::vector<int> levels(const LoopNest& nest);
int64_t row_points(const LoopNest& nest);
int64_t column_points(const LoopNest& nest);
// Floating point operations and bytes moved by one run, each operand counted once.
int64_t flops(const LoopNest& nest);

// Bytes of the vectors' elements that a nest is computed in.
int64_t lane_bytes(const LoopNest& nest);

// Units of work of a scheduled nest.
int64_t units(const LoopNest& nest);

// The type of a kScalar node's value, from those of its operands; kInvalid where it lacks one.
DType result_type(const ScalarNode& scalar, const std::vector<NestNode>& nodes);

}  // namespace partita
