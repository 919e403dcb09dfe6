// Sizes that ranks do not divide, through the command line: a vocabulary of 97 and 127 hidden features over two and
// four tensor ranks compute what one rank does, and their files hold the tensors as they are.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>

#include "runtime/checkpoint/checkpoint_manifest.h"
#include "tests/support/command.h"
#include "tests/support/losses.h"
#include "tests/support/temp_folder.h"
#include "tests/support/tensor_difference.h"

namespace partita {
namespace {

class OddSizes : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    Outcome made = run_command(partita_program() +
                               " model gpt --layers 2 --hidden 32 --heads 4 --ffn 127 --vocab 97 --seq 16 --quiet "
                               "--with-weights " +
                               GetParam() + " -o " + (out_ / "model.onnx"));
    ASSERT_EQ(made.code, 0) << made.text;
    out_.write(
        "train.yaml",
        "loss: {kind: output, output: loss}\noptimizer: {kind: adamw, lr: 0.001, eps: 0.001, weight_decay: 0.1}\n"
        "batch: {global: 8}\nbind: {batch: 8}\nclip_grad_norm: 1.0\ndata: {kind: tokens, dtype: u8}\n");
    std::string tokens;
    for (int k = 0; k < 4000; ++k) tokens += static_cast<char>(k * k % 97);
    data_ = " --data " + out_.write("tokens.bin", tokens);
  }
  std::string train(const std::string& name, const std::string& flags) {
    return partita_program() + " train " + (out_ / "model.onnx") + " --train " + (out_ / "train.yaml") + data_ +
           " --quiet --threads 1 --steps 3 --metrics " + (out_ / (name + ".jsonl")) + " --save " +
           (out_ / (name + ".st")) + " --save-gradients " + (out_ / (name + ".grad.st")) + " --checkpoint " +
           (out_ / name) + " " + flags;
  }
  // Each tensor's shape and checksum, by name.
  std::map<std::string, std::pair<std::vector<int64_t>, uint64_t>> tensors(const std::string& name) {
    std::map<std::string, std::pair<std::vector<int64_t>, uint64_t>> out;
    auto manifest = runtime::read_manifest(*runtime::find_checkpoint(out_ / name));
    EXPECT_TRUE(manifest.ok()) << manifest.status();
    for (const auto& t : manifest->tensors) out[t.name] = {t.shape, t.checksum};
    return out;
  }
  TempFolder out_;
  std::string data_;
};

TEST_P(OddSizes, OverTensorRanks_AreOneRanks) {
  Outcome alone = run_command(train("alone", "--ranks 1"));
  ASSERT_EQ(alone.code, 0) << alone.text;
  int number = 0;
  for (const char* flags :
       {"--ranks 2 --pin tensor=2", "--ranks 4 --pin tensor=4", "--ranks 4 --pin tensor=2 --pin zero=3",
        "--ranks 4 --pin tensor=2 --pin pipeline=2 --pin micro_batch=4",
        "--ranks 2 --pin tensor=2 --pin sequence_parallel=true --pin micro_batch=2"}) {
    std::string name = "split" + std::to_string(number++);
    Outcome run = run_command(train(name, flags));
    ASSERT_EQ(run.code, 0) << flags << ": " << run.text;
    std::vector<double> one = read_losses(out_ / "alone.jsonl"), found = read_losses(out_ / (name + ".jsonl"));
    ASSERT_EQ(found.size(), one.size()) << flags;
    for (size_t k = 0; k < one.size(); ++k) EXPECT_NEAR(found[k], one[k], 1e-5 * one[k]) << flags;
    EXPECT_LT(tensor_difference(out_ / (name + ".grad.st"), out_ / "alone.grad.st"), 1e-5) << flags;
    EXPECT_LT(tensor_difference(out_ / (name + ".st"), out_ / "alone.st"), 1e-4) << flags;
    // Taken up by one rank and written again without a step: the same tensors, bit for bit.
    Outcome again = run_command(partita_program() + " train " + (out_ / "model.onnx") + " --train " +
                                (out_ / "train.yaml") + data_ + " --quiet --threads 1 --steps 3 --resume " +
                                (out_ / name) + " --checkpoint " + (out_ / (name + ".again")));
    ASSERT_EQ(again.code, 0) << flags << ": " << again.text;
    EXPECT_EQ(tensors(name + ".again"), tensors(name)) << flags;
  }
}

