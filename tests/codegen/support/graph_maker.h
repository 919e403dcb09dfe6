// A graph of a test, with names for its inputs and outputs, and the comparison of its program with the reference.
#pragma once

#include "base/cat.h"
#include "tests/codegen/support/interpreter.h"

namespace partita {

struct GraphMaker {
  Builder b;
  int count = 0;
  ValueId in(Shape shape, DType t = DType::kF32) { return b.input(cat("x", count++), {t, std::move(shape)}); }
  void out(ValueId v) { b.output(cat("y", count++), v); }
  int check(const CompareOptions& options = {}) { return compare_with_reference(b.graph(), options); }
};

}  // namespace partita
