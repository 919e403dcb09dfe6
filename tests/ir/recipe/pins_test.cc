#include "ir/recipe/pins.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "ir/recipe/read_recipe.h"
#include "ir/recipe/write_recipe.h"
#include "tests/ir/support/parsed_recipe.h"

namespace partita {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

TEST(ApplyPin_Accepted, ReplacesTheEntry) {
  Recipe recipe = parsed_recipe("pin: {tensor: 2, w: {out: tensor}}");
  for (const char* pin :
       {"tensor=8", "sequence_parallel=true", "schedule=zero_bubble", "layers.*.up={out: tensor, in: [data, expert]}",
        "w={out: }", "zero_group=node", "hierarchical_group=8", "bucket_bytes=1000000", "prefetch_blocks=3"}) {
    absl::Status status = apply_pin(recipe, pin);
    EXPECT_TRUE(status.ok()) << status.message();
  }
  EXPECT_EQ(recipe.pin.axis("tensor"), 8);
  EXPECT_EQ(recipe.pin.sequence_parallel, true);
  EXPECT_EQ(recipe.pin.schedule, PipelineSchedule::kZeroBubble);
  EXPECT_EQ(recipe.pin.zero_group, PinRecipe::kNode);
  EXPECT_EQ(recipe.pin.hierarchical_group, 8);
  EXPECT_EQ(recipe.pin.bucket_bytes, BucketSizes::all(1000000));
  EXPECT_EQ(recipe.pin.prefetch_blocks, 3);
  ASSERT_EQ(recipe.pin.values.size(), 2u);
  EXPECT_EQ(recipe.pin.values[0], (ValuePin{"layers.*.up", {{"out", {"tensor"}}, {"in", {"data", "expert"}}}}));
  EXPECT_EQ(recipe.pin.values[1], (ValuePin{"w", {{"out", {}}}}));
}

TEST(ApplyPin_BucketBytes, OfAllGroupsOrByTheirRanks) {
  Recipe recipe;
  ASSERT_TRUE(apply_pin(recipe, "bucket_bytes={1024: 1073741824, 8: 67108864}").ok());
  const BucketSizes& sizes = recipe.pin.bucket_bytes;
  EXPECT_EQ(sizes, (BucketSizes{{{8, int64_t{64} << 20}, {1024, int64_t{1} << 30}}}));
  EXPECT_EQ(sizes.bytes(8), int64_t{64} << 20);
  EXPECT_EQ(sizes.bytes(4), int64_t{25} << 20);
  EXPECT_EQ(sizes.bytes(100), int64_t{100} << 20);  // a MiB for each rank
  ASSERT_TRUE(apply_pin(recipe, "bucket_bytes=1000").ok());
  EXPECT_EQ(recipe.pin.bucket_bytes.bytes(8), 1000);
}

TEST(ApplyPin_Recompute, OfAllBlocksOrByTheirNumbers) {
  using enum RecomputeMode;
  Recipe recipe;
  ASSERT_TRUE(apply_pin(recipe, "recompute={full: [0..1, 5], mlp: 3, none: 6}").ok());
  EXPECT_EQ(recipe.pin.recompute, std::nullopt);
  EXPECT_EQ(recipe.pin.recompute_blocks, (std::vector{kFull, kFull, kNone, kMlp, kNone, kFull}));
  EXPECT_EQ(recipe.recompute_of(3), kMlp);
  EXPECT_EQ(recipe.recompute_of(9), kNone);
  EXPECT_THAT(format_pins(recipe.pin), HasSubstr("recompute: {mlp: [3], full: [0..1, 5]}"));
  EXPECT_EQ(parsed_recipe("pin: " + format_pins(recipe.pin)).pin, recipe.pin);
  ASSERT_TRUE(apply_pin(recipe, "recompute={offload: 0..3, full_offload: [4], full: 5..6}").ok());
  EXPECT_EQ(recipe.pin.recompute_blocks,
            (std::vector{kOffload, kOffload, kOffload, kOffload, kFullOffload, kFull, kFull}));
  EXPECT_THAT(format_pins(recipe.pin), HasSubstr("recompute: {full: [5..6], offload: [0..3], full_offload: [4]}"));
  EXPECT_EQ(parsed_recipe("pin: " + format_pins(recipe.pin)).pin, recipe.pin);
  ASSERT_TRUE(apply_pin(recipe, "recompute=full_offload").ok());
  EXPECT_EQ(recipe.recompute_of(7), kFullOffload);
  EXPECT_THAT(format_pins(recipe.pin), HasSubstr("recompute: full_offload"));
  ASSERT_TRUE(apply_pin(recipe, "recompute=attention").ok());
  EXPECT_TRUE(recipe.pin.recompute_blocks.empty());
  EXPECT_EQ(recipe.recompute_of(3), kAttention);
}

TEST(Pins, AFractionOfTheStatesIsOffloaded) {
  Recipe recipe;
  ASSERT_TRUE(apply_pin(recipe, "offload_fraction=0.25").ok());
  EXPECT_EQ(recipe.pin.offload, OffloadMode::kOptimizer);
  EXPECT_EQ(recipe.pin.offload_fraction, 0.25);
  EXPECT_EQ(parsed_recipe("pin: " + format_pins(recipe.pin)).pin, recipe.pin);
  for (const char* none : {"0", "1.5", "-0.5", "half"}) {
    const absl::Status status = apply_pin(recipe, std::string("offload_fraction=") + none);
    EXPECT_THAT(std::string(status.message()), HasSubstr("expected a number > 0 and at most 1")) << none;
  }
}

TEST(ApplyPin_Refused, Table) {
  const struct {
    const char *pin, *message;
  } kCases[] = {
      {"tensor", "--pin 'tensor': expected KEY=VALUE, as in tensor=8"},
      {"=8", "--pin '=8': expected KEY=VALUE, as in tensor=8"},
      {"tensor=", "--pin 'tensor=': expected a value after '='"},
      {"tensor=x", "--pin 'tensor=x': 1:1: pin.tensor: expected an integer from 1 to 16777216, found 'x'"},
      {"tensors=4", "--pin 'tensors=4': 1:1: pin: unknown key 'tensors'; the nearest known key is 'tensor'"},
      {"prefetch_blocks=-1",
       "--pin 'prefetch_blocks=-1': 1:1: pin.prefetch_blocks: expected an integer from 0 to 65536, found '-1'"},
      {"bucket_bytes=[1]", "--pin 'bucket_bytes=[1]': 1:1: pin.bucket_bytes: expected bytes, or a mapping"},
      {"bucket_bytes={1: 5}", "--pin 'bucket_bytes={1: 5}': 1:1: pin.bucket_bytes: expected an integer from 2"},
      {"recompute={}", "--pin 'recompute={}': 1:1: pin.recompute: expected blocks by what is computed again"},
      {"recompute={full: 0..2, mlp: 2}",
       "--pin 'recompute={full: 0..2, mlp: 2}': 1:19: pin.recompute.mlp: expected each block once"},
      {"recompute={full: 3..1}", "--pin 'recompute={full: 3..1}': 1:8: pin.recompute.full: expected an integer from 3"},
      {"recompute={auto: 1}", "--pin 'recompute={auto: 1}': 1:1: pin.recompute: expected what is computed again of"},
      {"w={out: [}", "--pin 'w={out: [}': 1:"},
  };
  for (const auto& c : kCases) {
    Recipe recipe;
    absl::Status status = apply_pin(recipe, c.pin);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()), StartsWith(c.message));
    EXPECT_EQ(recipe, Recipe());
  }
}

