// Small rank programs for tests.
#pragma once

#include <string>
#include <vector>

#include "runtime/program/program.h"

namespace partita::runtime {

inline Operand operand(Region region, int64_t offset, std::vector<int64_t> shape, DType dtype = DType::kF32,
                       int64_t slot_stride = 0) {
  return {.address = {region, offset, slot_stride}, .dtype = dtype, .shape = std::move(shape)};
}

inline Step step(StepKind kind, std::string name, std::vector<Operand> inputs, std::vector<Operand> outputs,
                 Params params = {}) {
  Step s{.kind = kind, .name = std::move(name), .operands = std::move(inputs), .params = std::move(params)};
  s.inputs = static_cast<int32_t>(s.operands.size());
  s.operands.insert(s.operands.end(), outputs.begin(), outputs.end());
  return s;
}

// Numbers the steps in order.
inline void number_steps(Program& program) {
  uint32_t id = 0;
  for (ProgramSegment& segment : program.segments) {
    for (Step& s : segment.steps) s.id = id++;
  }
}

inline Placement whole(std::vector<int64_t> shape) {
  Placement p{.logical = shape, .shape = shape, .local = shape};
  p.axes.resize(shape.size());
  return p;
}
// Dimension `dim` divided evenly over a mesh axis.
inline Placement split(std::vector<int64_t> shape, size_t dim, int32_t axis, int64_t parts) {
  Placement p = whole(std::move(shape));
  p.local[dim] /= parts;
  p.axes[dim] = {{axis, p.local[dim]}};
  return p;
}

// Linear least squares in library kernels alone: loss = sum of (x w - t)^2 / batch over x [b, 3], t [b]; w -= rate *
// gradient / 2. The batch is split over the mesh axis "data" and the gradient all-reduced. Input "xt" [b, 4] holds x
// and t; state "v" [4, 1] is w and -1; state "rates" is diag(-rate, -rate, -rate, 0).
Program least_squares(int64_t ranks, int64_t batch, int64_t micro_batches);

}  // namespace partita::runtime
