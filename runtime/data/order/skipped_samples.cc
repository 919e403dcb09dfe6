#include "runtime/data/order/skipped_samples.h"

#include <algorithm>

namespace partita::runtime {

void BatchOrder::skip(const SkippedSamples& samples) {
  skipped_.insert(std::upper_bound(skipped_.begin(), skipped_.end(), samples,
                                   [](const auto& a, const auto& b) { return a.first < b.first; }),
                  samples);
}

int64_t BatchOrder::samples_skipped() const {
  int64_t all = 0;
  for (const SkippedSamples& s : skipped_) all += s.count;
  return all;
}

int64_t BatchOrder::batch_of(int64_t step) const {
  int64_t batch = step, next = begin_;  // the first batch that no range before has taken out
  for (const SkippedSamples& s : skipped_) {
    const int64_t begin = std::max(s.first - offset_, next * size_), end = s.first + s.count - offset_;
    if (end <= begin || batch < begin / size_) continue;
    next = (end - 1) / size_ + 1;
    batch += next - begin / size_;
  }
  return batch;
}

}  // namespace partita::runtime
