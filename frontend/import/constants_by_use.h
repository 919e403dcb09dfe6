// Which float initializers are constants and not parameters, by what reads them.
#pragma once

#include <string>

#include "absl/container/flat_hash_set.h"
#include "frontend/onnx/onnx_model.h"

namespace partita {

// Whether the exporter, PyTorch's or ours, writes numbers of the program as Constant nodes, or under names that tell
// them from parameters of one element.
bool keeps_parameters_apart(const OnnxModel& model);

// Other exporters keep the program's numbers (exponents, epsilons, factors, first states of recurrences, the
// mean and deviation of inputs) as initializers beside the weights:
// - one element of rank 0, or one that is an exponent, a bound, an epsilon or spread out; but for one that a node reads
//   with initializers alone: of a constant, its result would be in the file (the exponential of CLIP's logit scale);
// - the first state of LSTM, GRU or RNN with a row for each sample, or of zeros, as are those of Loop and Scan;
// - what graph inputs are shifted and scaled by before any weight.
// Of PyTorch, names tell what one element is, and marks (torch_marks.h) tell all the rest: nothing is found by its use.
// A file without marks is the older exporter's (dynamo=False), which writes buffers as it writes parameters, or has
// lost them in another tool (onnxsim, onnxslim, ONNX Runtime's optimizer), which writes as initializers whatever it
// computed: of what has more elements than one, the use tells. Ours has none of these.
absl::flat_hash_set<std::string> constants_by_use(const OnnxModel& model);

}  // namespace partita
