// Cross-entropy that exporters spell out becomes cross_entropy, which never stores the probabilities.
#pragma once

#include "passes/rewrite/pass.h"

namespace partita {

// log_softmax(x) (or log(softmax(x))) over the last dimension, picked by take_along with one label a row, or by a sum
// over one-hot rows eq(label, iota), becomes -cross_entropy(x, label). Masks, weights and normalizers around it stay.
// Labels keep their meaning: negative ones count from the end where take_along picks. Only where nothing else reads the
// values between.
absl::StatusOr<Graph> recognize_cross_entropy(const Graph& graph, const PassContext& context);

}  // namespace partita
