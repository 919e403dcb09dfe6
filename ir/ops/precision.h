// In which types a use of an op computes under mixed precision: what that pass asks beside the formula.
#pragma once

#include "ir/op_def.h"

namespace partita {

// The type that an op's f32 operands are given, as PyTorch's autocast does.
enum class OperandPrecision : uint8_t {
  kWidest,  // all of them the widest type among them
  kNarrow,  // the required ones the 16-bit type that the run computes in: contractions, which accumulate in f32
  kWide,    // f32: sums, statistics, exponentials
  kAsIs,    // the type they come in: the op computes in f32 inside
};

OperandPrecision operand_precision(const OpDef& op);

}  // namespace partita
