#include "partitioner/layout/layout.h"

#include <gtest/gtest.h>

namespace partita {
namespace {

TEST(Describe, SaysWhatIsComputedAgainAndWhatWaitsOnTheHost) {
  using enum RecomputeMode;
  const std::pair<std::vector<RecomputeMode>, const char*> cases[] = {
      {{kFull, kFull, kMlp}, ", recompute full of 2 blocks, mlp of 1"},
      {{kMlp}, ", recompute mlp of 1 block"},
      {{kOffload, kOffload}, ", activations of 2 blocks on the host"},
      {{kFullOffload, kFull, kNone, kOffload},
       ", recompute full of 2 blocks, inputs of 1 on the host, activations of 1 on the host"},
  };
  Layout l;
  const std::string before = describe(l);
  for (const auto& [blocks, text] : cases) {
    l.recompute_blocks = blocks;
    EXPECT_EQ(describe(l), before + text);
  }
  l.recompute_blocks.clear();
  for (auto [mode, text] : {std::pair{kNone, ""},
                            {kFull, ", recompute full"},
                            {kOffload, ", activations on the host"},
                            {kFullOffload, ", recompute full, inputs on the host"}}) {
    l.recompute = mode;
    EXPECT_EQ(describe(l), before + text);
  }
}

}  // namespace
}  // namespace partita
