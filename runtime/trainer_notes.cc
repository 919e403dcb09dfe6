#include "runtime/trainer_notes.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <iterator>

namespace partita::runtime {
namespace {

constexpr double kLongWait = 0.05;  // of the time

}  // namespace

bool tell_slow_checkpoint(const Checkpointer::Cost& cost, double waited, double step, int64_t every) {
  const double interval = static_cast<double>(every) * step, gigabytes = static_cast<double>(cost.bytes) / 1e9;
  if (interval == 0 || waited <= kLongWait * interval) return false;
  std::fprintf(stderr,
               "note: %.3g GB of checkpoint take %.3g s to write (%.3g GB/s), %.3g s longer than a step takes, and "
               "training waits for it: %.0f %% of the time; with --every %.0f it would be %.0f %%\n",
               gigabytes, cost.seconds, gigabytes / cost.seconds, waited, 100 * waited / (interval + waited),
               std::ceil(waited / step / kLongWait), 100 * kLongWait);
  return true;
}

std::vector<SkippedSamples> skipped_besides(const std::vector<SkippedSamples>& all,
                                            const std::vector<SkippedSamples>& others) {
  std::vector<SkippedSamples> left;
  std::copy_if(all.begin(), all.end(), std::back_inserter(left),
               [&](const SkippedSamples& s) { return std::find(others.begin(), others.end(), s) == others.end(); });
  return left;
}

}  // namespace partita::runtime
