// Rows that are unaligned in memory: a head of 257 classes is padded for GPUs, computes what a processor does with the
// classes as they are, and leaves files that have them so.
#ifdef PARTITA_STAND_INS
#include <gtest/gtest.h>

#include "tests/support/command.h"
#include "tests/support/losses.h"
#include "tests/support/temp_folder.h"
#include "tests/support/tensor_difference.h"
#include "tools/machine/cuda_toolkit.h"

namespace partita {
namespace {

const char kStandIns[] = "LD_LIBRARY_PATH=" PARTITA_STAND_INS " " PARTITA_STAND_INS "/home/partita";
const char kGpu[] = " --target cuda:sm_80 ";

struct Rounding {
  const char* precision;
  double loss, gradients, parameters;  // relative differences; a bias that begins with zeros is its updates
};

class UnalignedRows : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    Outcome made = run_command(partita_program() +
                               " model gpt --layers 1 --hidden 16 --heads 2 --vocab 257 --seq 8 --quiet "
                               "--with-weights " +
                               GetParam() + " -o " + (out_ / "model.onnx"));
    ASSERT_EQ(made.code, 0) << made.text;
    out_.write("train.yaml",
               "loss: {kind: output, output: loss}\noptimizer: {kind: adamw, lr: 0.001, eps: 0.001}\n"
               "batch: {global: 4}\nbind: {batch: 4}\nclip_grad_norm: 1.0\ndata: {kind: tokens, dtype: u16}\n");
    std::string tokens;
    for (int k = 0; k < 400; ++k) {
      const int token = 256 - k * k % 257;
      tokens += static_cast<char>(token % 256), tokens += static_cast<char>(token / 256);
    }
    data_ = out_.write("tokens.bin", tokens);
  }
  Outcome train(const std::string& program, const std::string& name, const std::string& flags) {
    return run_command(program + " train " + (out_ / "model.onnx") + " --train " + (out_ / "train.yaml") + " --data " +
                       data_ + " --quiet --steps 2 --metrics " + (out_ / (name + ".jsonl")) + " --save " +
                       (out_ / (name + ".st")) + " --save-gradients " + (out_ / (name + ".grad.st")) + " " + flags);
  }
  TempFolder out_;
  std::string data_;
};

TEST_P(UnalignedRows, ArePaddedAndTrainAsOnProcessors) {
  for (const Rounding& r : {Rounding{"fp32", 1e-5, 1e-5, 1e-5}, Rounding{"bf16", 2e-3, 2e-2, 2e-2}}) {
    const std::string precision = std::string(" --precision ") + r.precision;
    Outcome host = train(partita_program(), "host", "--threads 1" + precision),
            gpu = train(kStandIns, "gpu", kGpu + precision);
    ASSERT_EQ(host.code, 0) << host.text;
    ASSERT_EQ(gpu.code, 0) << gpu.text;
    const std::vector<double> expected = read_losses(out_ / "host.jsonl"), found = read_losses(out_ / "gpu.jsonl");
    ASSERT_EQ(found.size(), expected.size());
    for (size_t k = 0; k < found.size(); ++k) EXPECT_NEAR(found[k], expected[k], r.loss * expected[k]) << r.precision;
    EXPECT_LT(tensor_difference(out_ / "gpu.grad.st", out_ / "host.grad.st"), r.gradients) << r.precision;
    EXPECT_LT(tensor_difference(out_ / "gpu.st", out_ / "host.st"), r.parameters) << r.precision;
  }
}

TEST_P(UnalignedRows, AreProved) {
  if (auto found = find_assembler(); !found.ok()) GTEST_SKIP() << found.status().message();
  for (const char* flags :
       {"--precision bf16 --pin micro_batch=2", "--ranks 4 --pin data=2 --pin tensor=2 --pin zero=3"}) {
    Outcome compiled = run_command(partita_program() + " compile " + (out_ / "model.onnx") + " --train " +
                                   (out_ / "train.yaml") + " --quiet " + kGpu + flags + " -o " + (out_ / "bundle"));
    ASSERT_EQ(compiled.code, 0) << flags << ": " << compiled.text;
    const Outcome program = run_command(partita_program() + " disassemble " + (out_ / "bundle"));
    EXPECT_EQ(program.text.find(",257]"), std::string::npos) << flags;  // nowhere a row of 257
    const Outcome proved = run_command(partita_program() + " verify " + (out_ / "bundle"));
    EXPECT_EQ(proved.code, 0) << flags << ": " << proved.text;
  }
}

// What one stage divides by its ranks another one makes longer for its rows: a tied embedding of 302 rows becomes one
// of 304 after it is cut in two, and 256 columns over six ranks become 258, then 264.
TEST(RowsOfUnequalStages, AreProved) {
  if (auto found = find_assembler(); !found.ok()) GTEST_SKIP() << found.status().message();
  TempFolder out;
  Outcome made = run_command(partita_program() + " model gpt --layers 2 --hidden 64 --heads 4 --vocab 302 --seq 8 " +
                             "--quiet --with-weights -o " + (out / "model.onnx"));
  ASSERT_EQ(made.code, 0) << made.text;
  out.write("train.yaml", "loss: {kind: output, output: loss}\nbatch: {global: 6}\n");
  for (const char* stages : {"'stages=[{data: 1, tensor: 2}, {data: 2, tensor: 1}]'",
                             "'stages=[{data: 1, tensor: 6}, {data: 6, tensor: 1}]' --precision bf16"}) {
    Outcome compiled = run_command(partita_program() + " compile " + (out / "model.onnx") + " --train " +
                                   (out / "train.yaml") + " --quiet " + kGpu + "--pin pipeline=2 --pin micro_batch=1 " +
                                   "--pin " + stages + " -o " + (out / "bundle"));
    ASSERT_EQ(compiled.code, 0) << stages << ": " << compiled.text;
    const Outcome proved = run_command(partita_program() + " verify " + (out / "bundle"));
    EXPECT_EQ(proved.code, 0) << stages << ": " << proved.text;
  }
}

INSTANTIATE_TEST_SUITE_P(Head, UnalignedRows, testing::Values("--tied", "--no-tied"),
                         [](const auto& info) { return info.index == 0 ? "Tied" : "Untied"; });

}  // namespace
}  // namespace partita
#endif
