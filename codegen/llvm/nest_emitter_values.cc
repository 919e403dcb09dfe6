#include "codegen/llvm/nest_emitter_impl.h"

#include "base/status.h"

namespace partita {

using llvm::Value;

bool NestEmitter::is_wide(const NestAccess& a) const {
  for (size_t k = static_cast<size_t>(rows_); k < a.strides.size(); ++k) {
    if (a.strides[k] != 0) return true;
  }
  return false;
}

bool NestEmitter::along_columns(int node) const {
  for (size_t k = static_cast<size_t>(rows_); k < nest_.sizes.size(); ++k) {
    if (varies_[node][k]) return true;
  }
  return false;
}

Value* NestEmitter::value(int id, Point& point) {
  Value*& known = point.known[id];
  if (known != nullptr) return known;
  const NestNode& node = nest_.nodes[id];
  unsigned lanes = along_lane(id) ? point.lanes : 1;
  if (pass_ > level_[id] && along_columns(id)) {
    for (const NestStore& kept : nest_.kept) {
      if (kept.node == id)
        return known = load(kept.access, point, lane_ >= 0 && kept.access.strides[lane_] != 0 ? point.lanes : 1);
    }
  }
  switch (node.op) {
    case NestOp::kLoad:
      return known = load(node.access, point, lanes);
    case NestOp::kIndex:
      return known = index(node, point, lanes);
    case NestOp::kReduce:
      PARTITA_CHECK(false, "a reduction that its pass did not compute");
    case NestOp::kScalar:
      break;
  }
  const ScalarNode& s = node.scalar;
  if (s.op == ScalarOp::kConstant) return known = math_.constant(s.type, s.f, s.i, 1);
  Value* operands[3] = {nullptr, nullptr, nullptr};
  int ids[3] = {s.a, s.b, s.c};
  for (int k = 0; k < 3; ++k) {
    if (ids[k] < 0) continue;
    operands[k] = value(ids[k], point);
    if (lanes > 1 && !operands[k]->getType()->isVectorTy()) operands[k] = b_.CreateVectorSplat(lanes, operands[k]);
  }
  DType from = nest_.nodes[s.a].scalar.type;
  return point.known[id] = rounded(s.type, math_.apply(s, from, operands[0], operands[1], operands[2]));
}

// As it would be read back from memory, where it has to be the same.
Value* NestEmitter::rounded(DType type, Value* v) {
  const bool narrow = type == DType::kF16 || type == DType::kBF16;
  return nest_.strict && narrow ? math_.from_stored(type, math_.to_stored(type, v)) : v;
}

// Element number at a point: what stays the same in inner loops first, so that it can be hoisted.
Value* NestEmitter::element_number(const NestAccess& a, const Point& point) {
  Value* at = n(a.offset);
  for (size_t k = 0; k < a.strides.size(); ++k) {
    if (a.strides[k] == 0) continue;
    PARTITA_CHECK(point.index[k] != nullptr, "a loop index before its loop");
    Value* step = a.strides[k] == 1 ? point.index[k] : b_.CreateMul(point.index[k], n(a.strides[k]));
    at = b_.CreateAdd(at, step);
  }
  return at;
}

Value* NestEmitter::index(const NestNode& node, const Point& point, unsigned lanes) {
  Value* at = element_number(node.access, point);
  if (lanes == 1) return at;
  std::vector<llvm::Constant*> steps;
  for (unsigned k = 0; k < lanes; ++k)
    steps.push_back(b_.getInt64(static_cast<uint64_t>(static_cast<int64_t>(k) * node.access.strides[lane_])));
  return b_.CreateAdd(b_.CreateVectorSplat(lanes, at), llvm::ConstantVector::get(steps));
}

Value* NestEmitter::lane_pointers(DType type, Value* base, unsigned lanes, int64_t stride) {
  std::vector<llvm::Constant*> steps;
  for (unsigned k = 0; k < lanes; ++k)
    steps.push_back(b_.getInt64(static_cast<uint64_t>(static_cast<int64_t>(k) * stride)));
  return b_.CreateGEP(stored_type(context_, type, 1), base, llvm::ConstantVector::get(steps));
}

Value* NestEmitter::load_vector(DType type, Value* p, unsigned lanes, Value* mask, int64_t stride) {
  llvm::Type* t = stored_type(context_, type, lanes);
  if (lanes == 1) return b_.CreateAlignedLoad(t, p, alignment(type));
  if (stride != 1)
    return b_.CreateMaskedGather(t, lane_pointers(type, p, lanes, stride), alignment(type),
                                 mask == nullptr ? all_lanes(lanes) : mask, llvm::Constant::getNullValue(t));
  if (mask == nullptr) return b_.CreateAlignedLoad(t, p, alignment(type));
  return b_.CreateMaskedLoad(t, p, alignment(type), mask, llvm::Constant::getNullValue(t));
}

void NestEmitter::store_vector(DType type, Value* v, Value* p, unsigned lanes, Value* mask, int64_t stride) {
  if (lanes == 1) {
    b_.CreateAlignedStore(v, p, alignment(type));
  } else if (stride != 1) {
    b_.CreateMaskedScatter(v, lane_pointers(type, p, lanes, stride), alignment(type),
                           mask == nullptr ? all_lanes(lanes) : mask);
  } else if (mask == nullptr) {
    b_.CreateAlignedStore(v, p, alignment(type));
  } else {
    b_.CreateMaskedStore(v, p, alignment(type), mask);
  }
}

Value* NestEmitter::load(const NestAccess& a, const Point& point, unsigned lanes) {
  DType type = nest_.operands[a.operand];
  Value* p = pointer(a.operand, element_number(a, point));
  return math_.from_stored(type, load_vector(type, p, lanes, point.mask, lane_ >= 0 ? a.strides[lane_] : 0));
}

void NestEmitter::store(const NestStore& s, Point& point) {
  DType type = nest_.operands[s.access.operand];
  unsigned lanes = lane_ >= 0 && s.access.strides[lane_] != 0 ? point.lanes : 1;
  Value* v = value(s.node, point);
  if (lanes > 1 && !v->getType()->isVectorTy()) v = b_.CreateVectorSplat(lanes, v);
  Value* p = pointer(s.access.operand, element_number(s.access, point));
  store_vector(type, math_.to_stored(type, v), p, lanes, point.mask, lane_ >= 0 ? s.access.strides[lane_] : 0);
}

}  // namespace partita
