// To which cores the ranks of a run are bound.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <set>

#include "base/host/processors.h"
#include "runtime/record/flight_recorder.h"
#include "runtime/record/flight_view.h"
#include "tests/support/command.h"
#include "tests/support/free_port.h"
#include "tests/support/running.h"
#include "tests/support/temp_folder.h"

namespace partita {
namespace {

using testing::ContainsRegex;
using testing::HasSubstr;

class Bind : public testing::Test {
 protected:
  void SetUp() override {
    if (allowed_processors().size() != 2) GTEST_SKIP() << "what is expected here is that of two processors";
    const std::string recipe = out_.write("train.yaml",
                                          "loss: {kind: mse, target: target}\noptimizer: {kind: sgd, lr: 0.001}\n"
                                          "batch: {global: 12}\ndata: {kind: synthetic}\n");
    const Outcome model = run_partita("model mlp --layers 32,64,8 --with-weights --quiet -o " + (out_ / "mlp.onnx"));
    const Outcome done = run_partita("compile " + (out_ / "mlp.onnx") + " --train " + recipe +
                                     " --ranks 2 --also 3 --like ddp --quiet -o " + (out_ / "bundle"));
    ASSERT_EQ(model.code + done.code, 0) << model.text << done.text;
  }
  // Which processors each rank's main thread may use, as the system shows them.
  std::multiset<std::string> ranks_allowed(const std::string& flags, int ranks) {
    const std::string logs = out_ / "logs";
    Running running("exec " + partita_program() + " run " + (out_ / "bundle") +
                        " --processes --steps 1000000000 --log-dir " + logs + " " + flags,
                    out_ / "output");
    std::multiset<std::string> lists;
    const bool all = wait_until(
        [&] {
          lists.clear();
          for (int rank = 0; rank < ranks; ++rank) {
            const auto reader = runtime::FlightReader::open(runtime::flight_file(logs, rank));
            if (!reader.ok() || (*reader)->header().training_step < 2) return false;
            const std::string status =
                TempFolder::read("/proc/" + std::to_string((*reader)->header().process) + "/status");
            const std::string key = "Cpus_allowed_list:\t";
            const size_t at = status.find(key);
            if (at == status.npos) return false;
            lists.insert(status.substr(at + key.size(), status.find('\n', at) - at - key.size()));
          }
          return true;
        },
        60);
    EXPECT_TRUE(all) << running.text();
    ::kill(running.id(), SIGTERM);
    running.end(20);
    said_ = TempFolder::read(logs + "/rank-0.log") + TempFolder::read(logs + "/rank-1.log");
    return lists;
  }

  TempFolder out_;
  std::string said_;
};

TEST_F(Bind, RanksHaveTheirOwnCores_UnlessToldNotTo) {
  const std::vector<int> both = allowed_processors();
  const std::string first = std::to_string(both[0]), second = std::to_string(both[1]);
  EXPECT_EQ(ranks_allowed("", 2), (std::multiset<std::string>{first, second}));
  EXPECT_THAT(said_, ContainsRegex("rank 0: 1 core \\(CPU " + first + "\\)"));
  EXPECT_THAT(said_, ContainsRegex("rank 1: 1 core \\(CPU " + second + "\\)"));
  EXPECT_EQ(ranks_allowed("--bind none", 2).count(first), 0u);
}

TEST_F(Bind, MoreRanksThanCores_AreLeftToTheSystem) {
  const std::multiset<std::string> lists = ranks_allowed("--ranks 3", 3);
  EXPECT_EQ(lists.count(*lists.begin()), 3u);
  EXPECT_THAT(said_, HasSubstr("rank 0: not bound to cores, as its host has 2 for 3 ranks"));
}

// As under mpirun: each keeps what it was started with, and uses all of it.
TEST_F(Bind, WhatALauncherBound_Stays) {
  const std::vector<int> both = allowed_processors();
  const std::string rank = out_ / "bundle/rank --data synthetic --steps 2 2>&1";
  const std::string port = std::to_string(free_port());
  std::string command;
  for (int r = 0; r < 2; ++r)
    command += "RANK=" + std::to_string(r) + " WORLD_SIZE=2 LOCAL_RANK=" + std::to_string(r) +
               " LOCAL_WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=" + port + " taskset -c " +
               std::to_string(both[static_cast<size_t>(1 - r)]) + " " + rank + (r == 0 ? " & " : "; wait");
  const Outcome done = run_command(command);
  EXPECT_EQ(done.code, 0) << done.text;
  for (int r = 0; r < 2; ++r)
    EXPECT_THAT(done.text,
                ContainsRegex("rank " + std::to_string(r) + ": 1 core \\(CPU " +
                              std::to_string(both[static_cast<size_t>(1 - r)]) + "\\).*, as it was started"));
}

}  // namespace
}  // namespace partita
