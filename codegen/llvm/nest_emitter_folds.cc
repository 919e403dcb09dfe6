// The partial results of a unit: in memory, one row after the other, or in accumulators for reductions of whole rows.
#include "codegen/llvm/nest_emitter_impl.h"

namespace partita {

using llvm::Value;

void NestEmitter::unit_with_folds(Value* unit) {
  unit_ = unit;
  for (const NestFold& f : nest_.folds) clear(f);
  Value* first = b_.CreateMul(unit, n(nest_.rows_per_unit));
  Value* last = minimum(b_.CreateAdd(first, n(nest_.rows_per_unit)), n(nest_.items()));
  std::vector<Value*> totals;
  for (const NestFold& f : nest_.folds) {
    if (nest_.nodes[f.node].op == NestOp::kReduce)
      totals.push_back(math_.identity(f.reduce, nest_.nodes[f.node].scalar.type, 1));
  }
  totals = loop(first, last, 1, std::move(totals), [&](Value* item, std::vector<Value*> now) {
    std::vector<Point> rows(1);
    rows[0].index = decode(item);
    rows[0].known.assign(nest_.nodes.size(), nullptr);
    row_body(rows);
    size_t k = 0;
    for (const NestFold& f : nest_.folds) {
      if (nest_.nodes[f.node].op != NestOp::kReduce) continue;
      now[k] = math_.combine(f.reduce, nest_.nodes[f.node].scalar.type, now[k], rows[0].known[f.node]);
      ++k;
    }
    return now;
  });
  size_t k = 0;
  for (const NestFold& f : nest_.folds) {
    if (nest_.nodes[f.node].op != NestOp::kReduce) continue;
    DType type = nest_.operands[f.access.operand];
    b_.CreateAlignedStore(math_.to_stored(type, totals[k++]), pointer(f.access.operand, unit), alignment(type));
  }
}

void NestEmitter::clear(const NestFold& f) {
  if (nest_.nodes[f.node].op == NestOp::kReduce) return;
  DType type = nest_.operands[f.access.operand];
  Value* zero = math_.to_stored(type, math_.identity(f.reduce, type, 1));
  Value* base = b_.CreateMul(unit_, n(f.extent));
  loop(n(0), n(f.extent), 1, {}, [&](Value* at, std::vector<Value*>) {
    b_.CreateAlignedStore(zero, pointer(f.access.operand, b_.CreateAdd(base, at)), alignment(type));
    return std::vector<Value*>{};
  });
}

void NestEmitter::fold(const NestFold& f, Point& point) {
  DType type = nest_.operands[f.access.operand];
  Value* v = value(f.node, point);
  Value* at = b_.CreateMul(unit_, n(f.extent));
  for (size_t k = 0; k < f.access.strides.size(); ++k) {
    if (f.access.strides[k] != 0) at = b_.CreateAdd(at, b_.CreateMul(point.index[k], n(f.access.strides[k])));
  }
  unsigned lanes = lane_ >= 0 && f.access.strides[lane_] != 0 ? point.lanes : 1;
  if (lanes > 1 && !v->getType()->isVectorTy()) v = b_.CreateVectorSplat(lanes, v);
  Value* p = pointer(f.access.operand, at);
  Value* old =
      math_.from_stored(type, load_vector(type, p, lanes, point.mask, lane_ >= 0 ? f.access.strides[lane_] : 0));
  store_vector(type, math_.to_stored(type, math_.combine(f.reduce, type, old, v)), p, lanes, point.mask,
               lane_ >= 0 ? f.access.strides[lane_] : 0);
}

}  // namespace partita
