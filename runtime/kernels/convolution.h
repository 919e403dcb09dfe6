// What a convolution computes, whoever computes it.
#pragma once

#include "runtime/kernels/window.h"

namespace partita::runtime {

struct Convolution {
  Window window;
  int64_t groups = 1, outputs = 1;  // outputs: channels of y

  int64_t group_inputs() const { return window.channels / groups; }
  int64_t group_outputs() const { return outputs / groups; }
};

// Operands in their order: conv (x, w, y), conv_grad_data (g, w, dx), conv_grad_weight (g, x, dw).
enum class Direction { kForward, kGradData, kGradWeight };

}  // namespace partita::runtime
