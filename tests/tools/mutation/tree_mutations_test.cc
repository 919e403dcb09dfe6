// Other orders of summation than `reproducible` says: the verifier rejects each.
#include "tools/mutation/tree_mutations.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/test_options.h"

namespace partita {
namespace {

TEST(TreeMutations, AreAllRejected) {
  const int mutations = sample_or_all(20, 200);
  const auto report = run_tree_campaign(mutations, 1);
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_THAT(report->accepted, testing::IsEmpty());
  int rejected = 0;
  for (const auto& [name, count] : report->rejected) rejected += count;
  EXPECT_EQ(rejected, mutations);
  EXPECT_GT(report->rejected.size(), 7U);
}

}  // namespace
}  // namespace partita
