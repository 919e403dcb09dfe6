// Samples that a run leaves out, and the batches that its steps take then.
#pragma once

#include <cstdint>
#include <vector>

namespace partita::runtime {

// Samples [first, first + count) of the stream.
struct SkippedSamples {
  int64_t first = 0, count = 0;
  bool operator==(const SkippedSamples&) const = default;
};

// Steps take the batches of the stream in turn, but for those that overlap what is skipped.
//   batches of 4, samples 8 to 11 skipped: steps 0 1 2 3 take batches 0 1 3 4
class BatchOrder {
 public:
  BatchOrder() = default;
  // Batch b is samples [offset + b * size, offset + (b + 1) * size). `begin`: the step, and batch, from which on
  // skipped samples count; those before it are behind the run already.
  BatchOrder(int64_t offset, int64_t size, int64_t begin) : offset_(offset), size_(size), begin_(begin) {}

  // In any order.
  void skip(const SkippedSamples& samples);
  const std::vector<SkippedSamples>& skipped() const { return skipped_; }
  int64_t samples_skipped() const;
  int64_t batch_of(int64_t step) const;
  // The samples of a batch.
  SkippedSamples samples_of(int64_t batch) const { return {offset_ + batch * size_, size_}; }

 private:
  int64_t offset_ = 0, size_ = 1, begin_ = 0;
  std::vector<SkippedSamples> skipped_;  // rising
};

}  // namespace partita::runtime
