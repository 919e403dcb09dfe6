// Parts of rows are told apart by a coordinate: joined in another order, or mixed, they are no value of the serial
// program.
#include "tools/verify/layout/row_parts.h"

#include <gtest/gtest.h>

#include "ir/graph/builder.h"

namespace partita::verifier {
namespace {

class RowPartsTest : public testing::Test {
 protected:
  ValueId slice(ValueId x, int64_t from, int64_t to) {
    return b_.emit("slice", {x},
                   {{"starts", std::vector<int64_t>{from, 0}},
                    {"limits", std::vector<int64_t>{to, 3}},
                    {"strides", std::vector<int64_t>{1, 1}}});
  }
  ValueId joined(std::vector<ValueId> parts) { return b_.emit("concat", std::move(parts), {{"dim", int64_t{0}}}); }
  // Of the values, of which x is a root of its own.
  std::vector<IndexMap> only_x() const {
    const Graph& g = b_.graph();
    std::vector<IndexMap> of(g.values.size());
    of[x_].root = 0;
    of[x_].digits = whole(g.type(x_).shape);
    return of;
  }
  // Others follow as far as they are parts.
  std::vector<IndexMap> layouts() {
    std::vector<IndexMap> of = only_x();
    Mesh mesh;
    RowParts rows(b_.graph(), mesh);
    for (const Node& node : b_.graph().nodes) rows.visit(node, of, mesh, no_view_);
    return of;
  }

  static constexpr auto no_view_ = [](const std::vector<Digit>&) { return false; };
  Builder b_;
  ValueId x_ = b_.input("x", {DType::kF32, {8, 3}});
};

TEST_F(RowPartsTest, AllOfThemInOrderAreTheValue) {
  const ValueId first = slice(x_, 0, 4), second = slice(x_, 4, 8), whole = joined({first, second}),
                swapped = joined({second, first}), twice = joined({first, first});
  const std::vector<IndexMap> of = layouts();
  EXPECT_EQ(of[whole].root, 0);
  EXPECT_EQ(of[whole].digits, of[x_].digits);
  EXPECT_TRUE(of[whole].axes.empty());
  EXPECT_FALSE(of[first].axes.empty());
  EXPECT_EQ(of[swapped].root, -1);
  EXPECT_EQ(of[twice].root, -1);
}

TEST_F(RowPartsTest, OthersThanEqualPartsAreNone) {
  const ValueId uneven = slice(x_, 2, 6), quarter = slice(x_, 0, 2), half = slice(x_, 4, 8),
                mixed = joined({quarter, half});
  const std::vector<IndexMap> of = layouts();
  EXPECT_EQ(of[uneven].root, -1);
  EXPECT_EQ(of[mixed].root, -1);
}

TEST_F(RowPartsTest, ANodeComputesOnOnePart) {
  const ValueId first = slice(x_, 0, 4), second = slice(x_, 4, 8);
  const ValueId alike = b_.add(first, first), mixed = b_.add(first, second), sum = b_.reduce_sum(first, {0}, false);
  const Graph& g = b_.graph();
  std::vector<IndexMap> of = only_x();
  Mesh mesh;
  RowParts rows(g, mesh);
  for (ValueId v : {first, second}) {
    ASSERT_TRUE(rows.visit(*g.producer(v), of, mesh, no_view_));
    ASSERT_TRUE(rows.follow(*g.producer(v), of, mesh).ok());
  }
  of[alike] = of[mixed] = of[first];
  of[sum].partial = {0};
  EXPECT_TRUE(rows.follow(*g.producer(alike), of, mesh).ok());
  EXPECT_FALSE(rows.follow(*g.producer(mixed), of, mesh).ok());
  EXPECT_FALSE(rows.follow(*g.producer(sum), of, mesh).ok());
}

}  // namespace
}  // namespace partita::verifier
