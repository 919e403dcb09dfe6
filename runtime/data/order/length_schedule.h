// Which length the samples of a batch have, where a run takes samples of several.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace partita::runtime {

// The samples of each length are a stream of their own, which its batches take one after the other. The batches of all
// lengths are in the order in which their last samples would come if each stream were spread evenly over the epoch:
// batch k of n samples in batches of c is due (k + 1) c / n epochs after the start; the shorter length goes first
// where two are due at once. So any position is found alone, whatever ranks ask.
//   8 samples in batches of 2, 3 in batches of 1: due at 1/4 1/2 3/4 1 … and 1/3 2/3 1 …: lengths 0 1 0 1 0 0 1 …
class LengthSchedule {
 public:
  struct Share {
    int64_t samples = 0;  // of an epoch, fewer than 2^48; 0: it has no batches
    int64_t batch = 1;    // samples of a batch, fewer than 2^31
  };
  struct Turn {
    size_t length = 0;
    int64_t batch = 0;  // of that length, from 0
  };

  LengthSchedule() = default;  // of no length
  // By ascending length; one at least has samples.
  explicit LengthSchedule(std::vector<Share> shares) : shares_(std::move(shares)) {}

  Turn at(int64_t batch) const;
  // How many of the first `batch` batches have a length.
  int64_t before(size_t length, int64_t batch) const;
  // Whole batches of so many epochs, at least one.
  int64_t batches(int64_t epochs) const;

 private:
  int64_t place(size_t length, int64_t batch) const;

  std::vector<Share> shares_;
};

}  // namespace partita::runtime
