#include "ir/nest/loop_nest.h"

#include <algorithm>

namespace partita {
bool is_transcendental(ScalarOp op) { return op == ScalarOp::kPow || (op >= ScalarOp::kExp && op <= ScalarOp::kCosh); }

std::vector<std::vector<bool>> variation(const LoopNest& nest) {
  size_t loops = nest.sizes.size();
  std::vector<std::vector<bool>> varies(nest.nodes.size(), std::vector<bool>(loops, false));
  for (size_t k = 0; k < nest.nodes.size(); ++k) {
    const NestNode& n = nest.nodes[k];
    for (size_t d = 0; d < loops && !n.access.strides.empty(); ++d) varies[k][d] = n.access.strides[d] != 0;
    for (int operand : {n.scalar.a, n.scalar.b, n.scalar.c}) {
      if (operand < 0) continue;
      size_t end = n.op == NestOp::kReduce ? static_cast<size_t>(nest.rows()) : loops;
      for (size_t d = 0; d < end; ++d) varies[k][d] = varies[k][d] || varies[operand][d];
    }
  }
  return varies;
}

bool has_reductions(const LoopNest& nest) {
  return std::any_of(nest.nodes.begin(), nest.nodes.end(), [](const NestNode& n) { return n.op == NestOp::kReduce; });
}

std::vector<int> levels(const LoopNest& nest) {
  std::vector<int> level(nest.nodes.size(), 0);
  for (size_t k = 0; k < nest.nodes.size(); ++k) {
    const NestNode& n = nest.nodes[k];
    for (int operand : {n.scalar.a, n.scalar.b, n.scalar.c}) {
      if (operand >= 0) level[k] = std::max(level[k], level[operand] + (n.op == NestOp::kReduce ? 1 : 0));
    }
  }
  return level;
}

int64_t row_points(const LoopNest& nest) {
  int64_t n = 1;
  for (int k = 0; k < nest.rows(); ++k) n *= nest.sizes[k];
  return n;
}

int64_t column_points(const LoopNest& nest) {
  int64_t n = 1;
  for (size_t k = static_cast<size_t>(nest.rows()); k < nest.sizes.size(); ++k) n *= nest.sizes[k];
  return n;
}

int64_t flops(const LoopNest& nest) {
  auto varies = variation(nest);
  int64_t total = 0, rows = row_points(nest), columns = column_points(nest);
  for (size_t k = 0; k < nest.nodes.size(); ++k) {
    const NestNode& n = nest.nodes[k];
    if (n.op == NestOp::kReduce) total += rows * columns;
    if (n.op != NestOp::kScalar || n.scalar.a < 0 || !is_float(n.scalar.type)) continue;
    bool along = std::find(varies[k].begin() + nest.rows(), varies[k].end(), true) != varies[k].end();
    total += along ? rows * columns : rows;
  }
  return total + static_cast<int64_t>(nest.folds.size()) * rows * columns;
}

int64_t lane_bytes(const LoopNest& nest) {
  bool wide = false;
  int64_t narrow = 8;
  for (const NestNode& n : nest.nodes) {
    wide = wide || n.scalar.type == DType::kF64;
    narrow = std::min(narrow, std::max<int64_t>(4, dtype_size(n.scalar.type)));
  }
  return wide ? 8 : narrow;
}

int64_t units(const LoopNest& nest) { return (nest.items() + nest.rows_per_unit - 1) / nest.rows_per_unit; }

DType result_type(const ScalarNode& scalar, const std::vector<NestNode>& nodes) {
  const auto type = [&](int id) { return id < 0 ? DType::kInvalid : nodes[static_cast<size_t>(id)].scalar.type; };
  switch (scalar.op) {
    case ScalarOp::kInput:
    case ScalarOp::kIndex:
      return DType::kInvalid;
    case ScalarOp::kConstant:
    case ScalarOp::kCast:
      return scalar.type;
    case ScalarOp::kEq:
    case ScalarOp::kNe:
    case ScalarOp::kLt:
    case ScalarOp::kLe:
    case ScalarOp::kIsNan:
    case ScalarOp::kIsInf:
      return DType::kBool;
    case ScalarOp::kSelect:
      return type(scalar.b);
    case ScalarOp::kPhilox:
      return DType::kU32;
    default:
      return type(scalar.a);
  }
}

}  // namespace partita
