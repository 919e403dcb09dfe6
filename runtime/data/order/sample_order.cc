#include "runtime/data/order/sample_order.h"

#include <algorithm>

#include "base/mix64.h"
#include "runtime/data/order/permutation.h"

namespace partita::runtime {

int64_t SampleOrder::sample_at(uint64_t epoch, int64_t at) const {
  if (window_ == 0) return Permutation(samples_, seed_, epoch)(at);
  int64_t stretch = at / window_;
  const int64_t whole = samples_ / window_;
  if (epoch > 0 && stretch < whole) stretch = Permutation(whole, seed_, epoch)(stretch);
  const int64_t first = stretch * window_;
  const Permutation inside(std::min(window_, samples_ - first), mix64(seed_, static_cast<uint64_t>(stretch)), epoch);
  return first + inside(at % window_);
}

SampleOrder::Run SampleOrder::find(int64_t position, int64_t count) const {
  if (together_ == 1) return find_whole(position, count);
  const int64_t begin = position % together_;
  Run run = find_whole(position / together_, (begin + count - 1) / together_ + 1);
  run.sample = run.sample * together_ + begin;
  run.count = std::min(run.count * together_ - begin, count);
  return run;
}

SampleOrder::Run SampleOrder::find_whole(int64_t position, int64_t count) const {
  const int64_t at = position % samples_;
  Run run{static_cast<uint64_t>(position / samples_), at, std::min(count, samples_ - at)};
  if (!shuffle_ || (samples_ == INT64_MAX && window_ == 0)) return run;
  run.sample = sample_at(run.epoch, at);
  int64_t same = 1;
  while (same < run.count && sample_at(run.epoch, at + same) == run.sample + same) ++same;
  run.count = same;
  return run;
}

}  // namespace partita::runtime
