// Lets a forward graph in f32 compute in bf16 or fp16, as the recipe's `precision` says, in bf16 for fp8
// (passes/forward/choose_fp8.h); nothing for fp32 and tf32 (passes/forward/allow_tf32.h).
#pragma once

#include "absl/status/statusor.h"
#include "passes/rewrite/pass.h"

namespace partita {

// Every op gets its operands in the types that it asks for (OpDef::precision). States stay in f32: a weight
// that is computed with in 16 bits is copied once a step, in the prologue. Outputs and running statistics keep their
// types. Gradients follow through the casts: 16 bits wide where the forward value is, f32 for every parameter.
absl::StatusOr<Graph> mixed_precision(const Graph& graph, const PassContext& context);

}  // namespace partita
