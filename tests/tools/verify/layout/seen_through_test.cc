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

// Windows of a series of two channels, channels before windows, seen as [4 samples x 2 channels x 4 windows, 4]: of one
// channel a rank, samples and windows count on as if they were one dimension.
TEST(PiecesOf, PartsWhoseNeighboursCountOn) {
  IndexMap x;
  x.root = 0;
  x.digits = {{4, 32}, {2, 1}, {4, 8}, {4, 2}};
  IndexMap mine = x;
  mine.digits = {{64, 2}};
  mine.axes = {{0, 1, 2, 1}};
  const auto parts = pieces_of(x, {32, 4}, mine, {16, 4});
  ASSERT_TRUE(parts.ok()) << parts.status();
  const Piece four{Piece::Kind::kLocal, 4, 4, -1, 1};
  EXPECT_EQ((*parts)[0], (Pieces{four, {Piece::Kind::kAxis, 2, 1, 0, 1}, four}));
  EXPECT_EQ((*parts)[1], (Pieces{four}));
  mine.axes = {{0, 1, 2, 2}};  // other elements
  EXPECT_FALSE(pieces_of(x, {32, 4}, mine, {16, 4}).ok());
  mine.digits = {{16, 8}, {4, 1}};
  EXPECT_FALSE(pieces_of(x, {32, 4}, mine, {16, 4}).ok());
}

}  // namespace
}  // namespace partita::verifier
