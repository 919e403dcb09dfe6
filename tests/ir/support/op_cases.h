// The cases that every op is tested on: gradients against finite differences, splits against the whole, linearity
// (op_test.cc). A new op takes one line in op_cases.cc (op_cases_nn.cc for contractions and composites); float64 types,
// so that the comparisons are sharp.
#pragma once

#include <string>
#include <vector>

#include "ir/type/attr.h"
#include "ir/type/tensor_type.h"

namespace partita {

// How the elements of an input are drawn (all from a fixed seed).
enum class Draw {
  kNormal,         // float: normal; integers: -9..9
  kPositive,       // 0.5 to 2
  kUnit,           // -0.9 to 0.9
  kAwayFromZero,   // magnitude 0.3 to 2
  kDistinct,       // no two elements nearer than 0.1, none nearer than 0.05 to zero or to a whole number's half
  kIndex,          // integers: 0 to below - 1
  kSignedIndex,    // integers: -below to below - 1
  kDistinctIndex,  // integers: 0, 1, 2, … below - 1 shuffled, then once more, and so on
  kIota,           // 0, 1, 2, …
  kBool,           // 0 or 1
  kFill,           // `fill` everywhere
};

struct CaseInput {
  TensorType type;  // kInvalid: an optional input that is left out
  Draw draw = Draw::kNormal;
  int64_t below = 0;      // for the index draws
  bool constant = false;  // a Literal in the gradient's graph: no gradient is asked for
  double fill = 0;
};

struct OpCase {
  std::string name;  // "OP" or "OP_Condition"
  std::string op;
  Attrs attrs;
  std::vector<CaseInput> inputs;
  // Float outputs that the gradient takes as saved values: the loss never depends on them.
  std::vector<int> saved_outputs = {};
};

// f64 / i64 / bool inputs of a shape.
inline CaseInput f64(Shape shape, Draw draw = Draw::kNormal) { return {{DType::kF64, std::move(shape)}, draw}; }
inline CaseInput i64(Shape shape, Draw draw = Draw::kNormal, int64_t below = 0) {
  return {{DType::kI64, std::move(shape)}, draw, below};
}
inline CaseInput boolean(Shape shape) { return {{DType::kBool, std::move(shape)}, Draw::kBool}; }
inline CaseInput absent() { return {}; }

// The tables: elementwise, structure, reductions, indexing; contractions and composites.
std::vector<OpCase> op_cases();
std::vector<OpCase> nn_op_cases();

}  // namespace partita
