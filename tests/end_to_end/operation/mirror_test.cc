// A run that loses a host goes on from what another one has in its memory.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <string>

#include "base/cat.h"
#include "runtime/checkpoint/checkpoint_manifest.h"
#include "tests/support/command.h"
#include "tests/support/temp_folder.h"

namespace partita {
namespace {

namespace fs = std::filesystem;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;

class MirrorCommand : public testing::Test {
 protected:
  void SetUp() override {
    const std::string model = out_ / "mlp.onnx";
    const std::string recipe = out_.write("train.yaml",
                                          "loss: {kind: mse, target: target}\noptimizer: {kind: adamw, lr: 0.01}\n"
                                          "data: {kind: synthetic}\nreproducible: 4\n");
    Outcome made = run_partita("model mlp --layers 16,32,8 --batch 8 --with-weights --quiet -o " + model);
    ASSERT_EQ(made.code, 0) << made.text;
    made = run_partita("compile " + model + " --train " + recipe + " --ranks 4 --like zero1 --also 2 --quiet -o " +
                       bundle_);
    ASSERT_EQ(made.code, 0) << made.text;
    for (const char* host : {"a", "b"}) fs::create_directories(out_ / host);
  }
  // The shell's line that starts ranks of two hosts, which differ in their memory, as $p0, $p1 and so on.
  std::string start(int ranks, const std::string& flags) {
    std::string all;
    for (int rank = 0; rank < ranks; ++rank)
      append(all, "RANK=", rank, " LOCAL_RANK=", rank, " WORLD_SIZE=", ranks, " LOCAL_WORLD_SIZE=", ranks,
             " MASTER_ADDR=127.0.0.1 MASTER_PORT=", 20000 + ::getpid() % 20000, " ", bundle_,
             "/rank --backend tcp --threads 1 --checkpoint ", folder_, " --mirror 20 --mirror-in ",
             out_ / (rank * 2 < ranks ? "a" : "b"), " ", flags, " & p", rank, "=$!; ");
    return all;
  }

  TempFolder out_;
  const std::string bundle_ = out_ / "bundle", folder_ = out_ / "ckpt";
};

TEST_F(MirrorCommand, LostHost_CostsNoCheckpoint_AndNoBit) {
  // There is no checkpoint on disk. Each time the second host is lost with its memory.
  for (const int ranks : {4, 2}) {
    const Outcome lost =
        run_command(start(4, "--steps 1000000000 --resume") + "until ls -d " + (out_ / "a") +
                    "/*/step-*[1-9]?? >/dev/null 2>&1; do sleep 0.02; done; kill -9 $p2 $p3; wait $p0; exit $?");
    EXPECT_EQ(lost.code, 129) << lost.text;
    EXPECT_THAT(lost.text, HasSubstr("mirror: every 20 steps each rank sends its part, at most "));
    fs::remove_all(out_ / "b");
    fs::create_directories(out_ / "b");
    ASSERT_TRUE(runtime::list_checkpoints(folder_).empty());
    std::string memory;
    for (const auto& entry : fs::directory_iterator(out_ / "a")) memory = entry.path();
    const int64_t newest = runtime::list_checkpoints(memory).back();
    const std::string steps = std::to_string(newest + 7), saved = out_ / "saved.safetensors";
    // A checkpoint would be one more step to go on from: the next start is to find none.
    const Outcome again =
        run_command(start(ranks, "--resume --steps " + steps + " --save " + saved) + "wait $p0; exit $?");
    EXPECT_EQ(again.code, 0) << again.text;
    EXPECT_THAT(again.text, ContainsRegex("partita: the last start, of 4 ranks, ended at training step [0-9]+: root "
                                          "cause: rank [23] on host .* ended without a word"));
    EXPECT_FALSE(fs::exists(folder_ + "/flight")) << "it ended well";
    EXPECT_THAT(again.text,
                HasSubstr("note: the states of step " + std::to_string(newest) + " are in the memory of hosts"));
    EXPECT_TRUE(fs::is_empty(out_ / "a")) << "memory is left";
    const Outcome whole = run_partita("run " + bundle_ + " --threads 1 --quiet --steps " + steps + " --save " +
                                      (out_ / "whole.safetensors"));
    EXPECT_EQ(whole.code, 0) << whole.text;
    EXPECT_TRUE(TempFolder::read(saved) == TempFolder::read(out_ / "whole.safetensors"));
    fs::remove_all(folder_);
  }
}

TEST_F(MirrorCommand, OneHost_IsRefused) {
  const Outcome o =
      run_partita("run " + bundle_ + " --processes --threads 1 --quiet --steps 3 --mirror 1 --checkpoint " + folder_ +
                  " --mirror-in " + (out_ / "a"));
  EXPECT_EQ(o.code, 2) << o.text;
  EXPECT_THAT(o.text, HasSubstr("--mirror keeps a copy in the memory of another host, and all ranks share"));
}

}  // namespace
}  // namespace partita
