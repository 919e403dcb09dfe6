// What a test program is asked for beside Google Test's own flags.
#pragma once

namespace partita {

struct TestOptions {
  // Campaigns (random programs, spoiled inputs, seeded faults) in full; otherwise a sample, always the same: the first
  // of the same cases.
  bool all = false;  // --all, or PARTITA_TEST_ALL=1 as tools/test --all sets it
  // Golden files are written anew from what is computed, and nothing is held against them.
  bool update = false;  // --update
};

// As main() read them.
const TestOptions& test_options();

template <typename Number>
Number sample_or_all(Number sample, Number all) {
  return test_options().all ? all : sample;
}

}  // namespace partita
