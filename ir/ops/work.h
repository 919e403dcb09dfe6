// How much work a use of an op is, and of what sort: what the cost model asks beside the formula. Ops whose formula
// miscounts the points that they visit (windows that overlap, several products in one op) have their own count here.
#pragma once

#include "ir/op_def.h"

namespace partita {

// Which of a device's efficiency curves a kernel's time follows: bytes moved, a contraction of M x N x K, or attention.
enum class WorkKind : uint8_t { kMemory, kMatrix, kAttention };

WorkKind work_kind(const OpDef& op);
// Floating point operations of a use that has been inferred.
double use_flops(const OpDef& op, const OpView& use);

}  // namespace partita
