#include "ir/graph/index_bounds.h"

#include <gtest/gtest.h>

#include "ir/graph/builder.h"

namespace partita {
namespace {

TEST(IndexBounds, AreTheSizesThatAreLookedUp) {
  Builder b;
  ValueId ids = b.input("ids", {DType::kI64, {2, 3}}), labels = b.input("labels", {DType::kI64, {6}});
  ValueId free = b.input("free", {DType::kI64, {6}}), narrow = b.input("narrow", {DType::kI32, {6}});
  auto state = [&](const char* name, Shape shape) {
    return b.state({.name = name, .parameter = {}, .initial = {}}, {DType::kF64, std::move(shape)});
  };
  ValueId table = state("table", {11, 4}), small = b.scale(state("small", {7, 4}), 2);
  ValueId x = b.reshape(b.emit("gather", {table, ids}, {{"dim", int64_t{0}}}), {6, 4});
  x = b.add(x, b.emit("gather", {table, b.cast(narrow, DType::kI64)}, {{"dim", int64_t{0}}}));
  x = b.add(x, b.emit("gather", {small, b.reshape(ids, {6})}, {{"dim", int64_t{0}}}));
  b.output("loss", b.emit_all("cross_entropy", {x, labels})[0]);
  b.output("free", b.cast(free, DType::kF64));
  Graph g = std::move(b).finish();
  const std::map<std::string, IndexBounds> expected = {{"ids", {-7, 7}}, {"narrow", {-11, 11}}, {"labels", {0, 4}}};
  EXPECT_EQ(index_bounds(g), expected);
}

// The spellings of ignore_index, and of indices that count from the end.
TEST(IndexBounds, SelectionsReplaceAMark) {
  Builder b;
  ValueId x = b.input("x", {DType::kF64, {6, 4}});
  auto labels = [&](const char* name) { return b.input(name, {DType::kI64, {6}}); };
  auto number = [&](int64_t v) { return b.scalar(DType::kI64, static_cast<double>(v)); };
  auto use = [&](ValueId v) { b.output("loss", b.emit_all("cross_entropy", {x, v})[0]); };
  ValueId counted = labels("counted"), void_ = labels("void"), inverse = labels("inverse"), wrapped = labels("wrapped");
  ValueId mixed = labels("mixed");
  use(b.select(b.emit("ne", {counted, number(-100)}), counted, number(0)));
  use(b.select(b.emit("eq", {number(255), void_}), number(-1), void_));
  ValueId safe = b.select(b.emit("not", {b.emit("eq", {inverse, number(9)})}), inverse, number(0));
  use(b.select(b.emit("lt", {safe, number(0)}), b.add(safe, number(4)), safe));
  use(b.select(b.emit("lt", {wrapped, number(0)}), b.add(wrapped, number(4)), wrapped));
  use(b.select(b.emit("lt", {mixed, number(2)}), number(0), mixed));  // says nothing of what is outside
  Graph g = std::move(b).finish();
  const std::map<std::string, IndexBounds> expected = {
      {"counted", {0, 4, -100}}, {"void", {0, 4, 255}}, {"inverse", {-4, 4, 9}}, {"wrapped", {-4, 4}}};
  EXPECT_EQ(index_bounds(g), expected);
}

// As causal models move labels by one: padding at the end, or a mark put there, and a slice.
TEST(IndexBounds, LabelsThatAreMovedAreLabels) {
  Builder b;
  const ValueId x = b.input("x", {DType::kF64, {6, 4}}), labels = b.input("labels", {DType::kI64, {6}}),
                others = b.input("others", {DType::kI64, {6}}), mark = b.scalar(DType::kI64, -100);
  auto slice = [&](ValueId v, int64_t from, int64_t to) {
    using Ints = std::vector<int64_t>;
    return b.emit("slice", {v}, {{"starts", Ints{from}}, {"limits", Ints{to}}, {"strides", Ints{1}}});
  };
  auto use = [&](ValueId v) {
    v = b.select(b.emit("ne", {v, mark}), v, b.scalar(DType::kI64, 0));
    b.output("loss", b.emit_all("cross_entropy", {x, v})[0]);
  };
  const std::vector<int64_t> none = {0}, one = {1};
  use(slice(b.emit("pad", {labels, mark}, {{"low", none}, {"high", one}}), 1, 7));
  use(b.emit("concat", {slice(others, 1, 6), b.broadcast_to(mark, {1})}, {{"dim", int64_t{0}}}));
  Graph g = std::move(b).finish();
  const std::map<std::string, IndexBounds> expected = {{"labels", {0, 4, -100}}, {"others", {0, 4, -100}}};
  EXPECT_EQ(index_bounds(g), expected);
}

TEST(IndexBounds, AllUsesHold) {
  EXPECT_EQ(both({0, 4, -100}, {-7, 7}), (IndexBounds{0, 4}));
  EXPECT_EQ(both({-200, 200}, {0, 4, -100}), (IndexBounds{0, 4, -100}));
  EXPECT_EQ(both({0, 4, -100}, {0, 5, -100}), (IndexBounds{0, 4, -100}));
  EXPECT_EQ(both({0, 4, -100}, {0, 5, -1}), (IndexBounds{0, 4}));
}

}  // namespace
}  // namespace partita
