#include "codegen/nest/loop_nest.h"

#include <algorithm>
#include <bit>

#include "base/cat.h"
#include "fmt/format.h"

namespace partita {
namespace {

constexpr std::string_view kScalarNames[] = {
    "input", "constant", "add",  "sub",   "mul",    "div",   "max",    "min",    "pow",   "mod",   "neg",  "abs",
    "sqrt",  "exp",      "log",  "log1p", "expm1",  "tanh",  "erf",    "sin",    "cos",   "tan",   "asin", "acos",
    "atan",  "sinh",     "cosh", "floor", "ceil",   "round", "eq",     "ne",     "lt",    "le",    "and",  "or",
    "xor",   "not",      "shl",  "shr",   "select", "cast",  "is_nan", "is_inf", "index", "philox"};
static_assert(std::size(kScalarNames) == static_cast<size_t>(ScalarOp::kPhilox) + 1);

std::string_view reduce_name(ReduceKind kind) {
  constexpr std::string_view kNames[] = {"sum", "max", "min", "prod"};
  return kNames[static_cast<int>(kind)];
}

std::string access_text(const NestAccess& a) {
  std::string s = "[";
  for (size_t k = 0; k < a.strides.size(); ++k) append(s, k ? " " : "", a.strides[k]);
  s += "]";
  if (a.offset != 0) append(s, " + ", a.offset);
  return s;
}

std::string node_text(const NestNode& n) {
  const ScalarNode& x = n.scalar;
  switch (n.op) {
    case NestOp::kLoad:
      return cat("load ", n.access.operand, " ", access_text(n.access));
    case NestOp::kIndex:
      return cat("index ", access_text(n.access));
    case NestOp::kReduce:
      return cat(reduce_name(n.reduce), " over columns of %", x.a);
    case NestOp::kScalar:
      break;
  }
  std::string s(kScalarNames[static_cast<int>(x.op)]);
  if (x.op == ScalarOp::kConstant)
    return is_float(x.type) ? cat("constant ", dtype_name(x.type), " ", fmt::format("{:.17g}", x.f),
                                  x.f != x.f ? cat(" #", std::bit_cast<uint64_t>(x.f)) : "")
                            : cat("constant ", dtype_name(x.type), " ", x.i);
  if (x.op == ScalarOp::kCast) append(s, " ", dtype_name(x.type));
  if (x.op == ScalarOp::kPhilox) append(s, " ", x.index, " key ", x.i);
  for (int operand : {x.a, x.b, x.c}) {
    if (operand >= 0) append(s, " %", operand);
  }
  return s;
}

}  // namespace

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

std::string to_string(const LoopNest& nest) {
  std::string s = "rows [";
  for (size_t k = 0; k < nest.sizes.size(); ++k)
    append(s, static_cast<int>(k) == nest.rows() ? "] columns [" : k ? " " : "", nest.sizes[k]);
  s += nest.columns == 0 ? "] columns []:" : "]:";
  for (size_t k = 0; k < nest.operands.size(); ++k)
    append(s, static_cast<int>(k) == nest.inputs ? " ->" : "", " ", dtype_name(nest.operands[k]));
  append(s, "\n  ", nest.lane_is_row ? "lanes along rows, " : "",
         nest.tile >= 0 ? cat("tiles along row loop ", nest.tile, ", ") : "", nest.rows_per_unit, " rows a unit",
         nest.clip > 0 ? cat(", clip ", nest.clip) : "", "\n");
  for (size_t k = 0; k < nest.nodes.size(); ++k) append(s, "  %", k, " = ", node_text(nest.nodes[k]), "\n");
  for (const NestStore& store : nest.stores)
    append(s, "  store ", store.access.operand, " ", access_text(store.access), " = %", store.node, "\n");
  for (const NestStore& k : nest.kept) append(s, "  keep %", k.node, " in ", k.access.operand, "\n");
  for (const NestFold& fold : nest.folds) {
    append(s, "  fold ", reduce_name(fold.reduce), " ", fold.access.operand, " ", access_text(fold.access), " x ",
           fold.extent, " of %", fold.node, "\n");
  }
  return s;
}

}  // namespace partita
