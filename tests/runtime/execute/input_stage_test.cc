// What a rank reads of the data.
#include "runtime/execute/input_stage.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "base/cat.h"
#include "base/quote.h"
#include "tests/runtime/support/program_samples.h"

namespace partita::runtime {
namespace {

// The parts of one batch that a rank with this program reads.
size_t parts_read(Program program) {
  auto loaded = LoadedProgram::load(std::move(program));
  EXPECT_TRUE(loaded.ok()) << loaded.status();
  if (!loaded.ok()) return 0;
  auto executor = Executor::create(*loaded, nullptr, {});
  EXPECT_TRUE(executor.ok()) << executor.status();
  auto inputs = InputStage::open({.kind = DataKind::kSynthetic, .epochs = 0}, **executor);
  EXPECT_TRUE(inputs.ok()) << inputs.status();
  EXPECT_TRUE((*inputs)->start(0, 1).ok());
  auto batch = (*inputs)->take(0);
  EXPECT_TRUE(batch.ok()) << batch.status();
  for (int64_t m = 0; m < (*executor)->program().micro_batches; ++m) EXPECT_TRUE((*inputs)->stage(*batch, m, 0).ok());
  return batch->data.size();
}

// As on a pipeline's stage that has no part in it.
TEST(InputStage_Unread, IsLeftInTheFile) {
  const int64_t micro_batches = 3;
  Program program = least_squares(1, 12, micro_batches);
  EXPECT_EQ(parts_read(program), 3u);
  ProgramInput other = program.inputs[0];
  other.name = "other";
  program.inputs.insert(program.inputs.begin(), other);  // the same memory: read, too
  EXPECT_EQ(parts_read(program), 6u);
  int64_t& bytes = program.region_bytes[static_cast<int>(Region::kInput)];
  program.inputs[0].operand.address.offset = bytes;
  bytes *= 2;
  EXPECT_EQ(parts_read(program), 3u);
}

// A fed batch lies in the inputs' memory as the same numbers read from a file do.
TEST(InputStage_Fed, StagesEachMicroBatchsSamples) {
  auto loaded = LoadedProgram::load(least_squares(1, 12, 3));
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  auto executor = Executor::create(*loaded, nullptr, {});
  ASSERT_TRUE(executor.ok()) << executor.status();
  const Program& program = (*executor)->program();
  const ProgramInput& input = program.inputs[0];
  const size_t part = (*executor)->memory(input.operand).size();
  std::vector<std::byte> all(part * 3);
  for (size_t k = 0; k < all.size(); ++k) all[k] = static_cast<std::byte>(k % 50);
  auto feed = std::make_shared<SampleFeed>(std::vector<std::string>{input.name}, 1);
  auto inputs = InputStage::open({.feed = feed}, **executor);
  ASSERT_TRUE(inputs.ok()) << inputs.status();
  ASSERT_TRUE((*inputs)->start(5, 100).ok());
  feed->supply({all});
  ASSERT_TRUE((*inputs)->has(5));
  auto batch = (*inputs)->take(5);
  ASSERT_TRUE(batch.ok()) << batch.status();
  for (size_t m = 0; m < 3; ++m) {
    ASSERT_TRUE((*inputs)->stage(*batch, static_cast<int64_t>(m), 0).ok());
    const std::span<std::byte> staged = (*executor)->memory(input.operand);
    EXPECT_TRUE(std::equal(staged.begin(), staged.end(), all.begin() + static_cast<ptrdiff_t>(m * part))) << m;
  }
  (*inputs)->give_back(*std::move(batch));
  all.pop_back();
  feed->supply({all});
  EXPECT_EQ((*inputs)->take(6).status().message(),
            cat("the batch of step 6 has ", all.size(), " bytes for the graph's input ", quote(input.name),
                ", expected ", part * 3));
  feed->close();
  EXPECT_FALSE((*inputs)->has(7));
}

// Steps read samples where they were read to, whatever slot they take: nothing is copied into the inputs' memory.
TEST(InputStage_Lent, StepsReadTheBatch) {
  auto loaded = LoadedProgram::load(least_squares(1, 12, 3));
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  const Program& program = (*loaded)->program;
  ASSERT_EQ(program.slots, 2);
  const auto train = [&](Executor& executor, InputStage& inputs, const Batch& batch) {
    for (const ProgramState& state : program.states) {
      const std::span<std::byte> bytes = executor.memory(state.operand);
      std::fill_n(reinterpret_cast<float*>(bytes.data()), bytes.size() / sizeof(float), 0.5f);
    }
    EXPECT_TRUE(executor
                    .run(program.schedule,
                         [&](int64_t micro_batch, int64_t slot) { return inputs.stage(batch, micro_batch, slot); })
                    .ok());
  };
  auto lent = Executor::create(*loaded, nullptr, {}), fed = Executor::create(*loaded, nullptr, {});
  ASSERT_TRUE(lent.ok() && fed.ok());
  auto inputs = InputStage::open({.kind = DataKind::kSynthetic, .epochs = 0}, **lent);
  ASSERT_TRUE(inputs.ok() && (*inputs)->start(0, 1).ok());
  auto batch = (*inputs)->take(0);
  ASSERT_TRUE(batch.ok()) << batch.status();
  train(**lent, **inputs, *batch);
  for (int64_t slot : {0, 1}) {
    const std::span<const std::byte> own = (*lent)->memory(program.inputs[0].operand, slot);
    EXPECT_TRUE(std::all_of(own.begin(), own.end(), [](std::byte b) { return b == std::byte{0}; }));
  }
  // The same numbers handed over are copied.
  std::vector<std::byte> all;
  for (const Samples& part : batch->data) all.insert(all.end(), part.begin(), part.end());
  auto feed = std::make_shared<SampleFeed>(std::vector<std::string>{program.inputs[0].name}, 1);
  auto copied = InputStage::open({.feed = feed}, **fed);
  ASSERT_TRUE(copied.ok() && (*copied)->start(0, 1).ok());
  feed->supply({all});
  auto again = (*copied)->take(0);
  ASSERT_TRUE(again.ok()) << again.status();
  train(**fed, **copied, *again);
  for (const ProgramOutput& output : program.outputs) {
    const std::span<const std::byte> a = (*lent)->memory(output.operand), b = (*fed)->memory(output.operand);
    EXPECT_TRUE(std::equal(a.begin(), a.end(), b.begin(), b.end())) << output.name;
    EXPECT_FALSE(std::all_of(a.begin(), a.end(), [](std::byte x) { return x == std::byte{0}; })) << output.name;
  }
}

TEST(InputStage_Fed, NeedsEveryInput) {
  auto loaded = LoadedProgram::load(least_squares(1, 12, 3));
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  auto executor = Executor::create(*loaded, nullptr, {});
  ASSERT_TRUE(executor.ok()) << executor.status();
  auto inputs = InputStage::open({.feed = std::make_shared<SampleFeed>(std::vector<std::string>{"y"}, 1)}, **executor);
  ASSERT_TRUE(inputs.ok()) << inputs.status();
  EXPECT_FALSE((*inputs)->start(0, 1).ok());
}

}  // namespace
}  // namespace partita::runtime
