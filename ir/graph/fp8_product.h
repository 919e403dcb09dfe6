// Which of a graph's products are of fp8 numbers (passes/forward/choose_fp8.h chooses them).
#pragma once

namespace partita {

// Of a forward product: whether it and its data's gradient multiply fp8 numbers, and whether its weight's gradient
// does.
struct Fp8Product {
  bool forward = false, weight_gradient = false;
};

}  // namespace partita