TEST(ApplyPreset_Known, Table) {
  const struct {
    const char *preset, *pins;
  } kCases[] = {
      {"ddp", "pin: {tensor: 1, pipeline: 1, context: 1, expert: 1, zero: 0, offload: none}"},
      {"fsdp", "pin: {tensor: 1, pipeline: 1, context: 1, expert: 1, zero: 3, offload: none}"},
      {"hsdp", "pin: {tensor: 1, pipeline: 1, context: 1, expert: 1, zero: 3, zero_group: node, offload: none}"},
      {"zero1", "pin: {tensor: 1, pipeline: 1, context: 1, expert: 1, zero: 1, offload: none}"},
      {"zero2", "pin: {tensor: 1, pipeline: 1, context: 1, expert: 1, zero: 2, offload: none}"},
      {"zero3", "pin: {tensor: 1, pipeline: 1, context: 1, expert: 1, zero: 3, offload: none}"},
      {"zero3-offload", "pin: {tensor: 1, pipeline: 1, context: 1, expert: 1, zero: 3, offload: all}"},
      {"megatron:tp8,pp4",
       "pin: {tensor: 8, pipeline: 4, context: 1, expert: 1, zero: 1, sequence_parallel: true, schedule: 1f1b, "
       "offload: none}"},
      {"megatron:tp2,pp4,vpp2,cp2,ep4,dp8,mb1,zero0",
       "pin: {data: 8, tensor: 2, pipeline: 4, context: 2, expert: 4, zero: 0, micro_batch: 1, sequence_parallel: "
       "true, schedule: interleaved, interleave: 2, offload: none}"},
      {"gpipe",
       "pin: {data: 1, tensor: 1, context: 1, expert: 1, zero: 0, schedule: gpipe, recompute: full, offload: none}"},
      {"gpipe:pp4",
       "pin: {data: 1, tensor: 1, pipeline: 4, context: 1, expert: 1, zero: 0, schedule: gpipe, recompute: full, "
       "offload: none}"},
      {"pipedream", "pin: {tensor: 1, context: 1, expert: 1, zero: 0, schedule: 1f1b, offload: none}"},
  };
  for (const auto& c : kCases) {
    Recipe recipe;
    absl::Status status = apply_preset(recipe, c.preset);
    EXPECT_TRUE(status.ok()) << status.message();
    EXPECT_EQ(recipe.pin, parsed_recipe(c.pins).pin) << c.preset;
  }
}

