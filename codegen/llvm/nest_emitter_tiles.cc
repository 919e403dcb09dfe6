// Squares of as many rows as lanes, so that loads along the rows can be turned in registers.
#include "codegen/llvm/nest_emitter_impl.h"

#include <algorithm>

namespace partita {

using llvm::Value;

bool NestEmitter::is_turned(const NestNode& node) const {
  if (node.op != NestOp::kLoad || node.access.strides[lane_] == 0 || node.access.strides[lane_] == 1 ||
      node.access.strides[nest_.tile] != 1)
    return false;
  return dtype_size(nest_.operands[node.access.operand]) >= 4;
}

void NestEmitter::tiles(Point& row) {
  int64_t rows = nest_.sizes[nest_.tile], columns = nest_.sizes[lane_], side = vector_;
  Value* start = b_.CreateMul(row.index[nest_.tile], n(kTileRows));
  Value* end =
      rows % kTileRows == 0 ? b_.CreateAdd(start, n(kTileRows)) : minimum(b_.CreateAdd(start, n(kTileRows)), n(rows));
  bool small = static_cast<int64_t>(nest_.nodes.size()) * side <= 512;
  Value* even = !small             ? start
                : rows % side == 0 ? end
                                   : b_.CreateAdd(start, b_.CreateAnd(b_.CreateSub(end, start), n(-side)));
  int64_t whole = small ? columns / side * side : 0;
  loop(n(0), n(whole), side, {}, [&](Value* column, std::vector<Value*>) {
    return loop(start, even, side, {},
                [&](Value* at, std::vector<Value*>) { return tile_at(row, at, column), std::vector<Value*>{}; });
  });
  auto row_at = [&](Value* at, int64_t from) {
    std::vector<Point> one{row};
    one[0].index[nest_.tile] = at;
    first_column_ = from;
    row_body(one);
    first_column_ = 0;
    return std::vector<Value*>{};
  };
  if (whole < columns) loop(start, even, 1, {}, [&](Value* at, std::vector<Value*>) { return row_at(at, whole); });
  if (!small || rows % side != 0) loop(even, end, 1, {}, [&](Value* at, std::vector<Value*>) { return row_at(at, 0); });
}

void NestEmitter::tile_at(const Point& row, Value* at, Value* column) {
  std::vector<Point> points(vector_, row);
  for (unsigned t = 0; t < vector_; ++t) {
    points[t].index[nest_.tile] = b_.CreateAdd(at, n(t));
    points[t].index[lane_] = column;
    points[t].lanes = vector_;
  }
  for (size_t k = 0; k < nest_.nodes.size(); ++k) {
    const NestNode& node = nest_.nodes[k];
    if (!is_turned(node)) continue;
    std::vector<Value*> square;
    DType type = nest_.operands[node.access.operand];
    for (unsigned l = 0; l < vector_; ++l) {
      Point p = row;
      p.index[nest_.tile] = at;
      p.index[lane_] = b_.CreateAdd(column, n(l));
      Value* where = pointer(node.access.operand, element_number(node.access, p));
      square.push_back(math_.from_stored(type, load_vector(type, where, vector_, nullptr, 1)));
    }
    turn(square);
    for (unsigned t = 0; t < vector_; ++t) points[t].known[k] = square[t];
  }
  Work work;
  for (size_t k = 0; k < nest_.stores.size(); ++k) work.stores.push_back(static_cast<int>(k));
  pass_ = 0;
  for (unsigned t = 0; t < vector_; ++t) element(points[t], 0, work, {});
}

// Transposes a square of vectors: bit by bit, row and lane numbers change places.
void NestEmitter::turn(std::vector<Value*>& square) {
  int side = static_cast<int>(square.size());
  for (int bit = 1; bit < side; bit *= 2) {
    std::vector<int> low(side), high(side);
    for (int k = 0; k < side; ++k) {
      low[k] = k & bit ? side + k - bit : k;
      high[k] = k & bit ? side + k : k + bit;
    }
    for (int k = 0; k < side; ++k) {
      if (k & bit) continue;
      Value *a = square[k], *b = square[k + bit];
      square[k] = b_.CreateShuffleVector(a, b, low);
      square[k + bit] = b_.CreateShuffleVector(a, b, high);
    }
  }
}

}  // namespace partita
