#include "tools/verify/kernels/written_parts.h"

#include <gtest/gtest.h>

namespace partita::verifier {
namespace {

// Whether the parts are a value of `size` elements.
bool are_all(int64_t size, const std::vector<WrittenPart>& parts) {
  WrittenParts written;
  for (const WrittenPart& p : parts) written.write(7, size, &p);
  return written.is_whole(7);
}

TEST(WrittenParts, WhatTilesAValueIsTheValue) {
  EXPECT_TRUE(are_all(12, {{0, {{6, 1}}}, {6, {{6, 1}}}}));
  // [4, 6] in columns 0 to 2 and 2 to 6; in even and odd rows; an inside and its border of four.
  EXPECT_TRUE(are_all(24, {{0, {{4, 6}, {2, 1}}}, {2, {{4, 6}, {4, 1}}}}));
  EXPECT_TRUE(are_all(24, {{0, {{2, 12}, {6, 1}}}, {6, {{6, 1}, {2, 12}}}}));
  EXPECT_TRUE(
      are_all(24, {{7, {{2, 6}, {4, 1}}}, {0, {{6, 1}}}, {18, {{3, 2}, {2, 1}}}, {6, {{2, 6}}}, {11, {{2, 6}}}}));
  // Loops of one part that are not those of another: 4 x 3 and 6 x 2 and runs of 12.
  EXPECT_TRUE(are_all(36, {{0, {{4, 3}, {3, 1}}}, {12, {{6, 2}, {2, 1}}}, {24, {{12, 1}}}}));
  EXPECT_TRUE(are_all(int64_t{1} << 40, {{0, {{int64_t{1} << 39, 1}}}, {int64_t{1} << 39, {{int64_t{1} << 39, 1}}}}));
}

TEST(WrittenParts, WhatLacksAnElementOrHasOneTwiceIsNot) {
  EXPECT_FALSE(are_all(12, {{0, {{6, 1}}}}));
  EXPECT_FALSE(are_all(12, {{0, {{6, 1}}}, {6, {{5, 1}}}}));
  EXPECT_FALSE(are_all(12, {{0, {{6, 1}}}, {5, {{6, 1}}}}));
  EXPECT_FALSE(are_all(12, {{0, {{6, 1}}}, {7, {{6, 1}}}}));
  EXPECT_FALSE(are_all(12, {{-1, {{6, 1}}}, {6, {{6, 1}}}}));
  EXPECT_FALSE(are_all(24, {{0, {{4, 6}, {2, 1}}}, {1, {{4, 6}, {4, 1}}}}));
  EXPECT_FALSE(are_all(4, {{0, {{4, 0}}}}));
}

TEST(WrittenParts, EachRunBeginsAnew) {
  WrittenParts written;
  const WrittenPart low{0, {{2, 1}}}, high{2, {{2, 1}}};
  for (int run = 0; run < 3; ++run) {
    written.write(1, 4, &low);
    EXPECT_FALSE(written.is_whole(1));
    written.write(1, 4, &high);
  }
  EXPECT_EQ(written.broken(), -1);
  written.write(1, 4, &low);
  EXPECT_EQ(written.broken(), 1);
  written.write(1, 4, nullptr);
  EXPECT_TRUE(written.is_whole(1));
}

}  // namespace
}  // namespace partita::verifier
