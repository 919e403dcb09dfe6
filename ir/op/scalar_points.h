// The interpreter of scalar bodies at many points, which share what it costs to look at each operation.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "ir/op/scalar.h"

namespace partita {

// Interprets `function` at `count` points. `inputs` has each operand's values there, `index` the points' coordinates
// along each dimension. Float arithmetic is in double. `values`: those of each node, all points of a node one after the
// other.
void evaluate_points(const ScalarFunction& function, size_t count, const std::vector<std::vector<ScalarValue>>& inputs,
                     const std::vector<std::vector<int64_t>>& index, std::vector<ScalarValue>& values);

}  // namespace partita
