// Loss scaling for fp16 (Micikevicius et al., Mixed Precision Training, 2018): gradients are taken of the loss times a
// scale, so that small ones do not underflow, and divided by it again before anything reads them. A step whose
// gradients overflow is skipped.
#pragma once

#include "ir/graph/builder.h"
#include "passes/rewrite/pass.h"

namespace partita {

inline constexpr std::string_view kLossScaleState = "loss_scale";

// Whether the recipe's precision needs one.
bool has_loss_scale(const PassContext& context);

// The scale that this step's gradients are taken with, f32 scalar: a state, declared by the first call, or, where the
// recipe fixes it, a constant.
ValueId loss_scale(Builder& b, const LossScaleRecipe& recipe);

// For the end of the update. `good`: bool scalar. Where it is false, every parameter, optimizer state and the step
// stays as it was: all that the update writes.
void hold_states(Builder& b, ValueId good);

// After hold_states(). `finite`: bool scalar, whether all gradients are. A scale that is not fixed changes as
// DeepSpeed's and Megatron's do: doubled after `window` good steps in a row; halved (to no less than `minimum`) when
// steps overflow, of which the first hysteresis - 1 since the scale last grew are forgiven. A hysteresis of 1 is
// torch.amp.GradScaler's rule.
void rescale(Builder& b, ValueId finite, const LossScaleRecipe& recipe);

}  // namespace partita
