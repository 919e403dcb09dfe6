#include "runtime/program/batched_launches.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>

namespace partita::runtime {
namespace {

using Launches = std::vector<std::vector<size_t>>;

Operand at(int64_t offset, int64_t elements = 16, int64_t stride = 0) {
  return {{Region::kArena, offset, stride}, DType::kF32, {elements}};
}
Step step(std::vector<Operand> reads, std::vector<Operand> writes, int64_t units = 1) {
  Step s;
  s.inputs = static_cast<int32_t>(reads.size());
  s.operands = std::move(reads);
  s.operands.insert(s.operands.end(), writes.begin(), writes.end());
  s.units = units;
  return s;
}

TEST(BatchedLaunches_StepsOfOneKind, GoTogetherWhereTheyDoNotTouch) {
  const std::vector<Step> steps = {step({at(0)}, {at(0)}), step({at(64)}, {at(128)}), step({at(192)}, {at(192)}),
                                   step({at(128)}, {at(256)}), step({at(320)}, {at(320)})};
  EXPECT_EQ(batched_launches(steps, std::vector{7, 3, 7, -1, 7}, 1), (Launches{{0, 2, 4}, {1}, {3}}));
}

TEST(BatchedLaunches_WhatMustComeAfter, StaysAfter) {
  const Operand x = at(0), y = at(64), z = at(128), part = at(64, 1);
  // Reads what the step between has written; writes what it has read; writes what it has written.
  EXPECT_EQ(
      batched_launches(std::vector{step({x}, {x}), step({z}, {y}), step({part}, {at(512)})}, std::vector{0, 1, 0}, 1),
      (Launches{{0}, {1}, {2}}));
  EXPECT_EQ(
      batched_launches(std::vector{step({x}, {x}), step({y}, {z}), step({at(512)}, {part})}, std::vector{0, 1, 0}, 1),
      (Launches{{0}, {1}, {2}}));
  EXPECT_EQ(
      batched_launches(std::vector{step({x}, {x}), step({z}, {y}), step({at(512)}, {part})}, std::vector{0, 1, 0}, 1),
      (Launches{{0}, {1}, {2}}));
  // Both only read it.
  EXPECT_EQ(
      batched_launches(std::vector{step({x}, {x}), step({y}, {z}), step({y}, {at(512)})}, std::vector{0, 1, 0}, 1),
      (Launches{{0, 2}, {1}}));
  // Of the same launch.
  EXPECT_EQ(batched_launches(std::vector{step({x}, {y}), step({y}, {z})}, std::vector{0, 0}, 1), (Launches{{0}, {1}}));
}

// In the second slot the first one's result lies where the other reads.
TEST(BatchedLaunches_Slots, CountEachByItself) {
  const std::vector<Step> steps = {step({at(0)}, {at(64, 16, 128)}), step({at(192)}, {at(256)})};
  EXPECT_EQ(batched_launches(steps, std::vector{0, 0}, 1), (Launches{{0, 1}}));
  EXPECT_EQ(batched_launches(steps, std::vector{0, 0}, 2), (Launches{{0}, {1}}));
}

// Any program leaves the same memory in the order of its launches.
TEST(BatchedLaunches_AnyProgram, ComputesTheSame) {
  std::mt19937 rng(5);
  const auto below = [&](int64_t n) { return static_cast<int64_t>(rng() % static_cast<uint64_t>(n)); };
  size_t joined = 0;
  for (int round = 0; round < 300; ++round) {
    std::vector<Step> steps;
    std::vector<int> kinds;
    for (int k = 0; k < 40; ++k) {
      std::vector<Operand> reads(1 + rng() % 2), writes(1 + rng() % 2);
      for (Operand& o : reads) o = at(64 * below(80), 1 + below(40));
      for (Operand& o : writes) o = at(64 * below(80), 1 + below(40));
      steps.push_back(step(reads, writes));
      kinds.push_back(static_cast<int>(below(5)) - 1);
    }
    const auto run = [&](std::vector<uint32_t>& memory, size_t k) {
      uint32_t sum = static_cast<uint32_t>(k);
      const auto words = [](const Operand& o) { return static_cast<size_t>(o.address.offset / 4); };
      for (int32_t i = 0; i < steps[k].inputs; ++i) {
        const Operand& o = steps[k].operands[static_cast<size_t>(i)];
        for (int64_t e = 0; e < o.shape[0]; ++e) sum = sum * 31 + memory[words(o) + static_cast<size_t>(e)];
      }
      for (size_t i = static_cast<size_t>(steps[k].inputs); i < steps[k].operands.size(); ++i) {
        const Operand& o = steps[k].operands[i];
        for (int64_t e = 0; e < o.shape[0]; ++e) memory[words(o) + static_cast<size_t>(e)] = sum ^= sum << 5;
      }
    };
    std::vector<uint32_t> expected(80 * 16 + 40), found = expected;
    for (size_t k = 0; k < steps.size(); ++k) run(expected, k);
    size_t seen = 0;
    for (const std::vector<size_t>& launch : batched_launches(steps, kinds, 1)) {
      for (size_t k = launch.size(); k-- > 0; ++seen) {  // in any order
        EXPECT_EQ(kinds[launch[k]], kinds[launch[0]]);
        run(found, launch[k]);
      }
      joined += launch.size() - 1;
    }
    ASSERT_EQ(seen, steps.size());
    ASSERT_EQ(found, expected) << round;
  }
  EXPECT_GT(joined, 300u);
}

TEST(LaunchTable_Entries, TellBlocksPointsAndAddresses) {
  Step a = step({at(0)}, {at(64)}, 3), b = step({at(128)}, {at(192)}, 5);
  a.params[kBatchedParam] = int64_t{700};
  b.params[kBatchedParam] = int64_t{1100};
  std::byte memory[4];
  const std::vector<const Step*> steps = {&a, &b};
  const std::vector<std::byte*> addresses = {memory, memory + 1, memory + 2, memory + 3};
  const auto word = [&](int k) { return static_cast<int64_t>(reinterpret_cast<intptr_t>(memory + k)); };
  EXPECT_EQ(launch_table(steps, addresses),
            (std::vector<int64_t>{2, 1, 0, 700, word(0), word(1), 3, 1100, word(2), word(3)}));
}

}  // namespace
}  // namespace partita::runtime
