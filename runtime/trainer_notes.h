// What the training loop tells and finds out on the side.
#pragma once

#include <vector>

#include "runtime/checkpoint/checkpoint.h"
#include "runtime/data/order/skipped_samples.h"

namespace partita::runtime {

// Where a run waits long for a checkpoint, says so on stderr, and how many steps apart they would cost little. `waited`
// and `step`: seconds; `every`: steps. Whether it did.
bool tell_slow_checkpoint(const Checkpointer::Cost& cost, double waited, double step, int64_t every);

// Those of `all` that are not in `others`.
std::vector<SkippedSamples> skipped_besides(const std::vector<SkippedSamples>& all,
                                            const std::vector<SkippedSamples>& others);

}  // namespace partita::runtime
