#include "passes/recognize/recognize_dispatch.h"

#include "base/cat.h"
#include "tests/passes/support/spelling.h"

namespace partita {
namespace {

constexpr int64_t kTokens = 12, kExperts = 3, kPlaces = 4, kWidth = 5;

struct Spelling {
  int64_t choices = 2;
  bool counted = true;   // places are counted, else given
  double scale = 1;      // of counts: below 1, several have one place
  bool after = true;     // a second choice's places follow the first one's
  bool one_topk = true;  // the choices are of one TopK
  bool turned = false;   // products with the operands transposed
  bool cast = false;     // the mask is combine as a bool, what is kept is counted in integers
};

ValueId one_hot(Builder& b, ValueId index, int64_t classes) {
  ValueId equal = b.emit(
      "eq", {b.reshape(index, {b.shape(index)[0], 1}), b.emit("iota", {}, {{"size", classes}, {"to", DType::kI64}})});
  return b.cast(b.cast(equal, DType::kI64), DType::kF64);
}

// Tokens to experts by GShard's one-hot products, squares in place of the experts, and back.
Graph dispatch(const Spelling& how) {
  Builder b;
  ValueId x = f64_input(b, "x", {kTokens, kWidth}), zero = b.scalar(DType::kF64, 0);
  ValueId combine = kNoValue, first = kNoValue;
  auto top = [&](const char* name) {
    ValueId p = b.emit("softmax", {f64_input(b, name, {kTokens, kExperts})}, {{"dim", int64_t{1}}});
    return b.emit_all("topk", {p}, {{"dim", int64_t{1}}, {"k", how.choices}, {"largest", int64_t{1}}});
  };
  const std::vector<ValueId> chosen = top("p"), other = top("q");
  for (int64_t j = 0; j < how.choices; ++j) {
    const std::vector<ValueId>& from = j > 0 && !how.one_topk ? other : chosen;
    auto column = [&](ValueId v) {
      return b.emit("gather", {v, b.scalar(DType::kI64, static_cast<double>(j))}, {{"dim", int64_t{1}}});
    };
    ValueId choice = one_hot(b, column(from[1]), kExperts);
    ValueId count = how.counted ? b.emit("cumsum", {choice},
                                         {{"dim", int64_t{0}}, {"exclusive", int64_t{0}}, {"reverse", int64_t{0}}})
                                : f64_input(b, cat("count", j), {kTokens, kExperts});
    count = b.add_scalar(count, -1);
    if (j > 0 && how.after) count = b.add(count, b.reduce_sum(first, {0}, true));
    if (j == 0) first = choice;
    if (how.scale != 1) count = b.scale(count, how.scale);
    ValueId position = b.mul(count, choice);
    const DType type = how.cast ? DType::kI64 : DType::kF64;
    ValueId below = b.cast(b.emit("lt", {position, b.scalar(DType::kF64, kPlaces)}), type);
    ValueId kept = b.cast(b.mul(b.cast(choice, type), below), DType::kF64);
    ValueId place = b.cast(b.reduce_sum(b.mul(position, kept), {1}, false), DType::kI64);
    ValueId gate = b.mul(b.reshape(column(from[0]), {kTokens, 1, 1}), b.reshape(kept, {kTokens, 1, kExperts}));
    ValueId term =
        b.mul(b.reshape(gate, {kTokens, kExperts, 1}), b.reshape(one_hot(b, place, kPlaces), {kTokens, 1, kPlaces}));
    combine = j == 0 ? term : b.add(combine, term);
  }
  const int64_t all = kExperts * kPlaces;
  ValueId mask = b.cast(how.cast ? b.cast(combine, DType::kBool) : b.emit("lt", {zero, combine}), DType::kF64);
  ValueId by_place = b.reshape(b.transpose(mask, {1, 2, 0}), {all, kTokens});
  ValueId sent = how.turned ? b.transpose(b.matmul(x, by_place, true, true), {1, 0}) : b.matmul(by_place, x);
  b.output("sent", sent);
  ValueId y = b.mul(sent, sent), weights = b.reshape(combine, {kTokens, all});
  b.output("back", how.turned ? b.matmul(y, weights, true, true) : b.matmul(weights, y));
  return std::move(b).finish();
}

Graph recognised_dispatch(const Spelling& how) {
  Graph before = *simplify(*merge_duplicates(dispatch(how), {}), {});
  absl::StatusOr<Graph> after = recognize_dispatch(before, {});
  EXPECT_TRUE(after.ok()) << after.status();
  expect_same_values(before, *after);
  return *std::move(after);
}

TEST(Dispatch_Recognised, LooksUpTokensOfOneAndSeveralChoices) {
  for (int64_t choices : {1, 2}) {
    for (bool turned : {false, true}) {
      SCOPED_TRACE(cat(choices, " choices", turned ? ", operands transposed" : ""));
      Graph g = recognised_dispatch({.choices = choices, .turned = turned, .cast = turned});
      EXPECT_EQ(count(g, "matmul"), 0);
      EXPECT_EQ(count(g, "dispatch"), 1);
      EXPECT_EQ(count(g, "combine"), 1);
      for (const Value& v : g.values) EXPECT_LT(elements(v.type.shape), kTokens * kExperts * kPlaces);
    }
  }
}

// A token may then have one expert twice, in two places.
TEST(Dispatch_Recognised, ChoicesOfSeveralRouters) {
  EXPECT_EQ(count(recognised_dispatch({.one_topk = false}), "matmul"), 0);
}

// Two tokens might have one place: their sum is there.
TEST(Dispatch_NotRecognised, PlacesThatAreNotCounted) {
  EXPECT_EQ(count(recognised_dispatch({.choices = 1, .counted = false}), "matmul"), 2);
  EXPECT_EQ(count(recognised_dispatch({.counted = false}), "matmul"), 2);
  EXPECT_EQ(count(recognised_dispatch({.after = false}), "matmul"), 2);
  EXPECT_EQ(count(recognised_dispatch({.choices = 1, .scale = 0.5}), "matmul"), 2);
}

}  // namespace
}  // namespace partita
