// How far ahead of their use parameters are gathered changes when they travel and what memory they take, and no bit.
#include <gtest/gtest.h>

#include "nlohmann/json.hpp"
#include "tests/support/command.h"
#include "tests/support/temp_folder.h"
#include "tests/support/training_bits.h"

namespace partita {
namespace {

class Prefetch : public testing::Test {
 protected:
  void SetUp() override {
    const Outcome made = run_partita(
        "model gpt --layers 5 --hidden 64 --heads 4 --vocab 64 --seq 16 --no-tied --with-weights --quiet -o " +
        (out_ / "model.onnx"));
    ASSERT_EQ(made.code, 0) << made.text;
    out_.write("train.yaml",
               "batch: {global: 8, micro: 2}\noptimizer: {kind: adamw, lr: 0.001}\nclip_grad_norm: 1\n"
               "data: {kind: synthetic}\n");
  }
  std::string command(const char* verb, const std::string& pins) const {
    return std::string(verb) + " " + (out_ / "model.onnx") + " --train " + (out_ / "train.yaml") + " --ranks 2 " + pins;
  }
  // Bytes of parameters that a rank has gathered at once at most, of a program that is proved.
  int64_t gathered_bytes(const std::string& pins) const {
    const Outcome made = run_partita(command("compile", pins) + " --quiet -o " + (out_ / "bundle"));
    EXPECT_EQ(made.code, 0) << made.text;
    const Outcome verified = run_partita("verify " + (out_ / "bundle"));
    EXPECT_EQ(verified.code, 0) << verified.text;
    return nlohmann::json::parse(TempFolder::read(out_ / "bundle/manifest.json"))["gathered_bytes"].get<int64_t>();
  }
  TempFolder out_;
};

TEST_F(Prefetch, EveryDepthHasTheSameBits) {
  auto bits = [&](const std::string& pins) {
    return train_afresh(partita_program() + " " + command("train", pins), out_, 2);
  };
  const TrainingBits one = bits("--pin zero=3");
  EXPECT_EQ(one.metrics.size(), 2u);
  for (const char* blocks : {"0", "3", "100"})
    EXPECT_EQ(bits(std::string("--pin zero=3 --pin prefetch_blocks=") + blocks), one) << blocks;
}

// Each more is one block more at once, until all are.
TEST_F(Prefetch, EachBlockAheadIsOneMoreInMemory) {
  constexpr int64_t kBlock = (4 * 64 * 64 + 2 * 4 * 64 * 64 + 4 * 64 + 4 * 64 + 64 + 4 * 64) * 4;
  const int64_t none = gathered_bytes("--pin zero=3 --pin prefetch_blocks=0");
  EXPECT_NEAR(static_cast<double>(none), kBlock, 0.1 * kBlock);
  for (int64_t blocks : {1, 2})
    EXPECT_NEAR(static_cast<double>(gathered_bytes("--pin zero=3 --pin prefetch_blocks=" + std::to_string(blocks))),
                static_cast<double>((1 + blocks) * none), 0.1 * kBlock)
        << blocks;
  EXPECT_GT(gathered_bytes("--pin zero=3 --pin prefetch_blocks=100"), 5 * none);
}

}  // namespace
}  // namespace partita
