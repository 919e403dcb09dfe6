// Exported models compiled for a GPU, and trained by the CUDA module on a CUDA runtime that is this machine: generated
// and own kernels run as PTX (tests/ptx), and what is wrong with them ends the run.
#ifdef PARTITA_STAND_INS
#include <gtest/gtest.h>

#include "tests/support/model_folders.h"
#include "tests/support/test_options.h"
#include "tests/support/trained_model.h"

namespace partita {
namespace {

using runtime::NpzFile;

const char kProgram[] = "LD_LIBRARY_PATH=" PARTITA_STAND_INS " " PARTITA_STAND_INS "/home/partita";
// Of an architecture that the CUDA runtime has not itself: it is given the PTX.
const char kTarget[] = " --target cuda:sm_80 ";

// All models within the limits that hold on processors: in full, or their first step.
TEST(CudaModels_EveryFolder, HoldsAsPtx) {
  const std::vector<std::string> folders = model_folders();
  if (folders.empty()) GTEST_SKIP() << "no exported models at " << PARTITA_MODELS;
  for (const std::string& folder : folders) {
    auto expected = NpzFile::open(folder + "/expected.npz");
    ASSERT_TRUE(expected.ok()) << expected.status();
    TempFolder out;
    const size_t steps = sample_or_all<size_t>(1, array(*expected, "loss_f64").size());
    expect_holds(folder, *expected, train(folder, steps, kTarget, out, "ptx", kProgram), 2, steps);
  }
}

// In 16 bits, beside the same on processors: both round, in other orders.
TEST(CudaModels_Narrow, TrainAsOnProcessors) {
  for (const auto& [model, precision] : {std::pair{"llama", "bf16"}, {"resnet", "bf16"}, {"mixtral", "fp16"}}) {
    SCOPED_TRACE(std::string(model) + " " + precision);
    const std::string folder = std::string(PARTITA_MODELS) + "/" + model;
    if (!std::filesystem::exists(folder)) GTEST_SKIP() << "no exported models at " << PARTITA_MODELS;
    TempFolder out;
    const std::string flags = std::string("--precision ") + precision;
    const Training gpu = train(folder, 1, kTarget + flags, out, "ptx", kProgram),
                   host = train(folder, 1, flags, out, "host");
    ASSERT_EQ(gpu.losses.size(), 1u);
    EXPECT_NEAR(gpu.losses[0] / host.losses[0], 1, 3e-3);
  }
}

// Two ranks of one GPU, whose collectives go through the host, within the limits that hold on processors; where blocks
// keep what they need on the host, too.
TEST(CudaModels_Ranks, HoldAsPtx) {
  const std::string folder = PARTITA_MODELS "/mixtral";
  auto expected = NpzFile::open(folder + "/expected.npz");
  if (!expected.ok()) GTEST_SKIP() << "no exported models at " << PARTITA_MODELS;
  for (const char* flags : {"--ranks 2 --pin tensor=2 --pin recompute=full_offload", "--ranks 2 --pin pipeline=2",
                            "--ranks 2 --pin pipeline=2 --pin recompute=offload"}) {
    TempFolder out;
    expect_holds(folder, *expected, train(folder, 1, kTarget + std::string(flags), out, "ptx", kProgram), 2, 1);
  }
}

}  // namespace
}  // namespace partita
#endif
