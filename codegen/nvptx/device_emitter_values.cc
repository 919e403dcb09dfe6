// Values at a point: of the row, or of one of an element's neighbouring points.
#include "base/status.h"
#include "codegen/nvptx/device_emitter_impl.h"
#include "ir/nest/affine.h"

namespace partita {

using llvm::Value;

bool DeviceEmitter::along_columns(int node) const {
  for (size_t k = static_cast<size_t>(first_column_); k < nest_.sizes.size(); ++k) {
    if (varies_[node][k]) return true;
  }
  return false;
}

bool DeviceEmitter::is_wide(const NestAccess& a) const {
  for (size_t k = static_cast<size_t>(first_column_); k < a.strides.size(); ++k) {
    if (a.strides[k] != 0) return true;
  }
  return false;
}

Value* DeviceEmitter::row_value(int id, Row& row) {
  if (row.known[id] == nullptr) row.known[id] = apply(id, row, nullptr, 0);
  return row.known[id];
}

// Values that do not vary along the last loop are the first point's.
Value* DeviceEmitter::value(int id, Row& row, Element& e, unsigned v) {
  if (!along_columns(id)) return row_value(id, row);
  if (!along_last(id)) v = 0;
  Value*& known = e.known[v][id];
  if (known != nullptr) return known;
  const NestAccess* access = nest_.nodes[id].op == NestOp::kLoad ? &nest_.nodes[id].access : nullptr;
  if (pass_ > level_[id]) {
    for (const NestStore& kept : nest_.kept) {
      if (kept.node == id) access = &kept.access;
    }
  }
  if (access == nullptr) {
    Value* made = apply(id, row, &e, v);
    return e.known[v][id] = made;
  }
  int64_t step = access->strides[last_loop()];
  if (step == 1 && s_.vector > 1) {
    load_vector(*access, id, e);
    return known;
  }
  return e.known[v][id] = load(*access, e.index, step * v);
}

// `e` is null for a value of the row.
Value* DeviceEmitter::apply(int id, Row& row, Element* e, unsigned v) {
  const NestNode& node = nest_.nodes[id];
  const std::vector<Value*>& index = e == nullptr ? row.index : e->index;
  int64_t step = node.access.strides.empty() || last_loop() < 0 ? 0 : node.access.strides[last_loop()] * int64_t{v};
  switch (node.op) {
    case NestOp::kLoad:
      return load(node.access, index, step);
    case NestOp::kIndex:
      return b_.CreateSExt(element_number(node.access, index, step), b_.getInt64Ty());
    case NestOp::kReduce:
      PARTITA_CHECK(false, "a reduction that its pass did not compute");
    case NestOp::kScalar:
      break;
  }
  const ScalarNode& s = node.scalar;
  if (s.op == ScalarOp::kConstant) return math_.constant(s.type, s.f, s.i, 1);
  if (Value* same = e == nullptr ? nullptr : is_at(s, row, *e, v)) return same;
  Value* operands[3] = {nullptr, nullptr, nullptr};
  int ids[3] = {s.a, s.b, s.c};
  for (int k = 0; k < 3; ++k) {
    if (ids[k] >= 0) operands[k] = e == nullptr ? row_value(ids[k], row) : value(ids[k], row, *e, v);
  }
  return rounded(s.type, math_.apply(s, nest_.nodes[s.a].scalar.type, operands[0], operands[1], operands[2]));
}

// As it would be read back from memory, where it has to be the same.
Value* DeviceEmitter::rounded(DType type, Value* v) {
  const bool narrow = type == DType::kF16 || type == DType::kBF16;
  return nest_.strict && narrow ? math_.from_stored(type, math_.to_stored(type, v)) : v;
}

// Whether the index of a point is a number that all points of the vector have, such as a row's label: how far that is
// from the first point is known once for all, in 32 bits, and takes no register for each. nullptr: it is another
// comparison.
Value* DeviceEmitter::is_at(const ScalarNode& s, Row& row, Element& e, unsigned v) {
  if (s.op != ScalarOp::kEq || s_.vector == 1 || s_.wide) return nullptr;
  const NestNode& index = nest_.nodes[s.a];
  if (index.op != NestOp::kIndex || along_last(s.b) || index.access.strides[last_loop()] != 1) return nullptr;
  if (lowest({index.access.offset, index.access.strides}, nest_.sizes) < 0) return nullptr;
  Value* wanted = value(s.b, row, e, 0);
  constexpr uint64_t kBeyond = uint64_t{1} << 31;  // of every index here
  Value* narrow = b_.CreateSelect(b_.CreateICmpULT(wanted, b_.getInt64(kBeyond)),
                                  b_.CreateTrunc(wanted, b_.getInt32Ty()), b_.getInt32(~0u));
  return b_.CreateICmpEQ(b_.CreateSub(narrow, element_number(index.access, e.index, 0)), b_.getInt32(v));
}

// Offset + `add` + sum of stride * index.
Value* DeviceEmitter::element_number(const NestAccess& a, const std::vector<Value*>& index, int64_t add) {
  Value* at = n(a.offset + add);
  for (size_t k = 0; k < a.strides.size(); ++k) {
    if (a.strides[k] == 0) continue;
    PARTITA_CHECK(index[k] != nullptr, "a loop index before its loop");
    at = b_.CreateAdd(at, a.strides[k] == 1 ? index[k] : b_.CreateMul(index[k], n(a.strides[k])));
  }
  return at;
}

Value* DeviceEmitter::pointer(int operand, Value* at) {
  return b_.CreateInBoundsGEP(stored_type(context_, nest_.operands[operand], 1), buffer(operand),
                              b_.CreateSExt(at, b_.getInt64Ty()));
}

Value* DeviceEmitter::load(const NestAccess& a, const std::vector<Value*>& index, int64_t add) {
  DType type = nest_.operands[a.operand];
  Value* p = pointer(a.operand, element_number(a, index, add));
  return math_.from_stored(type, b_.CreateAlignedLoad(stored_type(context_, type, 1), p, alignment(a.operand, 1)));
}

void DeviceEmitter::load_vector(const NestAccess& a, int id, Element& e) {
  unsigned vector = static_cast<unsigned>(s_.vector);
  DType type = nest_.operands[a.operand];
  Value* p = pointer(a.operand, element_number(a, e.index, 0));
  // Two bytes as one number: <2 x i8> is no type of PTX, and one that is read behind a branch goes through local
  // memory.
  const bool pair = vector == 2 && dtype_size(type) == 1;
  llvm::Type* whole = pair ? b_.getInt16Ty() : stored_type(context_, type, vector);
  Value* all = b_.CreateAlignedLoad(whole, p, alignment(a.operand, vector));
  for (unsigned v = 0; v < vector; ++v) {
    Value* one = pair ? b_.CreateTrunc(b_.CreateLShr(all, uint64_t{8} * v), b_.getInt8Ty())
                      : b_.CreateExtractElement(all, uint64_t{v});
    e.known[v][id] = math_.from_stored(type, one);
  }
}

// The values are known already.
void DeviceEmitter::store(const NestStore& s, Row& row, Element& e) {
  DType type = nest_.operands[s.access.operand];
  unsigned vector = static_cast<unsigned>(s_.vector);
  int64_t step = last_loop() < 0 ? 0 : s.access.strides[last_loop()];
  auto stored = [&](unsigned v) { return math_.to_stored(type, value(s.node, row, e, v)); };
  auto put = [&] {
    if (step == 1 && vector > 1 && is_wide(s.access)) {
      Value* all = llvm::PoisonValue::get(stored_type(context_, type, vector));
      for (unsigned v = 0; v < vector; ++v) all = b_.CreateInsertElement(all, stored(v), uint64_t{v});
      b_.CreateAlignedStore(all, pointer(s.access.operand, element_number(s.access, e.index, 0)),
                            alignment(s.access.operand, vector));
      return;
    }
    unsigned count = step != 0 && is_wide(s.access) ? vector : 1;
    for (unsigned v = 0; v < count; ++v)
      b_.CreateAlignedStore(stored(v), pointer(s.access.operand, element_number(s.access, e.index, step * v)),
                            alignment(s.access.operand, 1));
  };
  if_inside(is_wide(s.access) ? both(row.inside, e.inside) : nullptr, put);
}

}  // namespace partita
