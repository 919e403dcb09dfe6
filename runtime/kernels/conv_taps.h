// Convolutions of f32 as small dense products (conv_taps.cc says how).
#pragma once

#include "runtime/kernels/convolution.h"

namespace partita::runtime {

// Whether products of taps take less time than oneDNN's convolution does, weights' reorders included: by the shape and
// by whether there is AVX-512, so that a program gives the same bits however often it runs.
bool is_faster_by_taps(const Convolution& c, Direction direction);

// Any convolution without groups; the sums' order does not depend on the threads.
Kernel make_conv_by_taps(const KernelRequest& r, const Convolution& c, Direction direction);

}  // namespace partita::runtime
