// What softmax and log_softmax share: a check and a formula that keeps dimension `dim` whole.
#pragma once

#include <string>
#include <vector>

#include "ir/op/op_def.h"

namespace partita {

absl::StatusOr<std::vector<TensorType>> softmax_types(const OpView& use);
std::string softmax_formula(const OpView& use);

}  // namespace partita
