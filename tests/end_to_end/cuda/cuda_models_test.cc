// Exported models compiled for a GPU, and trained by the CUDA module on a CUDA runtime that is this machine: generated
// and own kernels run as PTX (tests/ptx), and what is wrong with them ends the run.
#ifdef PARTITA_STAND_INS
#include <gtest/gtest.h>

#include "tests/support/trained_model.h"

namespace partita {
namespace {

using runtime::NpzFile;

const char kProgram[] = "LD_LIBRARY_PATH=" PARTITA_STAND_INS " " PARTITA_STAND_INS "/home/partita";
// Of an architecture that the CUDA runtime has not itself: it is given the PTX.
const char kTarget[] = " --target cuda:sm_80 ";

// Two ranks of one GPU, whose collectives go through the host, within the limits that hold on processors.
TEST(CudaModels_Ranks, HoldAsPtx) {
  const std::string folder = PARTITA_MODELS "/mixtral";
  auto expected = NpzFile::open(folder + "/expected.npz");
  if (!expected.ok()) GTEST_SKIP() << "no exported models at " << PARTITA_MODELS;
  for (const char* flags : {"--ranks 2 --pin tensor=2", "--ranks 2 --pin pipeline=2"}) {
    TempFolder out;
    expect_holds(folder, *expected, train(folder, 1, kTarget + std::string(flags), out, "ptx", kProgram), 2, 1);
  }
}

}  // namespace
}  // namespace partita
#endif
