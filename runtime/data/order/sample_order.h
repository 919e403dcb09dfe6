// Which sample comes at which place of the stream.
#pragma once

#include <cstdint>

namespace partita::runtime {

// The stream is epoch after epoch. An epoch that is shuffled is a permutation of its samples; with a window, of each
// stretch of so many samples by itself, so that few files are needed at once: the first epoch takes the stretches one
// after the other, as a stream without an end must, and later ones those that are whole in an order of their own.
class SampleOrder {
 public:
  SampleOrder() = default;
  // `samples` >= 1 of an epoch, INT64_MAX: there is one, without an end, which is shuffled within a window alone.
  // `window` 0: none. `together`: so many that follow one another stay so, from the first on (what is left at the end
  // is not used), and it is these that `window` counts.
  SampleOrder(int64_t samples, bool shuffle, int64_t window, uint64_t seed, int64_t together = 1)
      : samples_(samples == INT64_MAX ? samples : samples / together),
        window_(window),
        together_(together),
        seed_(seed),
        shuffle_(shuffle) {}

  struct Run {
    uint64_t epoch = 0;
    int64_t sample = 0, count = 0;  // samples that follow one another, at least one
  };
  // What comes at `position`, and as much of what follows in one go, at most `count` samples.
  Run find(int64_t position, int64_t count) const;

 private:
  Run find_whole(int64_t position, int64_t count) const;
  int64_t sample_at(uint64_t epoch, int64_t at) const;

  int64_t samples_ = 1, window_ = 0, together_ = 1;  // samples_: of those that stay together, how many
  uint64_t seed_ = 0;
  bool shuffle_ = false;
};

}  // namespace partita::runtime
