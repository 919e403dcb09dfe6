// Layouts of values that are views of others.
#include "tools/verify/layout/index_map.h"

#include <gtest/gtest.h>

namespace partita::verifier {
namespace {

// Swin's: windows of three columns, side by side again, and pairs of columns of them: the second pair has one column of
// each window. Which of a pair a rank has is said of the view, if the serial program has that.
TEST(SlicedBy, PairsThatReachOverTheEdgeOfWindowsAreSeenThroughTheirView) {
  Mesh mesh;
  mesh.axes = {{"tensor", 2}};
  // Two windows of 2 x 3 x 4: a row of both windows after the other.
  const std::vector<Digit> rows = {{2, 12}, {2, 24}, {12, 1}};
  const Shape pairs = {2, 3, 2, 4};
  IndexMap x;
  x.root = 0, x.digits = rows;
  const auto of_view =
      sliced_by(x, pairs, 2, 0, mesh, [&](const std::vector<Digit>& digits) { return digits == rows; });
  ASSERT_TRUE(of_view.ok()) << of_view.status();
  EXPECT_EQ(of_view->through, rows);
  EXPECT_EQ(of_view->digits, (std::vector<Digit>{{6, 8}, {4, 1}}));
  EXPECT_EQ(of_view->axes, (std::vector<AxisDigit>{{0, 1, 2, 4}}));
  const auto parts = pieces_of(x, pairs, *of_view, {2, 3, 1, 4});
  ASSERT_TRUE(parts.ok()) << parts.status();
  EXPECT_EQ((*parts)[2], (Pieces{{Piece::Kind::kAxis, 2, 1, 0, 1}}));
  EXPECT_FALSE(sliced_by(x, pairs, 2, 0, mesh, [](const std::vector<Digit>&) { return false; }).ok());
  // Another view of the same value is another value.
  IndexMap other = x;
  other.digits = {{2, 24}, {24, 1}};
  EXPECT_FALSE(pieces_of(other, pairs, *of_view, {2, 3, 1, 4}).ok());
}

}  // namespace
}  // namespace partita::verifier
