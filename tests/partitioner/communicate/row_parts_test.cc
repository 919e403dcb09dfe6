// Where parts of rows lie in a value, and how an op's formula carries them from one value to another.
#include "partitioner/communicate/row_parts.h"

#include <gtest/gtest.h>

#include "ir/graph/builder.h"

namespace partita {
namespace {

TEST(RowParts, LieInTheDimensionThatHasThemAll) {
  const auto at = [](const Shape& shape, RowParts parts) {
    const auto found = parted_dim(shape, parts);
    return found ? std::vector<int64_t>{static_cast<int64_t>(found->dim), found->outer, found->inner}
                 : std::vector<int64_t>{};
  };
  EXPECT_EQ(at({8, 3}, {2, 1}), (std::vector<int64_t>{0, 1, 4}));
  EXPECT_EQ(at({1, 8, 3}, {2, 1}), (std::vector<int64_t>{1, 1, 4}));
  EXPECT_EQ(at({4, 8, 3}, {2, 4}), (std::vector<int64_t>{1, 1, 4}));
  EXPECT_EQ(at({32, 3}, {2, 4}), (std::vector<int64_t>{0, 4, 4}));  // [ranks, parts, rows] as one dimension
  EXPECT_EQ(at({2, 16, 3}, {2, 4}), (std::vector<int64_t>{1, 2, 4}));
  EXPECT_TRUE(at({3, 3}, {2, 1}).empty());
  EXPECT_EQ(part_shape({32, 3}, {2, 4}), (Shape{16, 3}));
}

TEST(RowParts, FollowAnOpsFormula) {
  Builder b;
  const ValueId x = b.input("x", {DType::kF32, {4, 8, 6}}), w = b.input("w", {DType::kF32, {6, 5}}),
                bias = b.input("bias", {DType::kF32, {5}});
  const ValueId turned = b.transpose(x, {1, 0, 2}), rows = b.reshape(turned, {32, 6}), y = b.matmul(rows, w),
                z = b.add(y, bias), s = b.reduce_sum(z, {0}, false);
  b.output("s", s);
  const Graph g = std::move(b).finish();
  const auto cut = [&](ValueId made, ValueId by, RowParts parts) {
    return parts_of_node(g, *g.producer(made), by, parts);
  };
  const RowParts two{2, 1}, inner{2, 8};
  ASSERT_TRUE(cut(turned, x, two));
  EXPECT_EQ(cut(turned, x, two)->outputs[0], inner);
  EXPECT_EQ(cut(rows, turned, inner)->outputs[0], inner);
  EXPECT_EQ(cut(y, rows, inner)->outputs[0], inner);
  EXPECT_EQ(cut(y, rows, inner)->inputs[1].before, 0);
  EXPECT_EQ(cut(y, y, inner)->inputs[0], inner);
  EXPECT_EQ(cut(z, y, inner)->inputs[1].before, 0);
  EXPECT_FALSE(cut(s, z, inner));               // summed over
  EXPECT_FALSE(cut(y, rows, RowParts{2, 32}));  // the inner dimension
}

TEST(RowParts, OfACollectiveAreThoseOfEachRank) {
  Builder b;
  const Attrs group{{"axes", std::vector<int64_t>{0}}, {"parts", int64_t{4}}};
  Attrs sum = group;
  sum.set("reduce", "sum");
  const ValueId x = b.input("x", {DType::kF32, {8, 3}}), gathered = b.emit("all_gather", {x}, group),
                scattered = b.emit("reduce_scatter", {gathered}, sum);
  b.output("y", scattered);
  const Graph g = std::move(b).finish();
  const RowParts two{2, 1}, of_all{2, 4};
  EXPECT_EQ(parts_of_node(g, *g.producer(gathered), x, two)->outputs[0], of_all);
  EXPECT_EQ(parts_of_node(g, *g.producer(scattered), gathered, of_all)->outputs[0], two);
  EXPECT_FALSE(parts_of_node(g, *g.producer(scattered), gathered, two));  // whole ranks
}

}  // namespace
}  // namespace partita
