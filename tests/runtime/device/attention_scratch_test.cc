#include "runtime/device/attention_scratch.h"

#include <gtest/gtest.h>

namespace partita::runtime {
namespace {

// A gradient of 4 samples, 32 heads of 8 key heads, `s` positions of 64.
Step gradient(int64_t s, DType dtype = DType::kBF16, DType mask = DType::kInvalid) {
  Step step;
  step.kind = StepKind::kLibrary;
  step.name = "attention_grad";
  step.inputs = 7;
  step.operands.resize(10);
  for (size_t k : {0, 1, 5, 7}) step.operands[k] = {.dtype = dtype, .shape = {4, 32, s, 64}};
  for (size_t k : {2, 3, 8, 9}) step.operands[k] = {.dtype = dtype, .shape = {4, 8, s, 64}};
  step.operands[4] = {.dtype = mask, .shape = {4, 1, s, s}};
  step.params["causal"] = int64_t{1};
  return step;
}

int64_t scratch(std::vector<Step> steps, const std::string& target = "cuda:sm_90") {
  Program p;
  p.target = target;
  p.segments = {{Segment::kForward, 0, {}}, {Segment::kBackward, 0, std::move(steps)}};
  return score_scratch_bytes(p);
}

TEST(AttentionScratch, IsOfTheLargestGradient) {
  EXPECT_EQ(scratch({gradient(1024), gradient(2048), gradient(512)}), int64_t{2} * 4 * 32 * 2048 * 2048);
  Step in_place = gradient(1024);
  in_place.params["sizes"] = std::vector<int64_t>{4, 32, 8, 1024, 1024, 64, 64};
  for (size_t k : {1, 2, 3}) in_place.operands[k].shape = {4096, 3072};
  EXPECT_EQ(scratch({in_place}), int64_t{2} * 4 * 32 * 1024 * 1024);
}

TEST(AttentionScratch_LargeScores, GoInParts) {
  // 4.3 GB: two samples each. 17 GB: two parts of each sample.
  EXPECT_EQ(scratch({gradient(4096)}), int64_t{2} * 2 * 32 * 4096 * 4096);
  EXPECT_EQ(scratch({gradient(8192)}), int64_t{2} * 16 * 8192 * 8192);
  EXPECT_EQ(scratch({gradient(1 << 20)}), 0);  // a key head alone is too much: by our own kernels
}

TEST(AttentionScratch, IsNoneWithoutCudnn) {
  Step own = gradient(1024), longer = gradient(1024);
  own.params["kernel"] = std::string("own");
  for (size_t k : {2, 3}) longer.operands[k].shape[2] = 512;  // queries without keys
  EXPECT_EQ(scratch({own, longer, gradient(1024, DType::kF32), gradient(1024, DType::kBF16, DType::kBool)}), 0);
  EXPECT_EQ(scratch({gradient(1024)}, "cpu:x86-64-v4"), 0);
  EXPECT_EQ(scratch({gradient(1024)}, "cuda:sm_100"), 0);
}

TEST(ScoreParts, AreEqualAndTheFewest) {
  EXPECT_EQ(score_parts(6, 8, kMostScoreBytes), 1);
  EXPECT_EQ(score_parts(6, 8, kMostScoreBytes + 1), 2);
  EXPECT_EQ(score_parts(6, 8, 4 * kMostScoreBytes), 6);  // four do not divide the samples
  EXPECT_EQ(score_parts(6, 8, 7 * kMostScoreBytes), 12);
  EXPECT_EQ(score_parts(6, 8, kMostScoreBytes, 2), 3);  // more than two
  EXPECT_EQ(score_parts(6, 8, 48 * kMostScoreBytes), 48);
  EXPECT_EQ(score_parts(6, 8, 49 * kMostScoreBytes), 0);
}

}  // namespace
}  // namespace partita::runtime
