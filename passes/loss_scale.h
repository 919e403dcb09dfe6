// Dynamic loss scaling for fp16 (Micikevicius et al., Mixed Precision Training, 2018): gradients are taken of the loss
// times a scale, so that small ones do not underflow, and divided by it again before anything reads them. A step whose
// gradients overflow is skipped.
#pragma once

#include "ir/builder.h"
#include "passes/pass.h"

namespace partita {

inline constexpr std::string_view kLossScaleState = "loss_scale";

// Whether the recipe's precision needs one.
bool has_loss_scale(const PassContext& context);

// The scale that this step's gradients are taken with, f32 scalar: a state, declared by the first call.
ValueId loss_scale(Builder& b);

// For the end of the update. `finite`: bool scalar, whether all gradients are. Where they are not, every parameter,
// optimizer state and the step stays as it was. The scale is doubled after 1000 good steps in a row and halved (to no
// less than 1) when steps overflow: the first overflow since the scale last grew is forgiven, as by DeepSpeed and
// Megatron with a hysteresis of 2.
void hold_and_rescale(Builder& b, ValueId finite);

}  // namespace partita
