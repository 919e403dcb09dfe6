// Arithmetic in double that knows what rounding may have made of each value in a kernel: a value, and how far from it
// the kernel's own may lie. So results are held to what rounding can do and to nothing else: one whose terms cancel may
// be off by much, one that is copied not by a bit.
#pragma once

#include <cstdint>
#include <vector>

#include "ir/nest/loop_nest.h"
#include "ir/op/scalar.h"

namespace partita {

struct BoundedValue {
  ScalarValue value;
  double off = 0;  // infinity: the kernel may have any (a sum that overflows in 32 bits, what a comparison of two
                   // numbers that are equal but for rounding decides)
};

// Half the distance from 1 to the next number of the type; 0 for integers.
double half_unit(DType type);

// One operation as a kernel does it, which computes in 32 bits where the type has fewer.
class BoundedOperation {
 public:
  // `from`: the type of operand a.
  BoundedOperation(const ScalarNode& node, DType from);
  // Operands that the operation has not are not looked at.
  BoundedValue apply(const BoundedValue& a, const BoundedValue& b, const BoundedValue& c);

 private:
  ScalarValue exact(ScalarValue a, ScalarValue b, ScalarValue c);
  double moved(const BoundedValue& a, const BoundedValue& b, double result);
  bool is_undecided(const BoundedValue& a, const BoundedValue& b, ScalarValue result);
  BoundedValue select(const BoundedValue& a, const BoundedValue& b, const BoundedValue& c) const;

  ScalarNode node_;
  DType from_;
  ScalarFunction function_;  // of three inputs
  std::vector<std::vector<ScalarValue>> inputs_;
  std::vector<ScalarValue> values_;  // of its nodes
};

// What is left of it in memory.
BoundedValue stored(DType type, BoundedValue v);
// Whether a kernel may have left this there. NaN is NaN, infinity the same one.
bool allows(DType type, const BoundedValue& expected, ScalarValue found);

// The reduction of many values, in any order of partial sums.
class BoundedReduction {
 public:
  BoundedReduction(ReduceKind kind, DType type);
  void add(const BoundedValue& v);
  BoundedValue result() const;

 private:
  DType type_;
  bool sums_floats_;
  BoundedOperation two_;  // partial results
  BoundedValue total_;
  int64_t count_ = 0;
  double size_ = 0;  // of a sum of floats: that of all finite terms
};

}  // namespace partita
