#include "runtime/data/order/length_schedule.h"

namespace partita::runtime {
namespace {

using Wide = unsigned __int128;

}  // namespace

// Those of each other length that are due before it, or at once and shorter.
int64_t LengthSchedule::place(size_t length, int64_t batch) const {
  const Share& own = shares_[length];
  int64_t before = batch;
  for (size_t other = 0; other < shares_.size(); ++other) {
    const Share& s = shares_[other];
    if (other == length || s.samples == 0) continue;
    // Batch j is due at (j + 1) s.batch / s.samples, and this one at (batch + 1) own.batch / own.samples.
    const Wide due = static_cast<Wide>(batch + 1) * static_cast<Wide>(own.batch) * static_cast<Wide>(s.samples),
               each = static_cast<Wide>(own.samples) * static_cast<Wide>(s.batch);
    before += static_cast<int64_t>(other < length ? due / each : (due - 1) / each);
  }
  return before;
}

// Places rise with the batches of a length, and no two of all lengths are alike.
int64_t LengthSchedule::before(size_t length, int64_t batch) const {
  if (shares_[length].samples == 0) return 0;
  int64_t low = 0, high = batch;
  while (low < high) {
    const int64_t middle = low + (high - low) / 2;
    if (place(length, middle) < batch)
      low = middle + 1;
    else
      high = middle;
  }
  return low;
}

LengthSchedule::Turn LengthSchedule::at(int64_t batch) const {
  Turn turn;
  for (size_t length = 0; length < shares_.size(); ++length) {
    const int64_t own = before(length, batch);
    if (shares_[length].samples > 0 && place(length, own) == batch) turn = {length, own};
  }
  return turn;
}

int64_t LengthSchedule::batches(int64_t epochs) const {
  int64_t all = 0;
  for (const Share& s : shares_)
    all += static_cast<int64_t>(static_cast<Wide>(s.samples) * static_cast<Wide>(epochs) / static_cast<Wide>(s.batch));
  return all;
}

}  // namespace partita::runtime
