#include "runtime/audit/auditor.h"

#include <cstring>
#include <functional>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "runtime/program/placement.h"
#include "tests/runtime/support/on_ranks.h"
#include "tests/runtime/support/program_samples.h"

namespace partita::runtime {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;

constexpr int kRanks = 3;
constexpr int64_t kBatch = 12, kMicroBatches = 2;

template <typename T>
std::span<T> values(const Executor& executor, const Operand& operand, int64_t slot = 0) {
  const std::span<std::byte> bytes = executor.memory(operand, slot);
  return {reinterpret_cast<T*>(bytes.data()), bytes.size() / sizeof(T)};
}

void flip(std::span<std::byte> bytes, size_t bit) { bytes[bit / 8] ^= std::byte(1u << bit % 8); }

// Steps of a least-squares descent on three ranks, each audited. `damage(rank, run, executor)` comes between the
// gradients' part and the rest of the step, `run` counting from 0 how often a step was run.
using Damage = std::function<void(int rank, int run, const Executor&)>;
struct Outcome {
  std::vector<std::string> messages = std::vector<std::string>(kRanks);
  std::vector<absl::StatusCode> codes = std::vector<absl::StatusCode>(kRanks);
  std::vector<std::vector<float>> w = std::vector<std::vector<float>>(kRanks);
};

Outcome audited(int steps, const Damage& before_update, const Damage& after_step) {
  auto loaded = LoadedProgram::load(least_squares(kRanks, kBatch, kMicroBatches));
  EXPECT_TRUE(loaded.ok()) << loaded.status();
  Outcome out;
  on_ranks(kRanks, [&](int rank, Communicator* communicator) {
    RecordingCommunicator recorder(*communicator);
    auto executor = Executor::create(*loaded, &recorder, {});
    ASSERT_TRUE(executor.ok()) << executor.status();
    auto auditor = Auditor::open(**executor, communicator, &recorder, 1);
    ASSERT_TRUE(auditor.ok()) << auditor.status();
    const Program& p = (*executor)->program();
    for (float& v : values<float>(**executor, p.states[0].operand)) v = -1;
    values<float>(**executor, p.states[1].operand)[0] = 1.0f / static_cast<float>(kBatch);
    for (size_t c = 0; c < 3; ++c) values<float>(**executor, p.states[2].operand)[c * 5] = -0.5f;
    int runs = 0;
    absl::Status status;
    for (int step = 0; status.ok() && step < steps; ++step) {
      status = (*auditor)->run_step(step, [&] {
        absl::Status ran = (*executor)->run(p.schedule, [&](int64_t micro_batch, int64_t slot) {
          int64_t n = micro_batch * 64 + rank * 16;
          for (float& x : values<float>(**executor, p.inputs[0].operand, slot)) x = static_cast<float>(n++ % 7) / 7;
          if (micro_batch == kMicroBatches - 1) before_update(rank, runs, **executor);
          return absl::OkStatus();
        });
        after_step(rank, runs++, **executor);
        return ran;
      });
    }
    const size_t r = static_cast<size_t>(rank);
    out.messages[r] = std::string(status.message());
    out.codes[r] = status.code();
    for (float x : values<float>(**executor, p.states[0].operand)) out.w[r].push_back(x);
  });
  return out;
}

const Damage kNone = [](int, int, const Executor&) {};

TEST(Auditor, SoundStepsPass_AndAreTakenOnce) {
  const Outcome four = audited(4, kNone, kNone), again = audited(4, kNone, kNone), five = audited(5, kNone, kNone);
  EXPECT_THAT(four.codes, Each(absl::StatusCode::kOk)) << four.messages[0];
  EXPECT_EQ(four.w, again.w);
  EXPECT_EQ(four.w[0], four.w[2]);
  EXPECT_NE(four.w, five.w);
}

TEST(Auditor, DamagedReplica_NamesStateAndMinority) {
  const Outcome out = audited(3, kNone, [](int rank, int run, const Executor& executor) {
    if (rank == 1 && run >= 2) flip(executor.memory(executor.program().states[2].operand), 77);
  });
  EXPECT_THAT(out.codes, Each(absl::StatusCode::kAborted));
  EXPECT_THAT(out.messages[1], AllOf(HasSubstr("audit after step 2: rank 1 differ"), HasSubstr("'rates'")));
}

TEST(Auditor, StepThatGivesOtherBitsTheSecondTime_NamesTheRankThatDid) {
  const Outcome out = audited(
      3,
      [](int rank, int run, const Executor& executor) {
        if (rank == 2 && run == 1) flip(executor.memory(executor.program().inputs[0].operand, kMicroBatches - 1), 23);
      },
      kNone);
  EXPECT_THAT(out.codes, Each(absl::StatusCode::kAborted));
  EXPECT_THAT(out.messages[2], AllOf(HasSubstr("audit of step 0: rank 2 computed the step twice"),
                                     HasSubstr("what it put into all_reduce")));
  EXPECT_THAT(out.messages[0], HasSubstr("rank 2"));
}

TEST(Auditor, EveryBitOfAState_IsSeen) {
  for (size_t bit = 0; bit < 128; bit += 9) {
    const Outcome out = audited(1, kNone, [bit](int rank, int run, const Executor& executor) {
      if (rank == 0 && run == 1) flip(executor.memory(executor.program().states[0].operand), bit);
    });
    EXPECT_THAT(out.codes, Each(absl::StatusCode::kAborted)) << bit;
  }
}

TEST(RecordingCommunicator, MessagesHaveOneChecksumAtBothEnds) {
  std::vector<CollectiveRecord> records[2];
  on_ranks(2, [&](int rank, Communicator* communicator) {
    RecordingCommunicator recorder(*communicator);
    auto group = recorder.create_group({1, 0});  // places are not ranks
    recorder.record(true);
    for (int64_t n : {5, 6}) {
      int64_t value = rank == 0 ? n : 0;
      CollectiveOp op{.kind = rank == 0 ? CollectiveKind::kSend : CollectiveKind::kRecv,
                      .group = *group,
                      .dtype = DType::kI64,
                      .count = 1,
                      .label = "m"};
      if (rank == 0) op.input = &value;
      if (rank == 1) op.output = &value;
      (rank == 0 ? op.to : op.from) = rank == 0 ? 0 : 1;
      ASSERT_TRUE(recorder.run(std::move(op)).ok());
      EXPECT_EQ(value, n);
    }
    records[rank] = recorder.take();
  });
  ASSERT_EQ(records[0].size(), 2u);
  ASSERT_EQ(records[1].size(), 2u);
  for (size_t k = 0; k < 2; ++k) {
    EXPECT_EQ(records[0][k].checksum, records[1][k].checksum);
    EXPECT_EQ(records[0][k].peer, 1);
    EXPECT_EQ(records[1][k].peer, 0);
    EXPECT_TRUE(records[1][k].received);
  }
  EXPECT_NE(records[0][0].checksum, records[0][1].checksum);
}

TEST(RecordingCommunicator, WhatLiesBetweenTheValuesOfABuffer_DoesNotCount) {
  on_ranks(2, [&](int, Communicator* communicator) {
    RecordingCommunicator recorder(*communicator);
    const auto checksum = [&](size_t changed) {
      std::vector<float> buffer(32, 1);  // three values at 0 and two at 16
      buffer[changed] = 2;
      recorder.record(true);
      EXPECT_TRUE(
          recorder.run({.kind = CollectiveKind::kAllReduce, .count = 32, .output = buffer.data(), .elements = {3, 2}})
              .ok());
      return recorder.take().at(0).checksum;
    };
    const uint64_t left_over = checksum(31);
    for (size_t k : {3, 15, 18}) EXPECT_EQ(checksum(k), left_over) << k;
    for (size_t k : {0, 2, 16, 17}) EXPECT_NE(checksum(k), left_over) << k;
  });
}

}  // namespace
}  // namespace partita::runtime
