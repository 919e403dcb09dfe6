// The scalar body of an elementwise op: a small DAG that one reference interpreter and every code generator share.
//
//   .scalar = [](ScalarBuilder& s, const OpView&, Scalars x) -> Scalars { return {s.mul(x[0], s.sigmoid(x[0]))}; }
#pragma once

#include <cstdint>
#include <vector>

#include "base/dtype.h"

namespace partita {

enum class ScalarOp : uint8_t {
  kInput,     // operand `index`
  kConstant,  // `f` for float types, `i` otherwise
  kAdd,
  kSub,
  kMul,
  kDiv,
  kMax,
  kMin,
  kPow,  // float or integer; kDiv of integers truncates; kMax and kMin give NaN where either is NaN
  kMod,  // sign of the dividend (C's % and fmod)
  kNeg,
  kAbs,
  kSqrt,
  kExp,
  kLog,
  kLog1p,
  kExpm1,
  kTanh,
  kErf,
  kSin,
  kCos,
  kTan,
  kAsin,
  kAcos,
  kAtan,
  kSinh,
  kCosh,
  kFloor,
  kCeil,
  kRoundEven,
  kPowerOfTwo,  // the largest power of two <= |a|; 0 below the type's least normal number, infinity for NaN
  kEq,
  kNe,
  kLt,
  kLe,  // -> bool; false where either is NaN, but for kNe
  kAnd,
  kOr,
  kXor,
  kNot,  // bool: logical; integers: bitwise
  kShl,
  kShr,     // integers; kShr is logical
  kSelect,  // a ? b : c
  kCast,    // to `type`; float to integer truncates and saturates; to bool: != 0
  kIsNan,
  kIsInf,
  kIndex,   // i64: this point's index along output dimension `index`
  kPhilox,  // u32 word `index` (0..3) of Philox-4x32-10: a = i64 counter, b = i64 counter (high half), `i` = 64-bit key
};

struct ScalarNode {
  ScalarOp op;
  DType type;
  int a = -1, b = -1, c = -1;
  int index = 0;
  double f = 0;
  int64_t i = 0;
  bool operator==(const ScalarNode&) const = default;
};

struct Scalar {
  int id = -1;
};
using Scalars = std::vector<Scalar>;

// One scalar function: nodes in order, `outputs` among them.
struct ScalarFunction {
  std::vector<ScalarNode> nodes;
  std::vector<int> outputs;
};

class ScalarBuilder {
 public:
  Scalar input(int index, DType type);
  Scalar constant(DType type, double value);  // also for integers, where the value is whole
  Scalar constant_i(DType type, int64_t value);
  Scalar index(int dimension);

  // Binary operands have one type, which is also the result's (comparisons: bool).
  Scalar add(Scalar a, Scalar b) { return binary(ScalarOp::kAdd, a, b); }
  Scalar sub(Scalar a, Scalar b) { return binary(ScalarOp::kSub, a, b); }
  Scalar mul(Scalar a, Scalar b) { return binary(ScalarOp::kMul, a, b); }
  Scalar div(Scalar a, Scalar b) { return binary(ScalarOp::kDiv, a, b); }
  Scalar max(Scalar a, Scalar b) { return binary(ScalarOp::kMax, a, b); }
  Scalar min(Scalar a, Scalar b) { return binary(ScalarOp::kMin, a, b); }
  Scalar binary(ScalarOp op, Scalar a, Scalar b);
  Scalar compare(ScalarOp op, Scalar a, Scalar b);
  Scalar unary(ScalarOp op, Scalar a);
  Scalar predicate(ScalarOp op, Scalar a);  // kIsNan, kIsInf
  Scalar select(Scalar condition, Scalar a, Scalar b);
  Scalar cast(Scalar a, DType type);
  Scalar philox(Scalar counter, Scalar high, int64_t key, int word);

  // 1 / (1 + exp(-x)), without overflow.
  Scalar sigmoid(Scalar x);
  // A float constant of x's type.
  Scalar like(Scalar x, double value) { return constant(type(x), value); }

  DType type(Scalar x) const { return nodes_[x.id].type; }
  std::vector<ScalarNode>& nodes() { return nodes_; }

 private:
  Scalar push(ScalarNode node);
  std::vector<ScalarNode> nodes_;
};

// A value of the interpreter: `f` for float types (rounded to the type where `round` is asked for), `i` otherwise.
struct ScalarValue {
  double f = 0;
  int64_t i = 0;
};
// Interprets `function` at one point; `index` is the point's coordinates. Float arithmetic is in double.
void evaluate(const ScalarFunction& function, const std::vector<ScalarValue>& inputs, const std::vector<int64_t>& index,
              std::vector<ScalarValue>& scratch, std::vector<ScalarValue>& outputs);

}  // namespace partita
