// Every layout that has a name, from `plan --like` to losses: it compiles, is proved, and trains as one rank does.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <sstream>

#include "base/cat.h"
#include "nlohmann/json.hpp"
#include "tests/support/command.h"
#include "tests/support/losses.h"
#include "tests/support/temp_folder.h"

namespace partita {
namespace {

using nlohmann::json;
using testing::HasSubstr;

struct Case {
  const char* preset;                            // and what is pinned beside it
  std::map<int, std::map<std::string, int>> at;  // per number of ranks: pins that the plan has
  bool experts = false;                          // of the model with experts
};

const Case kCases[] = {
    {"ddp", {{2, {{"data", 2}, {"zero", 0}}}, {4, {{"data", 4}}}}},
    {"fsdp", {{2, {{"data", 2}, {"zero", 3}}}, {4, {{"data", 4}, {"zero", 3}}}}},
    {"hsdp", {{4, {{"data", 4}, {"zero", 3}, {"zero_group", 2}}}}},
    {"ddp --pin hierarchical_group=2 --pin bucket_bytes=65536", {{4, {{"data", 4}, {"hierarchical_group", 2}}}}},
    {"zero1 --pin hierarchical_group=4", {{8, {{"data", 8}, {"hierarchical_group", 4}}}}},
    {"zero3 --pin hierarchical_group=2", {{4, {{"zero", 3}, {"hierarchical_group", 2}}}}},
    {"zero1", {{2, {{"zero", 1}}}, {4, {{"data", 4}, {"zero", 1}}}}},
    {"zero2", {{2, {{"zero", 2}}}, {4, {{"data", 4}, {"zero", 2}}}}},
    {"zero3", {{2, {{"zero", 3}}}, {4, {{"data", 4}, {"zero", 3}}}}},
    {"zero3-offload", {{2, {{"zero", 3}}}, {4, {{"data", 4}, {"zero", 3}}}}},
    {"megatron:tp2", {{2, {{"tensor", 2}, {"zero", 1}}}, {4, {{"tensor", 2}, {"data", 2}}}}},
    {"megatron:tp4", {{4, {{"tensor", 4}}}}},
    {"megatron:tp2,pp2", {{4, {{"tensor", 2}, {"pipeline", 2}}}}},
    {"megatron:pp2,mb1", {{2, {{"pipeline", 2}, {"micro_batch", 1}}}, {4, {{"pipeline", 2}, {"data", 2}}}}},
    {"megatron:pp2,mb1 --pin schedule=zero_bubble", {{2, {{"pipeline", 2}}}}},
    {"megatron:cp2", {{2, {{"context", 2}}}, {4, {{"context", 2}, {"data", 2}}}}},
    {"gpipe", {{2, {{"pipeline", 2}, {"data", 1}}}}},
    {"gpipe --pin data=2", {{4, {{"pipeline", 2}, {"data", 2}}}}},
    {"pipedream", {{2, {{"pipeline", 2}}}, {4, {{"pipeline", 2}, {"data", 2}}}}},
    {"megatron:ep2", {{2, {{"expert", 2}}}, {4, {{"expert", 2}, {"data", 2}}}}, true},
    {"megatron:ep4", {{4, {{"expert", 4}}}}, true},
    {"megatron:ep2,pp2", {{4, {{"expert", 2}, {"pipeline", 2}}}}, true},
    {"fsdp", {{4, {{"data", 4}, {"zero", 3}}}}, true},
};

class Presets : public testing::Test {
 protected:
  void SetUp() override {
    std::string text;
    for (int k = 0; k < 4000; ++k) text += static_cast<char>(k * k % 61);
    out_.write("tokens.bin", text);
    for (int ranks : {2, 4, 8})  // nodes of two
      out_.write(cat("cluster", ranks, ".yaml"), cat("device: cpu\ndevices_per_node: 2\nnodes: ", ranks / 2, "\n"));
  }

  static Outcome partita(const std::string& arguments) { return run_command(partita_program() + " " + arguments); }
  // Arguments that name the model and its recipe.
  std::string model(bool experts) {
    const std::string gpt2 = std::string(PARTITA_TEST_DATA) + "/gpt2";
    if (!experts) return cat(gpt2, "/model.onnx --train ", gpt2, "/train.yaml --quiet ");
    const std::string file = out_ / "moe.onnx";
    if (!made_) {
      Outcome o = partita(
          cat("model moe --layers 2 --hidden 16 --heads 2 --vocab 61 --seq 16 --experts 4 --top-k 2 --batch 4 --quiet "
              "--with-weights -o ",
              file));
      EXPECT_EQ(o.code, 0) << o.text;
      out_.write("moe.yaml",
                 "loss: {kind: output, output: loss}\noptimizer: {kind: adamw, lr: 0.001, eps: 0.001}\n"
                 "batch: {global: 8}\ndata: {kind: tokens, dtype: u8}\n");
      made_ = true;
    }
    return cat(file, " --train ", out_ / "moe.yaml", " --quiet ");
  }
  Outcome plan(bool experts, const std::string& like, int ranks) {
    return partita(cat("plan ", model(experts), "--cluster ", out_ / cat("cluster", ranks, ".yaml"), " --like ", like,
                       " -o ", out_ / "plan.json"));
  }
  std::vector<double> losses(const std::string& command) {
    Outcome o = partita(
        cat(command, " --data ", out_ / "tokens.bin", " --steps 4 --threads 1 --quiet --metrics ", out_ / "m.jsonl"));
    EXPECT_EQ(o.code, 0) << o.text;
    std::vector<double> found = read_losses(out_ / "m.jsonl");
    std::filesystem::remove(out_ / "m.jsonl");
    return found;
  }

