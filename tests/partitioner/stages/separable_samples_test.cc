#include "partitioner/stages/separable_samples.h"

#include <gtest/gtest.h>

#include "ir/graph/builder.h"

namespace partita {
namespace {

constexpr int64_t kSamples = 8, kFeatures = 4;

// x [8, 4] times w [4, 4], and the loss that `end` makes of the product.
SamplesOfLoss of(const std::function<ValueId(Builder&, ValueId y)>& end) {
  Builder b;
  const ValueId x = b.input("x", {DType::kF32, {kSamples, kFeatures}});
  const ValueId w = b.state({.name = "w", .kind = StateKind::kParameter, .parameter = {}, .initial = {}},
                            {DType::kF32, {kFeatures, kFeatures}});
  b.output("loss", end(b, b.matmul(x, w)));
  return samples_of_loss(std::move(b).finish());
}

ValueId squares(Builder& b, ValueId y) { return b.mul(y, y); }

TEST(SamplesOfLoss, AMeanOverSamples_IsTheMeanOfItsParts) {
  EXPECT_EQ(of([](Builder& b, ValueId y) { return b.mean(squares(b, y), {0, 1}, false); }).is, LossOverSamples::kMean);
  for (const double divisor : {8., 32., 16.}) {  // samples, times how many of a sample's numbers
    SCOPED_TRACE(divisor);
    EXPECT_EQ(of([&](Builder& b, ValueId y) {
                const ValueId row = b.emit("log_softmax", {y}, {{"dim", int64_t{1}}});
                return b.scale(b.reduce_sum(b.reshape(row, {kSamples * kFeatures}), {0}, false), -1 / divisor);
              }).is,
              LossOverSamples::kMean);
    EXPECT_EQ(of([&](Builder& b, ValueId y) {
                return b.reduce_sum(b.scale(squares(b, y), 1 / divisor), {0, 1}, false);
              }).is,
              LossOverSamples::kMean);
  }
  // Of rows' means; with a factor of its own behind; of two, one with a factor.
  EXPECT_EQ(
      of([](Builder& b, ValueId y) { return b.scale(b.mean(b.mean(squares(b, y), {1}, false), {0}, false), 0.3); }).is,
      LossOverSamples::kMean);
  EXPECT_EQ(of([](Builder& b, ValueId y) {
              const ValueId two =
                  b.add(b.reduce_sum(y, {0, 1}, false), b.scale(b.reduce_sum(squares(b, y), {0, 1}, false), 0.3));
              return b.scale(two, 1. / kSamples);
            }).is,
            LossOverSamples::kMean);
}

TEST(SamplesOfLoss, ASumOverSamplesIsNoMean) {
  EXPECT_EQ(of([](Builder& b, ValueId y) {
              return b.reduce_sum(squares(b, y), {0, 1}, false);
            }).is,
            LossOverSamples::kSummed);
  // With a factor that is no number of samples; of rows' means; beside a mean.
  EXPECT_EQ(of([](Builder& b, ValueId y) {
              return b.scale(b.reduce_sum(squares(b, y), {0, 1}, false), 0.01);
            }).is,
            LossOverSamples::kSummed);
  EXPECT_EQ(of([](Builder& b, ValueId y) { return b.reduce_sum(b.mean(squares(b, y), {1}, false), {0}, false); }).is,
            LossOverSamples::kSummed);
  EXPECT_EQ(of([](Builder& b, ValueId y) {
              return b.add(b.mean(squares(b, y), {0, 1}, false), b.scale(b.reduce_sum(y, {0, 1}, false), 0.01));
            }).is,
            LossOverSamples::kSummed);
}

// A weight for each place in a run, [8, 1]; for each feature, [1, 4]; one and the same for each.
TEST(SamplesOfLoss, ConstantsThatDifferByPlaceAreNoSamplesOwn) {
  const auto weighted = [](Shape shape, const std::vector<double>& weights) {
    return of([&](Builder& b, ValueId y) {
      Tensor t = Tensor::zeros({DType::kF32, shape});
      t.f = weights;
      return b.mean(b.mul(squares(b, y), b.constant(to_literal(t))), {0, 1}, false);
    });
  };
  const SamplesOfLoss by_place = weighted({kSamples, 1}, {0, 1, 2, 3, 4, 5, 6, 7});
  EXPECT_EQ(by_place.is, LossOverSamples::kUnknown);
  EXPECT_NE(by_place.node, kNoNode);
  EXPECT_EQ(weighted({1, kFeatures}, {0, 1, 2, 3}).is, LossOverSamples::kMean);
  EXPECT_EQ(weighted({kSamples, 1}, std::vector<double>(kSamples, 0.5)).is, LossOverSamples::kMean);
  std::vector<double> alike;
  for (int64_t k = 0; k < kSamples; ++k) alike.insert(alike.end(), {0, 1, 2, 3});
  EXPECT_EQ(weighted({kSamples, kFeatures}, alike).is, LossOverSamples::kMean);
}

TEST(SamplesOfLoss, ACountOfTargetsIsOfAllSamples) {
  EXPECT_EQ(of([](Builder& b, ValueId y) {
              const ValueId target = b.input("target", {DType::kI64, {kSamples}});
              const ValueId counts = b.emit("ne", {target, b.scalar(DType::kI64, -100)});
              const ValueId row = b.emit_all("cross_entropy", {y, target})[0];
              return b.div(b.reduce_sum(row, {0}, false), b.reduce_sum(b.cast(counts, DType::kF32), {0}, false));
            }).is,
            LossOverSamples::kCounted);
}

TEST(SamplesOfLoss, SamplesThatMeet) {
  // Each compared with each other one.
  SamplesOfLoss meets = of([](Builder& b, ValueId y) {
    const ValueId alike = b.matmul(y, y, false, true);
    return b.mean(b.mul(alike, alike), {0, 1}, false);
  });
  EXPECT_EQ(meets.is, LossOverSamples::kTogether);
  EXPECT_NE(meets.node, kNoNode);
  // Less their mean; the root of a sum; the largest of them.
  EXPECT_EQ(of([](Builder& b, ValueId y) {
              const ValueId centred = b.sub(y, b.mean(y, {0}, true));
              return b.mean(b.mul(centred, centred), {0, 1}, false);
            }).is,
            LossOverSamples::kTogether);
  EXPECT_EQ(of([](Builder& b, ValueId y) {
              return b.emit("sqrt", {b.mean(b.mul(y, y), {0, 1}, false)});
            }).is,
            LossOverSamples::kTogether);
  EXPECT_EQ(of([](Builder& b, ValueId y) {
              return b.reduce("reduce_max", y, {0, 1}, false);
            }).is,
            LossOverSamples::kTogether);
}

TEST(SamplesOfLoss, BatchStatisticsAreOfWhatTheRecipeSays) {
  EXPECT_EQ(
      of([](Builder& b, ValueId y) {
        auto parameter = [&](const char* name) {
          return b.state({.name = name, .kind = StateKind::kParameter, .parameter = {}, .initial = {}},
                         {DType::kF32, {kFeatures}});
        };
        const ValueId n = b.emit_all("batch_norm", {y, parameter("scale"), parameter("bias")}, {{"epsilon", 1e-3}})[0];
        return b.mean(b.mul(n, n), {0, 1}, false);
      }).is,
      LossOverSamples::kMean);
}

}  // namespace
}  // namespace partita
