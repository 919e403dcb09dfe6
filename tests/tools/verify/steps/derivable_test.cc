// What generated code must be given for the part of a value that it reads.
#include "tools/verify/steps/derivable.h"

#include <gtest/gtest.h>

#include "ir/graph/builder.h"

namespace partita::verifier {
namespace {

constexpr DType kF = DType::kF32;

class Derived : public testing::Test {
 protected:
  ValueId input(const std::string& name, Shape shape) { return b_.input(name, {kF, std::move(shape)}); }
  ValueId slice(ValueId x, std::vector<int64_t> starts, std::vector<int64_t> limits) {
    std::vector<int64_t> strides(starts.size(), 1);
    return b_.emit("slice", {x}, {{"starts", std::move(starts)}, {"limits", std::move(limits)}, {"strides", strides}});
  }
  ValueId concat(std::vector<ValueId> parts, int64_t dim) {
    return b_.emit("concat", std::move(parts), {{"dim", dim}});
  }
  int missing(ValueId value, const std::set<int>& given) {
    Graph g = b_.graph();
    return underivable(g, storage_of(g), constant_values(g), value, given);
  }

  Builder b_;
};

// The biases of a recurrent layer: [directions, input's and state's], of which one is read.
TEST_F(Derived, PartOfAPart_NeedsWhatItLiesIn) {
  ValueId a = input("a", {3}), b = input("b", {3}), c = input("c", {3}), d = input("d", {3});
  ValueId all = concat({b_.reshape(concat({a, b}, 0), {1, 6}), b_.reshape(concat({c, d}, 0), {1, 6})}, 0);
  ValueId second = b_.reshape(slice(all, {1, 0}, {2, 6}), {6});
  EXPECT_EQ(missing(slice(second, {0}, {3}), {c}), -1);
  EXPECT_EQ(missing(slice(second, {0}, {3}), {a, b, d}), c);
  EXPECT_EQ(missing(slice(second, {2}, {4}), {c}), d);
  EXPECT_EQ(missing(slice(second, {2}, {4}), {c, d}), -1);
  EXPECT_EQ(missing(second, {a, b, c}), d);
}

TEST_F(Derived, PartOfASum_NeedsBothTermsThere) {
  ValueId a = input("a", {2, 3}), b = input("b", {2, 3}), row = input("row", {3}), e = input("e", {1, 3});
  ValueId sum = b_.add(concat({a, b}, 0), row);
  EXPECT_EQ(missing(slice(sum, {2, 0}, {4, 3}), {b, row}), -1);
  EXPECT_EQ(missing(slice(sum, {2, 0}, {4, 3}), {b}), row);
  EXPECT_EQ(missing(slice(sum, {2, 0}, {4, 3}), {a, row}), b);
  EXPECT_EQ(missing(slice(b_.transpose(sum, {1, 0}), {0, 0}, {3, 2}), {a, row}), -1);
  // Of size 1 along the dimension that is cut.
  EXPECT_EQ(missing(slice(b_.mul(concat({a, b}, 0), e), {0, 0}, {2, 3}), {a}), e);
}

// A sum over a dimension reads all of it.
TEST_F(Derived, WhatIsNotMovedAlone_NeedsItsOperandsWhole) {
  ValueId a = input("a", {2, 3}), b = input("b", {2, 3});
  ValueId sums = b_.reduce_sum(concat({a, b}, 0), {1}, false);
  EXPECT_EQ(missing(slice(sums, {0}, {2}), {a}), b);
}

}  // namespace
}  // namespace partita::verifier
