// Appends the update segment: gradient norm, clipping, learning-rate schedule, one update for each trained parameter,
// the step counter. Consumes the outputs "grad/NAME" (kept where the context says so) and leaves "loss", "grad_norm"
// (L2 over all parameters, before clipping) and "lr". Rules: torch.optim's for train.yaml; ai.onnx.preview.training's
// and ONNX Runtime's to their letter where the file has them.
#pragma once

#include "passes/rewrite/pass.h"

namespace partita {

// Name of the i64 scalar state that counts optimizer steps.
inline constexpr const char* kStepState = "partita.step";

// Of a trained parameter: the name of the state that holds its moving average (recipe.ema).
std::string ema_name(std::string_view parameter);

absl::StatusOr<Graph> build_optimizer(const Graph& graph, const PassContext& context);

}  // namespace partita
