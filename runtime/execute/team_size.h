// How many threads a program is worth.
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/program/program.h"

namespace partita::runtime {

// `threads`, or 1 where a program for processors is so small that waiting for one another, and fetching what another's
// cache holds, may cost what the others save. Told from the program alone.
int team_size(const Program& program, int threads);

// The threads of a small program's steps, which have the same bits with any number of them: as many as took the least
// time, on the mean, so that a thread that has to wait for a core counts. All powers of two up to `most` are tried for
// some steps each, and `most`; half and twice as many as were best again from time to time, and all where steps take
// longer than they did.
class TeamChoice {
 public:
  explicit TeamChoice(int most);
  // Of the next step.
  int size() const { return sizes_[at_]; }
  // The step before took so long.
  void took(double seconds);

 private:
  void try_next();

  std::vector<int> sizes_;
  std::vector<double> seconds_;  // of a step, when it was tried last
  std::vector<size_t> to_try_;   // the last of them first
  size_t at_ = 0, best_ = 0;
  bool trying_ = true;
  int64_t steps_ = 0, settled_ = 0;  // of this stretch; since the last trial
  int64_t settle_;                   // until the next one
  double sum_ = 0;
  int slower_ = 0;  // stretches in a row
};

}  // namespace partita::runtime
