// Nests written by hand against small graphs: what is proved, and what is said where it is not so.
#include "tools/verify/kernels/prove_nest.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/cat.h"
#include "ir/graph/builder.h"
#include "ir/nest/nest_text.h"
#include "tools/verify/kernels/check_nest.h"
#include "tools/verify/kernels/nest_passes.h"

namespace partita::verifier {
namespace {

using testing::HasSubstr;

constexpr DType kF = DType::kF32;

LoopNest nest(std::string_view text) {
  auto read = parse_kernels(cat("# compiler c\n# target t\nkernel k\n", text));
  EXPECT_TRUE(read.ok()) << read.status() << "\n" << text;
  if (!read.ok()) return {};
  EXPECT_EQ(check_nest(read->kernels[0].nest), absl::OkStatus()) << text;
  return read->kernels[0].nest;
}

class ProveNest : public testing::Test {
 protected:
  ValueId in(const std::string& name, Shape shape) { return b_.input(name, {kF, std::move(shape)}); }
  std::string proved(std::string_view text, std::vector<int> values, const TemporaryWriters& writers = {}) {
    const Graph& g = b_.graph();
    const std::vector<ValueId> storage = storage_of(g);
    const std::vector<const Literal*> literals = constant_values(g);
    const std::vector<ValueId> turned(g.values.size(), kNoValue);
    const absl::Status status = prove_nest({g, storage, literals, turned}, {nest(text), std::move(values)}, writers);
    return status.ok() ? "proved" : std::string(status.message());
  }