  TempFolder out_;
  bool made_ = false;
};

TEST_F(Presets, CompileAreProvedAndTrainAsOneRankDoes) {
  std::map<bool, std::vector<double>> one;
  for (bool experts : {false, true}) one[experts] = losses("train " + model(experts));
  for (const Case& c : kCases) {
    for (const auto& [ranks, pins] : c.at) {
      SCOPED_TRACE(cat(c.preset, c.experts ? ", experts" : "", " on ", ranks));
      Outcome planned = plan(c.experts, c.preset, ranks);
      ASSERT_EQ(planned.code, 0) << planned.text;
      const json pin = json::parse(TempFolder::read(out_ / "plan.json"))["pin"];
      for (const auto& [key, value] : pins) EXPECT_EQ(pin[key], value) << key << " of " << pin;
      Outcome compiled =
          partita(cat("compile ", model(c.experts), "--plan ", out_ / "plan.json", " -o ", out_ / "bundle"));
      ASSERT_EQ(compiled.code, 0) << compiled.text;
      EXPECT_EQ(json::parse(TempFolder::read(out_ / "bundle/manifest.json"))["ranks"], ranks);
      Outcome verified = partita("verify " + (out_ / "bundle"));
      EXPECT_EQ(verified.code, 0) << verified.text;
      const std::vector<double> found = losses("run " + (out_ / "bundle"));
      ASSERT_EQ(found.size(), one[c.experts].size());
      for (size_t k = 0; k < found.size(); ++k) EXPECT_NEAR(found[k] / one[c.experts][k], 1, 1e-5) << k;
      std::filesystem::remove_all(out_ / "bundle");
    }
  }
}

// A preset without a case above is one that nobody has seen run.
TEST_F(Presets, AllHaveACase) {
  Outcome o = plan(false, "nonsense", 2);
  EXPECT_EQ(o.code, 2) << o.text;
  const std::string head = "expected one of ";
  const size_t at = o.text.find(head), end = o.text.find(';', at);
  ASSERT_NE(at, std::string::npos) << o.text;
  std::istringstream names(o.text.substr(at + head.size(), end - at - head.size()));
  size_t known = 0;
  for (std::string name; names >> name;) {
    if (name == "or") continue;
    if (name.back() == ',') name.pop_back();
    EXPECT_TRUE(std::any_of(std::begin(kCases), std::end(kCases), [&](const Case& c) {
      return std::string_view(c.preset).substr(0, name.size()) == name;
    })) << name;
    ++known;
  }
  EXPECT_GE(known, 10u) << o.text;
}

TEST_F(Presets, ThatDoNotDivideSayWhy) {
  const struct {
    const char* preset;
    int ranks;
    const char* why;
  } cases[] = {
      {"megatron:tp3", 4, "pin tensor: 3 does not divide the 4 devices of the cluster"},
      {"megatron:tp2,pp4", 4, "tensor 2 x pipeline 4 x context 1 x expert 1 does not make 4 devices"},
      {"megatron:dp2,tp4", 4, "tensor 4 x pipeline 1 x context 1 x expert 1 x data 2 does not make 4 devices"},
      {"megatron:pp4", 4, "pipeline 4 x interleave 1 needs as many blocks; the model has 3"},
      {"gpipe", 4,
       "leaves 4 stages of a pipeline to 4 devices, and the model has 3 blocks to cut between; pin data: 2"},
      {"megatron:dp4,mb4", 4, "a global batch of 8 is not a multiple of data 4 x expert 1 x micro-batch 4"},
      {"pipedream --pin schedule=pipedream", 2, "pipedream goes without clip_grad_norm"},
  };
  for (const auto& c : cases) {
    SCOPED_TRACE(c.preset);
    Outcome o = plan(false, c.preset, c.ranks);
    EXPECT_EQ(o.code, 2) << o.text;
    EXPECT_THAT(o.text, HasSubstr(c.why));
    EXPECT_FALSE(std::filesystem::exists(out_ / "plan.json"));
  }
}

}  // namespace
}  // namespace partita
