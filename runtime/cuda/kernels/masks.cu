// Around cuDNN's attention where there is a mask. It adds what it is given to the scores, in f32, and makes no
// difference for a query without keys: where the mask says no, kHidden is added instead of minus infinity, so that no
// row is infinity minus infinity, and a log-sum below kLost is one of a query that sees nothing.
#include "runtime/cuda/kernels/scores.h"

namespace {

constexpr float kHidden = -1e30f, kLost = -1e29f;
constexpr float kLowest = -1e28f;  // of what a float mask adds: the probability is 0 all the same

}  // namespace

// What the elements of a mask of z.mask's kind add to a score.
KERNEL void mask_bias(const void* mask, float* bias, int64_t count, const ScoresDevice z) {
  with_mask<float>(z, mask, [&](auto masked) {
    for (int64_t i = first_item(); i < count; i += item_step()) {
      const float x = masked(0.0f, i);
      bias[i] = x == -infinity<float>() ? kHidden : x < kLowest ? kLowest : x;
    }
  });
}

// A query without keys gives 0, and minus infinity as its log-sum. `out` has 16-bit floats, [rows, width].
KERNEL void clear_lost_rows(float* lse, uint16_t* out, int64_t rows, int64_t width) {
  for (int64_t row = first_item(); row < rows; row += item_step()) {
    if (!(lse[row] < kLost)) continue;
    lse[row] = -infinity<float>();
    for (int64_t c = 0; c < width; ++c) out[row * width + c] = 0;
  }
}

// Log-sums as the gradient takes them: no exponential of a query without keys is more than 0.
KERNEL void shift_lost_rows(const float* lse, float* shifts, int64_t rows) {
  for (int64_t row = first_item(); row < rows; row += item_step())
    shifts[row] = lse[row] == -infinity<float>() ? -kHidden : lse[row];
}
