#include "ir/graph/builder.h"

#include <gtest/gtest.h>

namespace partita {
namespace {

// What a shape refers into moves while nodes are made: at every size of the table of values it has to have been copied.
TEST(Builder_ShapeOfAValue, IsReadThoughTheTableMoves) {
  Builder b;
  const Shape shape{3, 1, 5}, wide{2, 3, 4, 5};
  const ValueId x = b.input("x", {DType::kF32, shape}), y = b.input("y", {DType::kF32, wide});
  for (int k = 1; k <= 100; ++k) {
    EXPECT_EQ(b.shape(b.full(DType::kF32, b.shape(x), k)), shape) << k;
    EXPECT_EQ(b.shape(b.sum_to(y, b.shape(x))), shape) << k;
  }
}

}  // namespace
}  // namespace partita
