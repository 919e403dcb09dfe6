// What a rank reads of the data.
#include "runtime/execute/input_stage.h"

#include <gtest/gtest.h>

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

}  // namespace
}  // namespace partita::runtime
