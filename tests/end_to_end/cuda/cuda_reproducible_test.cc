// train.yaml's reproducible on GPUs: the same bits on any number of them, and a proof of the order. The CUDA module
// runs on this machine (tests/stand_ins); its NCCL adds up ranks one after the other, so that four of them show whether
// sums go by the tree.
#ifdef PARTITA_STAND_INS
#include <gtest/gtest.h>

#include "tests/support/bundle.h"
#include "tests/support/command.h"
#include "tests/support/temp_folder.h"
#include "tests/support/training_bits.h"
#include "tools/verify/certificate.h"

namespace partita {
namespace {

constexpr const char* kTarget = " --target cuda:sm_80 ";
const char kProgram[] = "LD_LIBRARY_PATH=" PARTITA_STAND_INS " " PARTITA_STAND_INS "/home/partita";

class CudaReproducible : public testing::Test {
 protected:
  void SetUp() override {
    const Outcome made =
        run_partita("model gpt --layers 2 --hidden 32 --heads 2 --vocab 61 --seq 8 --quiet -o " + model());
    ASSERT_EQ(made.code, 0) << made.text;
  }
  std::string model() const { return out_ / "model.onnx"; }
  std::string recipe() const {
    return out_.write("train.yaml",
                      "loss: {kind: output, output: loss}\noptimizer: {kind: adamw, lr: 0.01}\nbatch: {global: 8}\n"
                      "clip_grad_norm: 1.0\ndata: {kind: synthetic, vocab: 61}\nreproducible: 4\n"
                      "init: [{match: '*', normal: {std: 0.1}}]\n");
  }
  TrainingBits train(const std::string& flags) const {
    return train_afresh(std::string(kProgram) + " train " + model() + " --train " + recipe() + kTarget + flags, out_,
                        2);
  }
  TempFolder out_;
};

TEST_F(CudaReproducible, RanksLeaveNoTrace) {
  const TrainingBits one = train("--ranks 1");
  EXPECT_EQ(one.metrics.size(), 2U);
  for (const char* flags : {"--ranks 4 --like ddp", "--ranks 2 --like zero1", "--ranks 4 --like zero2",
                            "--ranks 4 --like zero3", "--ranks 4 --pin pipeline=2 --pin data=2"})
    EXPECT_EQ(train(flags), one) << flags;
}

TEST_F(CudaReproducible, OrderIsProved) {
  for (const char* flags : {"--ranks 4 --like ddp", "--ranks 2 --like zero3", "--ranks 2 --pin pipeline=2"}) {
    const Outcome o =
        run_partita("compile " + model() + " --train " + recipe() + " -o " + (out_ / "bundle") + kTarget + flags);
    ASSERT_EQ(o.code, 0) << o.text;
    auto bundle = read_bundle(out_ / "bundle");
    ASSERT_TRUE(bundle.ok()) << bundle.status();
    const auto verdict = verifier::check_bundle(*bundle);
    ASSERT_TRUE(verdict.ok()) << flags << ": " << verdict.status();
    EXPECT_EQ(verdict->fixed.samples, 4);
  }
}

}  // namespace
}  // namespace partita
#endif