  Builder b_;
};

TEST_F(ProveNest, OfAnElementwiseNode_KnowsItsOperandsApart) {
  const ValueId a = in("a", {4, 6}), c = in("c", {6}), d = b_.sub(a, c);
  const std::string text =
      "rows [4] columns [6]: f32 f32 -> f32\n  1 rows a unit\n  %0 = load 0 [6 1]\n  %1 = load 1 [0 1]\n"
      "  %2 = sub %0 %1\n  store 2 [6 1] = %2\n";
  EXPECT_EQ(proved(text, {a, c, d}), "proved");
  const auto changed = [&](std::string_view from, std::string_view to) {
    std::string t = text;
    return proved(t.replace(t.find(from), from.size(), to), {a, c, d});
  };
  EXPECT_THAT(changed("sub %0 %1", "sub %1 %0"), HasSubstr("expected %0 [6 1], found %1 [0 1]"));
  EXPECT_THAT(changed("sub %0 %1", "add %0 %1"), HasSubstr("expected sub(%0 [6 1], %1 [0 1]), found add("));
  EXPECT_THAT(changed("load 1 [0 1]", "load 1 [1 0]"), HasSubstr("expected %1 [0 1], found %1 [1 0]"));
  EXPECT_THAT(changed("load 0 [6 1]", "load 0 [6 1] + 1"), HasSubstr("found %0 [6 1] + 1"));
  EXPECT_THAT(proved(text, {a, a, d}), HasSubstr("expected value %1 'c' f32[6] among the operands, found none"));
}

// A transposed value is read in another order; its loops are made two where it was merged with another dimension.
TEST_F(ProveNest, OfIndexFunctions_FollowsThem) {
  const ValueId x = in("x", {4, 6});
  const ValueId t = b_.emit("exp", {b_.reshape(b_.transpose(x, {1, 0}), {24})});
  const auto text = [](int rows, int columns, int row_step, int column_step) {
    return cat("rows [", rows, "] columns [", columns, "]: f32 -> f32\n  1 rows a unit\n  %0 = load 0 [", row_step, " ",
               column_step, "]\n  %1 = exp %0\n  store 1 [", columns, " 1] = %1\n");
  };
  EXPECT_EQ(proved(text(6, 4, 1, 6), {x, t}), "proved");
  EXPECT_NE(proved(text(4, 6, 6, 1), {x, t}), "proved");
  const ValueId reversed = b_.emit("reverse", {x}, {{"dims", std::vector<int64_t>{1}}});
  const ValueId y = b_.add(reversed, reversed);
  EXPECT_EQ(proved("rows [4] columns [6]: f32 -> f32\n  1 rows a unit\n  %0 = load 0 [6 -1] + 5\n  %1 = add %0 %0\n"
                   "  store 1 [6 1] = %1\n",
                   {x, y}),
            "proved");
}

// The inside of a padded tensor and a part of its border.
TEST_F(ProveNest, OfAPaddedTensor_GoesByWhereItIs) {
  const ValueId x = in("x", {4}), zero = b_.scalar(kF, 2.5);
  const ValueId p = b_.emit("pad", {x, zero}, {{"low", std::vector<int64_t>{2}}, {"high", std::vector<int64_t>{1}}});
  const ValueId y = b_.emit("exp", {p});
  const std::string inside =
      "rows [] columns [4]: f32 -> f32\n  1 rows a unit\n  %0 = load 0 [1]\n  %1 = exp %0\n  store 1 [1] + 2 = %1\n";
  const std::string border =
      "rows [] columns [2]: -> f32\n  1 rows a unit\n  %0 = constant f32 2.5\n  %1 = exp %0\n  store 0 [1] = %1\n";
  EXPECT_EQ(proved(inside, {x, y}), "proved");
  EXPECT_EQ(proved(border, {y}), "proved");
  std::string more = border;
  EXPECT_THAT(proved(more.replace(more.find("[2]"), 3, "[3]"), {y}), HasSubstr("inside of a padded tensor or its"));
  std::string ulp = border;
  EXPECT_THAT(proved(ulp.replace(ulp.find("2.5"), 3, "2.5000002384185791"), {y}),
              HasSubstr("expected 2.5, found 2.5000002384185791"));
}

TEST_F(ProveNest, OfAReduction_TakesEveryColumnOnce) {
  const ValueId x = in("x", {4, 6});
  const ValueId s = b_.reduce_sum(x, {1}, false), y = b_.sub(x, b_.reshape(s, {4, 1}));
  const std::string text =
      "rows [4] columns [6]: f32 -> f32 f32\n  1 rows a unit\n  %0 = load 0 [6 1]\n  %1 = sum over columns of %0\n"
      "  %2 = sub %0 %1\n  store 1 [6 1] = %2\n  store 2 [1 0] = %1\n";
  EXPECT_EQ(proved(text, {x, y, s}), "proved");
  std::string other = text;
  EXPECT_THAT(proved(other.replace(other.find("sum over"), 3, "max"), {x, y, s}), HasSubstr("sum of columns"));
  // Five of six columns.
  std::string fewer = text;
  EXPECT_THAT(proved(fewer.replace(fewer.find("columns [6]"), 11, "columns [5]"), {x, y, s}),
              HasSubstr("expected a reduction of 6 elements, found one of 5"));
}

// Sums over rows of units of three, and what adds them up.
TEST_F(ProveNest, OfAFold_GoesThroughItsPartialResults) {
  const ValueId x = in("x", {8, 5});
  const ValueId s = b_.reduce_sum(x, {0}, false);
  const std::string parts =
      "rows [8] columns [5]: f32 -> f32\n  3 rows a unit\n  %0 = load 0 [5 1]\n  fold sum 1 [0 1] x 5 of %0\n";
  const std::string total =
      "rows [5] columns [3]: f32 -> f32\n  1 rows a unit\n  %0 = load 0 [1 5]\n  %1 = sum over columns of %0\n"
      "  store 1 [1 0] = %1\n";
  constexpr int kTemporary = -2;
  const auto both = [&](const std::string& first, const std::string& second) {
    const NestUse use{nest(first), {x, kTemporary}};
    return proved(second, {kTemporary, s}, {{kTemporary, {&use, 1}}});
  };
  EXPECT_EQ(both(parts, total), "proved");
  const auto with = [](std::string text, std::string_view from, std::string_view to) {
    return text.replace(text.find(from), from.size(), to);
  };
  EXPECT_THAT(both(parts, with(total, "columns [3]", "columns [2]")), HasSubstr("the sum of 3 partial results of 5"));
  EXPECT_THAT(both(parts, with(total, "load 0 [1 5]", "load 0 [1 1]")), HasSubstr("the sum of 3 partial results"));
  EXPECT_THAT(both(parts, with(total, "sum over", "max over")), HasSubstr("the sum of 3 partial results"));
  EXPECT_THAT(both(with(parts, "3 rows", "2 rows"), total), HasSubstr("the sum of 4 partial results"));
  EXPECT_THAT(both(with(parts, "fold sum", "fold max"), with(total, "sum over", "max over")),
              HasSubstr("found a reduction over rows"));
  EXPECT_THAT(both(with(parts, "rows [8]", "rows [7]"), total), HasSubstr("found another reduction"));
  EXPECT_THAT(both(with(parts, "[0 1] x 5", "[0 0] x 5"), total), HasSubstr("found another reduction"));
  EXPECT_THAT(proved(total, {kTemporary, s}), HasSubstr("that a kernel has written, found none"));
}

// Sums over the third of four dimensions, the second one stored last.
TEST_F(ProveNest, OfAFoldWithChannelsLast_KnowsTheirPlace) {
  const ValueId x = in("x", {2, 3, 4, 5});
  const std::string parts =
      "rows [4] columns [2 5 3]: f32 -> f32\n  2 rows a unit\n  %0 = load 0 [5 60 1 20]\n"
      "  fold sum 1 [0 15 3 1] x 30 of %0\n";
  const std::string total =
      "rows [30] columns [2]: f32 -> f32\n  1 rows a unit\n  %0 = load 0 [1 30]\n  %1 = sum over columns of %0\n"
      "  store 1 [1 0] = %1\n";
  for (const bool keep : {true, false}) {
    const ValueId s = b_.reduce_sum(x, {2}, keep);
    const ValueId stored = b_.transpose(s, keep ? std::vector<int64_t>{0, 2, 3, 1} : std::vector<int64_t>{0, 2, 1});
    const auto with = [&](const std::string& strides) {
      std::string text = parts;
      const NestUse use{nest(text.replace(text.find("[0 15 3 1]"), 10, strides)), {x, -2}};
      return proved(total, {-2, stored}, {{-2, {&use, 1}}});
    };
    EXPECT_EQ(with("[0 15 3 1]"), "proved");
    EXPECT_NE(with("[0 15 1 5]"), "proved");  // as they were
    EXPECT_NE(with("[0 3 6 1]"), "proved");
  }
}

// One long sum is cut into rows of columns; the last of them is shorter.
TEST_F(ProveNest, OfATotalInClippedRows_IsOfAllOfIt) {
  const ValueId x = in("x", {10});
  const ValueId s = b_.reduce_sum(x, {0}, false);
  const NestUse use{nest("rows [3] columns [4]: f32 -> f32\n  2 rows a unit, clip 10\n  %0 = load 0 [4 1]\n"
                         "  %1 = sum over columns of %0\n  fold sum 1 [0 0] x 1 of %1\n"),
                    {x, -2}};
  const std::string total =
      "rows [] columns [2]: f32 -> f32\n  1 rows a unit\n  %0 = load 0 [1]\n  %1 = sum over columns of %0\n"
      "  store 1 [0] = %1\n";
  EXPECT_EQ(proved(total, {-2, s}, {{-2, {&use, 1}}}), "proved");
  NestUse shorter = use;
  shorter.nest.clip = 9;
  EXPECT_NE(proved(total, {-2, s}, {{-2, {&shorter, 1}}}), "proved");
}

TEST(NestPasses, WhatIsReadAgainIsNotOverwritten) {
  const auto over = [](std::string_view text) { return overwrites_after_reading(nest(text), 0, 1); };
  EXPECT_TRUE(
      over("rows [4] columns [6]: f32 -> f32\n  1 rows a unit\n  %0 = load 0 [6 1]\n  %1 = exp %0\n"
           "  store 1 [6 1] = %1\n"));
  EXPECT_FALSE(
      over("rows [6] columns [6]: f32 -> f32\n  1 rows a unit\n  %0 = load 0 [1 6]\n  %1 = exp %0\n"
           "  store 1 [6 1] = %1\n"));
  // x - sum x: every column is read before the first is written, and again right where it is written.
  const std::string centred =
      "rows [4] columns [6]: f32 -> f32 f32\n  1 rows a unit\n  %0 = load 0 [6 1]\n  %1 = sum over columns of %0\n"
      "  %2 = sub %0 %1\n  store 1 [6 1] = %2\n";
  EXPECT_TRUE(over(centred + "  store 2 [1 0] = %1\n"));
  // exp x is written in the first pass, and x is read in the second.
  EXPECT_FALSE(
      over("rows [4] columns [6]: f32 -> f32 f32\n  1 rows a unit\n  %0 = load 0 [6 1]\n"
           "  %1 = exp %0\n  %2 = sum over columns of %1\n  %3 = sub %0 %2\n  store 1 [6 1] = %1\n"
           "  store 2 [6 1] = %3\n"));
}

TEST(CheckNest, RefusesWhatNoCodeCanBeMadeOf) {
  const std::string text =
      "rows [4] columns [6]: f32 -> f32 f32\n  1 rows a unit\n  %0 = load 0 [6 1]\n  %1 = sum over columns of %0\n"
      "  %2 = sub %0 %1\n  store 1 [6 1] = %2\n  store 2 [1 0] = %1\n";
  const LoopNest sound = nest(text);
  const std::pair<void (*)(LoopNest&), const char*> faults[] = {
      {[](LoopNest& n) { n.sizes[0] = 0; }, "at least one point"},
      {[](LoopNest& n) { n.columns = 3; }, "column loops"},
      {[](LoopNest& n) { n.inputs = 3; }, "operands that are written"},
      {[](LoopNest& n) { n.inputs = 2; }, "written in one way"},
      {[](LoopNest& n) { n.nodes[2].scalar.b = 2; }, "node %2"},
      {[](LoopNest& n) { n.nodes[2].scalar.type = DType::kF64; }, "node %2"},
      {[](LoopNest& n) { n.nodes[0].access.operand = 1; }, "node %0"},
      {[](LoopNest& n) { n.nodes[0].access.strides.pop_back(); }, "node %0"},
      {[](LoopNest& n) { n.stores[0].node = 3; }, "store 0"},
      {[](LoopNest& n) { n.stores[1].node = 2; }, "a place for each column"},
      {[](LoopNest& n) { n.stores.push_back(n.stores[0]); }, "one store to a place"},
      {[](LoopNest& n) { n.stores[0].node = 0; }, "node %2: expected one that something stored is made of"},
      {[](LoopNest& n) { n.rows_per_unit = 0; }, "rows in each unit"},
      {[](LoopNest& n) { n.tile = 0; }, "no tiles"},
      {[](LoopNest& n) { n.clip = 20; }, "no clip"},
      {[](LoopNest& n) {
         n.kept.push_back({0, n.stores[0].access});
       },
       "a store of it"},
  };
  for (const auto& [change, message] : faults) {
    LoopNest broken = sound;
    change(broken);
    EXPECT_THAT(std::string(check_nest(broken).message()), HasSubstr(message));
  }
  // Kept, but written over before it is read back.
  LoopNest early = nest(
      "rows [4] columns [6]: f32 -> f32\n  1 rows a unit\n  %0 = load 0 [6 1]\n  %1 = exp %0\n"
      "  %2 = sum over columns of %1\n  %3 = div %1 %2\n  %4 = sum over columns of %3\n  %5 = sub %1 %4\n"
      "  store 1 [6 1] = %5\n  store 1 [6 1] = %1\n  keep %1 in 1\n");
  early.stores.push_back({3, early.stores[0].access});
  EXPECT_THAT(std::string(check_nest(early).message()), HasSubstr("read back before its place is written again"));
}

}  // namespace
}  // namespace partita::verifier
