#include "passes/recognize/recognize_cross_entropy.h"

#include "tests/passes/support/spelling.h"

namespace partita {
namespace {

ValueId log_softmax(Builder& b, ValueId x, bool composed) {
  Attrs last = {{"dim", int64_t{b.rank(x) - 1}}};
  return composed ? b.emit("log", {b.emit("softmax", {x}, last)}) : b.emit("log_softmax", {x}, last);
}

ValueId take(Builder& b, ValueId x, ValueId labels) {
  Shape column = b.shape(labels);
  column.push_back(1);
  return b.emit("take_along", {x, b.reshape(labels, column)}, {{"dim", int64_t{b.rank(x) - 1}}});
}

TEST(CrossEntropy_Picked, MaskedMeanOverRows) {
  for (bool composed : {false, true}) {
    Builder b;
    ValueId x = f64_input(b, "x", {3, 4, 7}), labels = b.input("t", {DType::kI64, {3, 4}});
    ValueId counted = b.emit("ne", {labels, b.scalar(DType::kI64, 2)}),
            safe = b.select(counted, labels, b.scalar(DType::kI64, 0));
    ValueId row = b.reshape(b.neg(take(b, log_softmax(b, x, composed), safe)), {3, 4}),
            weights = b.cast(counted, DType::kF64);
    b.output("loss", b.div(b.reduce_sum(b.mul(row, weights), {0, 1}, false), b.reduce_sum(weights, {0, 1}, false)));
    Graph g = recognised(recognize_cross_entropy, std::move(b));
    EXPECT_EQ(count(g, "cross_entropy"), 1);
    EXPECT_EQ(count(g, "take_along"), 0);
    EXPECT_EQ(count(g, "neg"), 0);
  }
}

TEST(CrossEntropy_Picked, NegativeLabelsCountFromTheEnd) {
  Builder b;
  ValueId x = f64_input(b, "x", {6, 5}), labels = b.sub(b.input("t", {DType::kI64, {6}}), b.scalar(DType::kI64, 3));
  b.output("y", take(b, log_softmax(b, x, false), labels));
  EXPECT_EQ(count(recognised(recognize_cross_entropy, std::move(b)), "cross_entropy"), 1);
}

TEST(CrossEntropy_OneHot, SummedOverClasses) {
  for (bool twice : {false, true}) {
    Builder b;
    ValueId x = f64_input(b, "x", {4, 5}), labels = b.input("t", {DType::kI64, {4}});
    ValueId equal = b.emit("eq", {b.reshape(labels, {4, 1}),
                                  b.reshape(b.emit("iota", {}, {{"size", int64_t{5}}, {"to", DType::kI64}}), {1, 5})});
    ValueId hot = twice ? b.cast(b.cast(equal, DType::kI64), DType::kF64) : b.cast(equal, DType::kF64);
    b.output("y", b.neg(b.reduce_sum(b.mul(hot, log_softmax(b, x, false)), {1}, false)));
    Graph g = recognised(recognize_cross_entropy, std::move(b));
    EXPECT_EQ(count(g, "cross_entropy"), 1);
    EXPECT_EQ(count(g, "log_softmax"), 0);
  }
}

TEST(CrossEntropy_NotRecognised, OtherAxisOrReader) {
  {
    Builder b;
    ValueId x = f64_input(b, "x", {5, 5}), labels = b.input("t", {DType::kI64, {5}});
    b.output("y", take(b, b.emit("log_softmax", {x}, {{"dim", int64_t{0}}}), labels));
    EXPECT_EQ(count(recognised(recognize_cross_entropy, std::move(b)), "cross_entropy"), 0);
  }
  Builder b;
  ValueId x = f64_input(b, "x", {4, 5}), labels = b.input("t", {DType::kI64, {4}}), p = log_softmax(b, x, false);
  b.output("y", take(b, p, labels));
  b.output("p", p);
  EXPECT_EQ(count(recognised(recognize_cross_entropy, std::move(b)), "cross_entropy"), 0);
}

TEST(CrossEntropy_NotRecognised, SeveralLabelsARow) {
  Builder b;
  ValueId x = f64_input(b, "x", {4, 5}), labels = b.input("t", {DType::kI64, {4, 2}});
  b.output("y", b.emit("take_along", {log_softmax(b, x, false), labels}, {{"dim", int64_t{1}}}));
  EXPECT_EQ(count(recognised(recognize_cross_entropy, std::move(b)), "cross_entropy"), 0);
}

}  // namespace
}  // namespace partita
