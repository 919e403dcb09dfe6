// PyTorch's own launcher loses a node, and gets it back.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "runtime/checkpoint/checkpoint_manifest.h"
#include "runtime/record/flight_recorder.h"
#include "runtime/record/flight_view.h"
#include "tests/support/command.h"
#include "tests/support/free_port.h"
#include "tests/support/running.h"
#include "tests/support/temp_folder.h"

namespace partita {
namespace {

class Torchrun : public testing::Test {
 protected:
  // One of two agents, as of a host of its own.
  std::unique_ptr<Running> agent(int node) {
    const std::string number = std::to_string(node);
    return std::make_unique<Running>("cd " + out_.path() + " && exec " + partita_program() + " launch " + bundle_ +
                                         " --torchrun --nodes 2 --node-rank " + number + " --master 127.0.0.1 --port " +
                                         std::to_string(port_) + " --max-restarts 9 --threads 1 --quiet" +
                                         " --steps 1000000000 --every 20 --checkpoint " + folder_ + " --log-dir " +
                                         logs_,
                                     out_ / ("agent" + number));
  }
  // Until so many ranks have begun and written another checkpoint.
  bool trains(int ranks) {
    const std::vector<int64_t> before = runtime::list_checkpoints(folder_);
    return wait_until(
        [&] {
          for (int rank = 0; rank < ranks; ++rank) {
            const auto reader = runtime::FlightReader::open(runtime::flight_file(logs_, rank));
            if (!reader.ok() || (*reader)->header().size != ranks) return false;
            if ((*reader)->header().phase == runtime::Phase::kStart) return false;
          }
          const std::vector<int64_t> now = runtime::list_checkpoints(folder_);
          return !now.empty() && (before.empty() || now.back() > before.back() + 40);
        },
        180);
  }
  static void lose(Running& agent) {
    std::vector<pid_t> processes = {agent.id()};
    const std::string number = std::to_string(agent.id());
    std::istringstream children(TempFolder::read("/proc/" + number + "/task/" + number + "/children"));
    for (pid_t child; children >> child;) processes.push_back(child);
    for (pid_t process : processes) ::kill(process, SIGKILL);
  }

  TempFolder out_;
  const int port_ = free_port();
  const std::string bundle_ = out_ / "bundle", folder_ = out_ / "ckpt", logs_ = out_ / "logs";
};

TEST_F(Torchrun, NodeThatIsLostAndComesBack_CostsNoBit) {
  if (run_command("command -v torchrun").code != 0) GTEST_SKIP() << "no torchrun here";
  const std::string recipe = out_.write("train.yaml",
                                        "loss: {kind: mse, target: target}\noptimizer: {kind: adamw, lr: 0.01}\n"
                                        "data: {kind: synthetic}\nreproducible: 4\n");
  Outcome made = run_partita("model mlp --layers 16,32,8 --batch 8 --with-weights --quiet -o " + (out_ / "mlp.onnx"));
  ASSERT_EQ(made.code, 0) << made.text;
  made = run_partita("compile " + (out_ / "mlp.onnx") + " --train " + recipe + " --ranks 4 --also 2 --quiet -o " +
                     bundle_);
  ASSERT_EQ(made.code, 0) << made.text;
  // On one host, whoever is first holds the store.
  const auto first = agent(0);
  ASSERT_TRUE(wait_until([&] { return answers(port_); }, 120)) << first->text();
  auto second = agent(1);
  ASSERT_TRUE(trains(4)) << first->text() << second->text();
  lose(*second);
  second->end(5);
  ASSERT_TRUE(trains(2)) << first->text();
  second = agent(1);
  ASSERT_TRUE(trains(4)) << first->text() << second->text();
  for (const auto* a : {second.get(), first.get()}) ::kill(a->id(), SIGTERM);
  EXPECT_NE(second->end(60), -1);
  EXPECT_NE(first->end(60), -1);
  const int64_t last = runtime::list_checkpoints(folder_).back();
  const std::string whole = out_ / "whole";
  const Outcome serial = run_partita("run " + bundle_ + " --ranks 2 --threads 1 --quiet --steps " +
                                     std::to_string(last) + " --checkpoint " + whole);
  ASSERT_EQ(serial.code, 0) << serial.text;
  const auto states = [&](const std::string& folder) {
    return TempFolder::read(folder + "/" + runtime::checkpoint_name(last) + "/states.safetensors");
  };
  EXPECT_FALSE(states(folder_).empty());
  EXPECT_TRUE(states(folder_) == states(whole)) << "after " << last << " steps";
}

}  // namespace
}  // namespace partita
