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

// By oneDNN, with reorders of what it wants in other layouts; Unimplemented where it has none for these shapes.
Kernel make_library_convolution(const KernelRequest& r, const Convolution& c, DType dtype, Direction direction);

}  // namespace partita::runtime