TEST_P(OddSizes, AreProved) {
  for (const char* flags : {"--ranks 2 --pin tensor=2", "--ranks 4 --pin tensor=4 --keep-gradients",
                            "--ranks 4 --pin tensor=2 --pin zero=2 --pin micro_batch=2"}) {
    Outcome compiled = run_command(partita_program() + " compile " + (out_ / "model.onnx") + " --train " +
                                   (out_ / "train.yaml") + " --quiet " + flags + " -o " + (out_ / "bundle"));
    ASSERT_EQ(compiled.code, 0) << flags << ": " << compiled.text;
    // The head is split: a rank's program has no logits of all classes.
    std::string program = TempFolder::read(out_ / "bundle/verify/rank.ir");
    EXPECT_EQ(program.find(",97]"), std::string::npos) << flags;
    Outcome proved = run_command(partita_program() + " verify " + (out_ / "bundle") + " --numeric --threads 1");
    EXPECT_EQ(proved.code, 0) << flags << ": " << proved.text;
  }
}

TEST_P(OddSizes, AreEvaluatedAlike) {
  std::string evaluate =
      TempFolder::read(out_ / "train.yaml") +
      "evaluate: {every: 1, batches: 1, data: {kind: tokens, dtype: u8, path: " + (out_ / "tokens.bin") + "}}\n";
  out_.write("train.yaml", evaluate);
  std::vector<double> alone;
  for (const char* flags : {"--ranks 1", "--ranks 2 --pin tensor=2"}) {
    Outcome run = run_command(train("run", flags));
    ASSERT_EQ(run.code, 0) << flags << ": " << run.text;
    std::vector<double> found;
    std::ifstream lines(out_ / "run.jsonl");
    for (std::string line; std::getline(lines, line);)
      found.push_back(nlohmann::json::parse(line)["evaluation_loss"].get<double>());
    ASSERT_EQ(found.size(), 3u) << flags;
    if (alone.empty()) alone = found;
    for (size_t k = 0; k < found.size(); ++k) EXPECT_NEAR(found[k], alone[k], 1e-5 * alone[k]) << flags;
    std::filesystem::remove_all(out_ / "run");
  }
}

// 64 channels over three ranks, whose statistics are of all data ranks: a batch norm is padded in smaller ops there,
// and as a whole in the serial program.
TEST(OddChannels, OfBatchNormsOverDataRanks_AreProved) {
  TempFolder out;
  const Outcome made =
      run_partita("model resnet --depth 18 --image 32 --quiet --with-weights -o " + (out / "model.onnx"));
  ASSERT_EQ(made.code, 0) << made.text;
  out.write("train.yaml",
            "loss: {kind: cross_entropy, output: logits, target: target}\noptimizer: {kind: sgd, lr: 0.01}\n"
            "batch: {global: 6}\n");
  const Outcome compiled = run_partita("compile " + (out / "model.onnx") + " --train " + (out / "train.yaml") +
                                       " --pin data=2 --pin tensor=3 --quiet -o " + (out / "bundle"));
  ASSERT_EQ(compiled.code, 0) << compiled.text;
  const Outcome proved = run_partita("verify " + (out / "bundle"));
  EXPECT_EQ(proved.code, 0) << proved.text;
}

INSTANTIATE_TEST_SUITE_P(Head, OddSizes, testing::Values("--tied", "--no-tied"),
                         [](const auto& info) { return info.index == 0 ? "Tied" : "Untied"; });

}  // namespace
}  // namespace partita