TEST(ApplyPreset_OverStagesOfTheFile, TakesThemAway) {
  Recipe recipe = parsed_recipe("pin: {stages: [{data: 4}, {tensor: 4}], cuts: ['layers.4.*'], pipeline: 2}");
  ASSERT_TRUE(apply_preset(recipe, "gpipe").ok());  // of as many stages
  EXPECT_TRUE(recipe.pin.stages.empty());
  EXPECT_EQ(recipe.pin.cuts, std::vector<std::string>{"layers.4.*"});
  ASSERT_TRUE(apply_preset(recipe, "megatron:pp4").ok());
  EXPECT_TRUE(recipe.pin.cuts.empty());
}

TEST(ApplyPreset_Refused, Table) {
  const struct {
    const char *preset, *message;
  } kCases[] = {
      {"dp",
       "--like 'dp': expected one of ddp, fsdp, hsdp, zero1, zero2, zero3, zero3-offload, megatron, gpipe, pipedream; "
       "arguments follow a colon, as in megatron:tp8,pp4"},
      {"", "--like '': expected one of ddp"},
      {"megatron:tp",
       "--like 'megatron:tp': expected one of tp, pp, cp, ep, dp, vpp, mb, zero and a number, as in tp8, found 'tp'"},
      {"megatron:xp4", "--like 'megatron:xp4': expected one of tp"},
      {"megatron:tp0",
       "--like 'megatron:tp0': --pin 'tensor=0': 1:1: pin.tensor: expected an integer from 1 to 16777216, found '0'"},
      {"megatron:tp8x", "--like 'megatron:tp8x': --pin 'tensor=8x'"},
  };
  for (const auto& c : kCases) {
    Recipe recipe;
    absl::Status status = apply_preset(recipe, c.preset);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()), StartsWith(c.message));
    EXPECT_EQ(recipe, Recipe());
  }
}

}  // namespace
}  // namespace partita
