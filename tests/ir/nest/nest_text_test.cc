#include "ir/nest/nest_text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <limits>

#include "base/cat.h"

namespace partita {
namespace {

using testing::HasSubstr;

constexpr std::string_view kHead = "# compiler LLVM 19\n# target x86-64-v4\n";

// Softmax, with its exponentials kept where the result will be.
constexpr std::string_view kSoftmax =
    "kernel k0\n"
    "rows [2048] columns [768]: f32 -> f32\n"
    "  21 rows a unit\n"
    "  %0 = load 0 [768 1]\n"
    "  %1 = max over columns of %0\n"
    "  %2 = sub %0 %1\n"
    "  %3 = exp %2\n"
    "  %4 = sum over columns of %3\n"
    "  %5 = div %3 %4\n"
    "  store 1 [768 1] = %5\n"
    "  store 1 [768 1] = %3\n"
    "  keep %3 in 1\n";

// One of everything else.
constexpr std::string_view kRest =
    "kernel k1 host\n"
    "rows [3] columns [4096]: f32 i64 bool -> f32 f32 u32\n"
    "  2 rows a unit, clip 10000\n"
    "  %0 = load 0 [4096 1]\n"
    "  %1 = load 1 [0 0] + 5\n"
    "  %2 = index [4096 1] + -3\n"
    "  %3 = add %1 %2\n"
    "  %4 = philox 2 key 77 %3 %1\n"
    "  %5 = constant f32 0.10000000149011612\n"
    "  %6 = lt %0 %5\n"
    "  %7 = select %6 %0 %5\n"
    "  %8 = cast f32 %4\n"
    "  %9 = constant i64 -9\n"
    "  store 3 [4096 1] = %7\n"
    "  store 5 [4096 1] = %4\n"
    "  fold max 4 [0 0] x 1 of %8\n"
    "kernel joint2 batched\n"
    "rows [] columns []: -> f64\n"
    "  1 rows a unit\n"
    "  %0 = constant f64 -inf\n"
    "  store 0 [] = %0\n"
    "kernel k3\n"
    "rows [16 8] columns [1]: -> f32\n"
    "  strict, lanes along rows, tiles along row loop 1, 1 rows a unit\n"
    "  %0 = constant f32 nan #9221120237041090561\n"
    "  store 0 [8 1 0] = %0\n";

TEST(NestText, ComesBackAsItWas) {
  const std::string text = cat(kHead, kSoftmax, kRest);
  auto back = parse_kernels(text);
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ(print_kernels(*back), text);
  EXPECT_EQ(back->compiler, "LLVM 19");
  EXPECT_EQ(back->target, "x86-64-v4");
  ASSERT_EQ(back->kernels.size(), 4u);
  const LoopNest& softmax = back->kernels[0].nest;
  EXPECT_EQ(softmax.rows(), 1);
  EXPECT_EQ(softmax.inputs, 1);
  EXPECT_EQ(softmax.nodes[1].op, NestOp::kReduce);
  ASSERT_EQ(softmax.kept.size(), 1u);
  EXPECT_EQ(softmax.kept[0].access, softmax.stores[1].access);
  const LoopNest& rest = back->kernels[1].nest;
  EXPECT_TRUE(back->kernels[1].host);
  EXPECT_EQ(rest.clip, 10000);
  EXPECT_EQ(rest.nodes[4].scalar.type, DType::kU32);
  EXPECT_EQ(rest.nodes[6].scalar.type, DType::kBool);
  EXPECT_EQ(rest.nodes[7].scalar.type, DType::kF32);
  EXPECT_EQ(rest.nodes[5].scalar.f, 0.1f);
  EXPECT_TRUE(back->kernels[2].batched);
  EXPECT_EQ(back->kernels[2].nest.nodes[0].scalar.f, -std::numeric_limits<double>::infinity());
  EXPECT_EQ(std::bit_cast<uint64_t>(back->kernels[3].nest.nodes[0].scalar.f), 9221120237041090561u);
}

TEST(NestText, OfAnotherSpelling_IsRefusedWithItsLine) {
  const std::string text = cat(kHead, kSoftmax);
  const std::pair<std::string_view, std::string_view> changes[] = {
      {"# target", "# targe"},
      {"kernel k0", "kernel"},
      {"kernel k0", "kernel k0 wide"},
      {"rows [2048]", "rows [2048"},
      {"f32 -> f32", "f32 f32"},
      {"f32 -> f32", "f32 -> f3"},
      {"21 rows", "x rows"},
      {"load 0", "load 2"},
      {"load 0 [768 1]", "load 0 [768  1]"},
      {"%1 = max", "%2 = max"},
      {"max over columns of %0", "max over columns of %1"},
      {"max over columns", "most over columns"},
      {"sub %0 %1", "sub %0 %2"},
      {"sub %0 %1", "minus %0 %1"},
      {"keep %3 in 1", "keep %4 in 1"},
      {"store 1 [768 1] = %5", "store 1 [768 1] = %05"},
  };
  for (const auto& [from, to] : changes) {
    std::string changed = text;
    changed.replace(changed.find(from), from.size(), to);
    auto read = parse_kernels(changed);
    ASSERT_FALSE(read.ok()) << to;
    EXPECT_EQ(read.status().code(), absl::StatusCode::kDataLoss);
    EXPECT_THAT(std::string(read.status().message()), HasSubstr("line ")) << to;
  }
}

}  // namespace
}  // namespace partita
