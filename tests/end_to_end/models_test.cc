// Every exported model at hand trains through the command line on one and more ranks, and holds against PyTorch's
// float64 references.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>

#include "runtime/files/npz.h"
#include "runtime/files/safetensors.h"
#include "tests/support/command.h"
#include "tests/support/losses.h"
#include "tests/support/model_folders.h"
#include "tests/support/temp_folder.h"
#include "tests/support/trained_model.h"

namespace partita {
namespace {

namespace fs = std::filesystem;
using runtime::NpzFile;

// With each given model's folder, reference, number of steps, and a place for files.
void for_each_model(const std::function<void(const std::string&, const NpzFile&, size_t, const TempFolder&)>& check) {
  std::vector<std::string> folders = model_folders();
  if (folders.empty()) GTEST_SKIP() << "no exported models at " << PARTITA_MODELS;
  for (const std::string& folder : folders) {
    auto expected = NpzFile::open(folder + "/expected.npz");
    ASSERT_TRUE(expected.ok()) << expected.status();
    TempFolder out;
    check(folder, *expected, array(*expected, "loss_f64").size(), out);
    if (testing::Test::HasFatalFailure()) return;
  }
}

TEST(Models_EveryFolder, HoldsOnOneTwoAndFourRanks) {
  for_each_model([](const std::string& folder, const NpzFile& expected, size_t steps, const TempFolder& out) {
    Training one = train(folder, steps, "", out, "one");
    expect_holds(folder, expected, one);
    for (const char* flags : {"--ranks 2 --like ddp", "--ranks 4"}) {
      Training more = train(folder, steps, flags, out, "more");
      expect_holds(folder, expected, more);
      ASSERT_EQ(more.losses.size(), one.losses.size()) << folder << flags;
      for (size_t k = 0; k < one.losses.size(); ++k)
        EXPECT_NEAR(more.losses[k] / one.losses[k], 1, 1e-6) << folder << " " << flags << " step " << k;
    }
  });
}

// Each layout of work and states, from one transformation. (Losses are not held to those of one rank here: parts of a
// product are summed in another order.)
TEST(Models_EveryLayout, Holds) {
  for_each_model([](const std::string& folder, const NpzFile& expected, size_t steps, const TempFolder& out) {
    for (const char* flags : {"--ranks 2 --like zero1", "--ranks 2 --like zero3-offload", "--ranks 4 --like hsdp",
                              "--ranks 2 --like megatron:tp2", "--ranks 4 --pin tensor=2 --pin zero=3",
                              "--ranks 2 --pin context=2", "--ranks 2 --pin expert=2"}) {
      SCOPED_TRACE(flags);
      expect_holds(folder, expected, train(folder, steps, flags, out, "layout"), 2);
    }
  });
}

// In stages, of which each has runs or parts of the exported batch in flight.
TEST(Models_Stages, Hold) {
  for_each_model([](const std::string& folder, const NpzFile& expected, size_t steps, const TempFolder& out) {
    std::string micro = " --pin micro_batch=1";
    std::string model = fs::exists(folder + "/model.onnx") ? "/model.onnx" : "/training_model.onnx";
    Outcome cut = run_command(partita_program() + " compile " + folder + model + " --train " + folder +
                              "/train.yaml --quiet --ranks 2 --pin pipeline=2 -o " + (out / "bundle") + micro);
    if (cut.text.find("needs all samples") != std::string::npos) micro.clear();  // a statistic over the batch
    for (const char* flags : {"--ranks 4 --pin pipeline=2 --pin data=2 --pin zero=1 --pin schedule=zero_bubble",
                              "--ranks 8 --pin pipeline=2 --pin tensor=2 --pin data=2"}) {
      SCOPED_TRACE(flags + micro);
      expect_holds(folder, expected, train(folder, steps, flags + micro, out, "stages"), 2);
    }
  });
}

// One exported batch in micro-batches of one sample, where the model is a sum over samples; two of them take turns.
TEST(Models_MicroBatches, HoldOrAreRefused) {
  std::vector<std::string> folders = model_folders();
  if (folders.empty()) GTEST_SKIP() << "no exported models at " << PARTITA_MODELS;
  size_t refused = 0;
  for (const std::string& folder : folders) {
    TempFolder out;
    std::string model = fs::exists(folder + "/model.onnx") ? "/model.onnx" : "/training_model.onnx";
    const char* flags = "--ranks 2 --pin tensor=2 --pin micro_batch=1 --pin overlap_micro_batches=2";
    Outcome compiled = run_command(partita_program() + " compile " + folder + model + " --train " + folder +
                                   "/train.yaml --quiet " + flags + " -o " + (out / "bundle"));
    if (compiled.code != 0) {  // a statistic over the batch
      EXPECT_EQ(compiled.code, 2) << folder << compiled.text;
      EXPECT_NE(compiled.text.find("needs all samples of the graph's batch at once"), std::string::npos)
          << folder << compiled.text;
      ++refused;
      continue;
    }
    auto expected = NpzFile::open(folder + "/expected.npz");
    ASSERT_TRUE(expected.ok()) << expected.status();
    expect_holds(folder, *expected, train(folder, array(*expected, "loss_f64").size(), flags, out, "micro"), 2);
  }
  EXPECT_LT(refused, folders.size() / 2);
}

// A plan of one sample a micro-batch is compiled, or refused for the reason that the compiler has.
TEST(Models_PinnedMicroBatches, PlanAndCompileAgree) {
  size_t refused = 0, taken = 0;
  for (const std::string& folder : model_folders()) {
    SCOPED_TRACE(folder);
    TempFolder out;
    out.write("cluster.yaml", "device: cpu\ndevices_per_node: 2\n");
    const std::string model = folder + (fs::exists(folder + "/model.onnx") ? "/model.onnx" : "/training_model.onnx") +
                              " --train " + folder + "/train.yaml --quiet ",
                      plan = out / "plan.json";
    Outcome planned = run_command(partita_program() + " plan " + model + "--pin micro_batch=1 --pin data=2 --cluster " +
                                  (out / "cluster.yaml") + " -o " + plan);
    const std::string pins = planned.code == 0 ? "--plan " + plan : "--pin micro_batch=1 --pin data=2";
    Outcome compiled = run_command(partita_program() + " compile " + model + pins + " -o " + (out / "bundle"));
    EXPECT_EQ(planned.code, compiled.code) << planned.text << compiled.text;
    ++(planned.code == 0 ? taken : refused);
    if (compiled.text.find("needs all samples of the graph's batch at once") != std::string::npos) {
      EXPECT_TRUE(planned.text.find("needs all samples") != std::string::npos ||
                  planned.text.find("batch statistics") != std::string::npos)
          << planned.text;
    }
  }
  if (taken + refused == 0) GTEST_SKIP() << "no exported models at " << PARTITA_MODELS;
  EXPECT_GT(refused, 0u);
  EXPECT_GT(taken, refused);
}

std::string bytes_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

// The model that the project carries, on its own sources as text.
class CarriedModel : public testing::Test {
 protected:
  std::string text() {
    std::string s;
    for (int k = 0; k < 4000; ++k) s += "line " + std::to_string(k * k % 977) + " of a text that repeats\n";
    return out_.write("text.bin", s);
  }
  std::string model_ = std::string(PARTITA_TEST_DATA) + "/gpt2";
  TempFolder out_;
};

TEST_F(CarriedModel, RanksAgreeAndRunsRepeatBitForBit) {
  std::string data = text(), base = partita_program() + " train " + model_ + "/model.onnx --train " + model_ +
                                    "/train.yaml --data " + data + " --steps 12 --quiet";
  auto run = [&](const std::string& name, const std::string& flags) {
    Outcome o = run_command(base + " --metrics " + (out_ / (name + ".jsonl")) + " --save " +
                            (out_ / (name + ".safetensors")) + " " + flags);
    EXPECT_EQ(o.code, 0) << o.text;
    std::vector<double> losses = read_losses(out_ / (name + ".jsonl"));
    EXPECT_EQ(losses.size(), 12u);
    return losses;
  };
  std::vector<double> one = run("one", ""), two = run("two", "--ranks 2"), four = run("four", "--ranks 4");
  EXPECT_LT(one.back(), one.front() - 0.5);
  for (size_t k = 0; k < one.size(); ++k) {
    EXPECT_NEAR(two[k] / one[k], 1, 1e-6) << k;
    EXPECT_NEAR(four[k] / one[k], 1, 1e-6) << k;
  }
  run("again", "");
  run("two_again", "--ranks 2");
  EXPECT_EQ(bytes_of(out_ / "one.safetensors"), bytes_of(out_ / "again.safetensors"));
  EXPECT_EQ(bytes_of(out_ / "two.safetensors"), bytes_of(out_ / "two_again.safetensors"));
}

TEST_F(CarriedModel, ExecutablesRunUnderMpirunAndTcp) {
  std::string data = text(), bundle = out_ / "bundle",
              rank = bundle + "/rank --data " + data + " --steps 8 --quiet --threads 1";
  Outcome compiled = run_command(partita_program() + " compile " + model_ + "/model.onnx --train " + model_ +
                                 "/train.yaml --ranks 2 -o " + bundle);
  ASSERT_EQ(compiled.code, 0) << compiled.text;
  Outcome threads = run_command(partita_program() + " run " + bundle + " --threads 1 --data " + data +
                                " --steps 8 --quiet --save " + (out_ / "threads.safetensors"));
  ASSERT_EQ(threads.code, 0) << threads.text;
  // Two processes over TCP, as torchrun would start them.
  std::string tcp = "export WORLD_SIZE=2 LOCAL_WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=" +
                    std::to_string(20000 + getpid() % 20000) + "; (RANK=1 LOCAL_RANK=1 " + rank +
                    " --backend tcp --save " + (out_ / "tcp.safetensors") + " &) ; RANK=0 LOCAL_RANK=0 " + rank +
                    " --backend tcp --save " + (out_ / "tcp.safetensors");
  Outcome sockets = run_command(tcp);
  ASSERT_EQ(sockets.code, 0) << sockets.text;
  EXPECT_EQ(bytes_of(out_ / "threads.safetensors"), bytes_of(out_ / "tcp.safetensors"));
  if (run_command("mpirun --version").code != 0) GTEST_SKIP() << "mpirun is not installed";
  Outcome mpi = run_command("OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 mpirun --oversubscribe -n 2 " +
                            rank + " --save " + (out_ / "mpi.safetensors"));
  ASSERT_EQ(mpi.code, 0) << mpi.text;
  EXPECT_EQ(bytes_of(out_ / "threads.safetensors"), bytes_of(out_ / "mpi.safetensors"));
}

TEST_F(CarriedModel, DamagedImagesAreRefused) {
  std::string bundle = out_ / "bundle";
  ASSERT_EQ(run_command(partita_program() + " compile " + model_ + "/model.onnx --train " + model_ +
                        "/train.yaml --quiet -o " + bundle)
                .code,
            0);
  std::string image = bytes_of(bundle + "/program.partita");
  for (size_t at : {size_t{3}, size_t{12}, image.size() / 3, image.size() - 5}) {
    std::string damaged = image;
    damaged[at] = static_cast<char>(damaged[at] ^ 0x20);
    std::ofstream(bundle + "/program.partita", std::ios::binary) << damaged;
    Outcome o = run_command(partita_program() + " run " + bundle + " --steps 1 --data " + text());
    EXPECT_EQ(o.code, 2) << at << ": " << o.text;
    EXPECT_NE(o.text.find("program.partita"), std::string::npos) << o.text;
  }
}

TEST(Command_BadUse, ExitsWithTwoAndOneMessage) {
  TempFolder out;
  std::string gpt2 = std::string(PARTITA_TEST_DATA) + "/gpt2", text = out.write("short.bin", "too short");
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"train /nowhere/model.onnx --data x", "/nowhere/model.onnx"},
      {"train " + gpt2 + "/model.onnx --like nonsense --data x", "nonsense"},
      {"train " + gpt2 + "/model.onnx --ranks 3 --pin tensor=2 --data x", "tensor"},
      {"train " + gpt2 + "/model.onnx --pin tensor=2 --pin data=2 --ranks 8 --data x", "--ranks says 8"},
      {"train " + gpt2 + "/model.onnx --pin '{\"nothing*\": {out: tensor}}' --data x", "pin"},
      {"train " + gpt2 + "/model.onnx --train " + gpt2 + "/train.yaml --data " + text + " --steps 2", "short.bin"},
      {"train " + gpt2 + "/model.onnx --train " + gpt2 + "/train.yaml --ranks 3 --data " + text, "3"},
      {"train " + gpt2 + "/model.onnx --train " + out.write("t.yaml", "optimiser: {kind: adam}") + " --data x",
       "optimizer"},
      {"compile " + gpt2 + "/model.onnx --target cuda:sm_12 -o " + (out / "b"), "sm_12"},
      {"frobnicate", ""},
  };
  for (const auto& [arguments, expected] : cases) {
    Outcome o = run_command(partita_program() + " " + arguments);
    EXPECT_EQ(o.code, 2) << arguments << ": " << o.text;
    EXPECT_NE(o.text.find(expected), std::string::npos) << arguments << ": " << o.text;
  }
  EXPECT_FALSE(fs::exists(out / "b"));
}

}  // namespace
}  // namespace partita
