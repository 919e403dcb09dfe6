// What layer_norm and rms_norm share: both work on the dimensions from attribute `axis` on, each point of the leading
// ones on its own.
#pragma once

#include <string>
#include <vector>

#include "ir/graph/builder.h"

namespace partita {

// x [leading…, normalized…] and the other inputs that are present, each of shape normalized… and of x's type or its
// wide type -> y like x, and `statistics` outputs of shape [leading…, 1…] in x's wide type.
absl::StatusOr<std::vector<TensorType>> norm_types(const OpView& use, int statistics);
// "a b c^ d^, c d -> a b c d, a b * *"
std::string norm_formula(const OpView& use, int statistics);
// The normalized dimensions, and their number of elements.
std::vector<int64_t> norm_dims(const OpUse& use);
double norm_size(const OpUse& use);

}  // namespace partita
