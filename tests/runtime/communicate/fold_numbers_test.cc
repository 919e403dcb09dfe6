#include "runtime/communicate/fold_numbers.h"

#include "gtest/gtest.h"

namespace partita::runtime {
namespace {

TEST(FoldNumbers, WritesRuns) {
  EXPECT_EQ(fold_numbers({}), "");
  EXPECT_EQ(fold_numbers({7}), "7");
  EXPECT_EQ(fold_numbers({5, 2, 1, 0, 2}), "0-2, 5");
  EXPECT_EQ(fold_numbers({3, 4, 8, 9, 10}), "3, 4, 8-10");
}

}  // namespace
}  // namespace partita::runtime
