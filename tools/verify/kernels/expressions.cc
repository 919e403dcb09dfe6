#include "tools/verify/kernels/expressions.h"

#include <bit>
#include <limits>

#include "base/cat.h"
#include "fmt/format.h"
#include "ir/nest/nest_text.h"

namespace partita::verifier {
namespace {

int64_t bits(double f) {
  return std::bit_cast<int64_t>(f == f ? f : std::numeric_limits<double>::quiet_NaN());  // NaN is NaN here
}

std::vector<int64_t> key_of(const NestNode& n) {
  const ScalarNode& s = n.scalar;
  std::vector<int64_t> key{static_cast<int64_t>(n.op),
                           static_cast<int64_t>(s.op),
                           static_cast<int64_t>(s.type),
                           s.a,
                           s.b,
                           s.c,
                           s.index,
                           bits(s.f),
                           s.i,
                           static_cast<int64_t>(n.reduce),
                           n.access.operand,
                           n.access.offset};
  key.insert(key.end(), n.access.strides.begin(), n.access.strides.end());
  return key;
}

}  // namespace

Expressions::Expressions(std::vector<int64_t> sizes, int columns) : sizes_(std::move(sizes)) {
  for (size_t k = sizes_.size() - static_cast<size_t>(columns); k < sizes_.size(); ++k) column_points_ *= sizes_[k];
}

int Expressions::intern(Entry entry) {
  auto [at, fresh] = numbers_.try_emplace(key_of(entry), static_cast<int>(entries_.size()));
  if (fresh) entries_.push_back(std::move(entry));
  return at->second;
}

// Without the loops that have one point.
Affine Expressions::trimmed(Affine at) const {
  for (size_t k = 0; k < sizes_.size(); ++k) at.coefficients[k] = sizes_[k] == 1 ? 0 : at.coefficients[k];
  return at;
}

int Expressions::load(int value, DType type, const Affine& at) {
  Affine a = trimmed(at);
  return intern({.op = NestOp::kLoad,
                 .scalar = {.op = ScalarOp::kInput, .type = type},
                 .access = {value, std::move(a.coefficients), a.offset}});
}

int Expressions::index(const Affine& at) {
  Affine a = trimmed(at);
  return intern({.op = NestOp::kIndex,
                 .scalar = {.op = ScalarOp::kIndex, .type = DType::kI64},
                 .access = {-1, std::move(a.coefficients), a.offset}});
}

int Expressions::reduce(ReduceKind kind, int of) {
  if (column_points_ == 1) return of;
  return intern({.op = NestOp::kReduce, .scalar = {.op = ScalarOp::kInput, .type = type(of), .a = of}, .reduce = kind});
}

bool Expressions::is_constant(int e, double value) const {
  const ScalarNode& s = entry(e).scalar;
  if (entry(e).op != NestOp::kScalar || s.op != ScalarOp::kConstant) return false;
  return is_float(s.type) ? s.f == value : s.i == static_cast<int64_t>(value);
}

int Expressions::scalar(const ScalarNode& s) {
  if (s.op == ScalarOp::kAdd && is_constant(s.b, 0)) return s.a;
  if (s.op == ScalarOp::kAdd && is_constant(s.a, 0)) return s.b;
  if (s.op == ScalarOp::kSub && is_constant(s.b, 0)) return s.a;
  if (s.op == ScalarOp::kMul && is_constant(s.b, 1)) return s.a;
  if (s.op == ScalarOp::kMul && is_constant(s.a, 1)) return s.b;
  if (s.op == ScalarOp::kCast) {
    if (type(s.a) == s.type) return s.a;
    // What was read as 16 bits, widened and rounded again, is what was read.
    const Entry& wide = entry(s.a);
    if (wide.op == NestOp::kScalar && wide.scalar.op == ScalarOp::kCast && widens(s.type, wide.scalar.type) &&
        type(wide.scalar.a) == s.type && entry(wide.scalar.a).op == NestOp::kLoad)
      return wide.scalar.a;
  }
  // A maximum with 0 is at most 0 where its operand is.
  if (s.op == ScalarOp::kLe && is_constant(s.b, 0) && entry(s.a).op == NestOp::kScalar) {
    const ScalarNode of = entry(s.a).scalar;
    if (of.op == ScalarOp::kMax && is_constant(of.b, 0))
      return scalar({.op = s.op, .type = s.type, .a = of.a, .b = s.b});
  }
  return intern({.op = NestOp::kScalar, .scalar = s});
}

std::string Expressions::text(int e, int depth) const {
  const Entry& n = entry(e);
  const ScalarNode& s = n.scalar;
  if (n.op == NestOp::kLoad) {
    std::string at;
    for (int64_t stride : n.access.strides) append(at, at.empty() ? "" : " ", stride);
    return cat(n.access.operand >= 0 ? cat("%", n.access.operand) : cat("temporary ", -2 - n.access.operand), " [", at,
               "]", n.access.offset != 0 ? cat(" + ", n.access.offset) : "");
  }
  if (n.op == NestOp::kScalar && s.op == ScalarOp::kConstant)
    return is_float(s.type) ? fmt::format("{:.17g}", s.f) : cat(s.i);
  std::string name(n.op == NestOp::kReduce ? cat(reduce_name(n.reduce), " of columns") : cat(scalar_name(s.op)));
  if (s.op == ScalarOp::kCast) append(name, " to ", dtype_name(s.type));
  if (depth == 0 || s.a < 0) return name;
  std::string operands;
  for (int operand : {s.a, s.b, s.c}) {
    if (operand >= 0) append(operands, operands.empty() ? "" : ", ", text(operand, depth - 1));
  }
  return cat(name, "(", operands, ")");
}

std::string Expressions::difference(int expected, int found) const {
  for (;;) {
    const ScalarNode &x = entry(expected).scalar, &y = entry(found).scalar;
    // The same but for operands: at the first of them that is another.
    NestNode same = entry(expected);
    same.scalar.a = y.a, same.scalar.b = y.b, same.scalar.c = y.c;
    if (key_of(same) != key_of(entry(found))) break;
    const std::pair<int, int> operands[] = {{x.a, y.a}, {x.b, y.b}, {x.c, y.c}};
    const auto* other = operands;
    while (other != std::end(operands) && other->first == other->second) ++other;
    if (other == std::end(operands) || other->first < 0 || other->second < 0) break;
    std::tie(expected, found) = *other;
  }
  return cat("expected ", text(expected, 2), ", found ", text(found, 2));
}

std::vector<int> nest_expressions(const LoopNest& nest, const std::vector<int>& values, Expressions& e) {
  std::vector<int> made;
  for (const NestNode& n : nest.nodes) {
    const Affine at{n.access.offset, n.access.strides};
    ScalarNode s = n.scalar;
    for (int* operand : {&s.a, &s.b, &s.c}) *operand = *operand >= 0 ? made[static_cast<size_t>(*operand)] : -1;
    switch (n.op) {
      case NestOp::kLoad:
        made.push_back(e.load(values[static_cast<size_t>(n.access.operand)], s.type, at));
        break;
      case NestOp::kIndex:
        made.push_back(e.index(at));
        break;
      case NestOp::kReduce:
        made.push_back(e.reduce(n.reduce, s.a));
        break;
      case NestOp::kScalar:
        made.push_back(e.scalar(s));
        break;
    }
  }
  return made;
}

}  // namespace partita::verifier
