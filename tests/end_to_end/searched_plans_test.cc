// What the search finds with no pin is a program, and the serial one: on devices with room, with little, and over slow
// links, so that every kind of layout is searched out.
#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <utility>

#include "base/cat.h"
#include "nlohmann/json.hpp"
#include "tests/support/command.h"
#include "tests/support/losses.h"
#include "tests/support/model_folders.h"
#include "tests/support/temp_folder.h"
#include "tests/support/test_options.h"

namespace partita {
namespace {

using nlohmann::json;

// A model under one roof with its recipe, and what is made of it.
class SearchedPlan {
 public:
  explicit SearchedPlan(const std::string& folder)
      : folder_(folder), model_(cat(model_file(folder), " --train ", folder, "/train.yaml --quiet ")) {}

  // The plan for the cluster, compiled (`room`: flags for that) and verified with `flags`. Null where none fits.
  json compile(const std::string& cluster, const std::string& flags, const char* room = "") {
    out_.write("cluster.yaml", cluster);
    std::filesystem::remove_all(out_ / "bundle");
    Outcome plan = partita(cat("plan ", model_, "--cluster ", out_ / "cluster.yaml", " -o ", out_ / "plan.json"));
    if (plan.code == 3) return nullptr;
    EXPECT_EQ(plan.code, 0) << plan.text;
    Outcome compiled = partita(cat("compile ", model_, room, "--plan ", out_ / "plan.json", " -o ", out_ / "bundle"));
    EXPECT_EQ(compiled.code, 0) << compiled.text;
    Outcome verified = partita(cat("verify ", flags, out_ / "bundle"));
    EXPECT_EQ(verified.code, 0) << verified.text;
    return json::parse(TempFolder::read(out_ / "plan.json"));
  }
  std::vector<double> losses_of_plan() { return losses(cat("run ", out_ / "bundle")); }
  std::vector<double> losses_of_one_rank() { return losses("train " + model_); }
  // Bytes that the program of one rank takes.
  double bytes_of_one_rank() {
    return compile("device: cpu\n", "").at("predicted").at("program_bytes").at(0).get<double>();
  }

 private:
  static Outcome partita(const std::string& arguments) { return run_command(partita_program() + " " + arguments); }
  std::vector<double> losses(const std::string& command) {
    std::filesystem::remove(out_ / "m.jsonl");
    Outcome o = partita(
        cat(command, " --data ", folder_, "/data.npz --steps 4 --threads 1 --quiet --metrics ", out_ / "m.jsonl"));
    EXPECT_EQ(o.code, 0) << o.text;
    return read_losses(out_ / "m.jsonl");
  }

  TempFolder out_;
  std::string folder_, model_;
};

TEST(Models_EverySearchedPlan, CompilesAndEqualsSerial) {
  std::vector<std::string> folders = model_folders();
  folders.push_back(std::string(PARTITA_TEST_DATA) + "/gpt2");
  for (size_t k = 0; k < folders.size(); ++k) {
    // The numbers of the plan that divides something, of some models; those of one rank are held elsewhere.
    const char* numeric = k % sample_or_all(3, 1) == 0 ? "--numeric " : "";
    for (const auto& [cluster, flags] :
         {std::pair{"device: cpu\n", ""}, {"devices_per_node: 8\ndevice: RTX-4090\n", numeric}}) {
      SCOPED_TRACE(folders[k] + " on " + cluster);
      EXPECT_FALSE(SearchedPlan(folders[k]).compile(cluster, flags).is_null());
    }
  }
}

// `memory`: share of what one rank takes, 0: plenty.
struct Hardware {
  int ranks;
  const char* device;
  double reserve, memory;
  const char* links;
};
constexpr const char *kCpu = "like: cpu", *kSlowLinks = "links: [{kind: ethernet, bandwidth: 1.0e+7}]\n";
// A GPU's host to offload to, at a rate at which small models take time.
constexpr const char* kGpu =
    "like: RTX-4090, flops: {fp32: 2.0e+9, tf32: 2.0e+9, bf16: 2.0e+9, fp16: 2.0e+9}, bandwidth: 2.0e+9";
const Hardware kHardware[] = {
    {2, kCpu, 1e8, 0.45, ""},         {3, kCpu, 1e8, 0, kSlowLinks},   {4, kGpu, 1.5e9, 0.4, ""},
    {6, kCpu, 1e8, 0.7, ""},          {4, kGpu, 1.5e9, 0, kSlowLinks}, {2, kGpu, 1.5e9, 0.4, ""},
    {4, kCpu, 1e8, 0.45, kSlowLinks}, {6, kGpu, 1.5e9, 0.7, ""},
};

TEST(Models_EverySearchedPlan, TrainsAsOneRankDoes) {
  const std::vector<std::string> folders = model_folders();
  if (folders.empty()) GTEST_SKIP() << "no exported models at " << PARTITA_MODELS;
  std::set<std::string> kinds;  // of layouts that were found
  size_t planned = 0, tried = 0;
  for (size_t k = 0; k < folders.size(); ++k) {
    SearchedPlan plans(folders[k]);
    const std::vector<double> one = plans.losses_of_one_rank();
    const double bytes = plans.bytes_of_one_rank();
    for (size_t turn : {k, k + 3}) {
      const Hardware& h = kHardware[turn % std::size(kHardware)];
      const std::string memory = h.memory > 0 ? cat(", memory: ", h.reserve + h.memory * bytes) : "";
      const std::string cluster = cat("devices_per_node: ", h.ranks, "\ndevice: {", h.device, memory, "}\n", h.links);
      SCOPED_TRACE(folders[k] + " on\n" + cluster);
      // What runs here is a processor's program, which may need more than the GPU's that was planned.
      const json plan = plans.compile(cluster, "", h.device == kGpu ? "--allow-infeasible " : "");
      ++tried;
      if (plan.is_null()) continue;
      ++planned;
      for (const char* axis : {"data", "tensor", "pipeline", "expert", "zero"}) {
        if (plan["pin"].value(axis, 0) > (axis == std::string("zero") ? 0 : 1)) kinds.insert(axis);
      }
      for (const char* choice : {"offload", "recompute"}) {
        if (plan["pin"].value(choice, "none") != "none") kinds.insert(choice);
      }
      if (plan["pin"].contains("recompute_blocks")) kinds.insert("recompute");
      if (plan["pin"].contains("stages")) kinds.insert("stages");
      const std::vector<double> found = plans.losses_of_plan();
      ASSERT_EQ(found.size(), one.size());
      for (size_t s = 0; s < one.size(); ++s) EXPECT_NEAR(found[s] / one[s], 1, 1e-5) << s;
    }
  }
  EXPECT_GE(planned, tried * 3 / 4);
  EXPECT_GE(kinds.size(), 6u) << testing::PrintToString(kinds);
}

// The work of attention grows with the square of the samples' length: it is the last to be done again.
TEST(SearchedPlan_LongSamples, KeepAttentionsResults) {
  TempFolder out;
  const std::string model = out / "model.onnx", plan_file = out / "plan.json";
  auto partita = [](const std::string& arguments) {
    Outcome o = run_command(partita_program() + " " + arguments);
    EXPECT_EQ(o.code, 0) << arguments << ": " << o.text;
  };
  partita(cat("model gpt --layers 4 --hidden 32 --heads 1 --vocab 64 --seq 8192 --with-weights --quiet -o ", model));
  const std::string recipe = out.write("train.yaml", "batch: {global: 1}\noptimizer: {kind: sgd, lr: 0.1}\n");
  auto plan = [&](const std::string& memory, const std::string& pins) {
    const std::string cluster =
        out.write("cluster.yaml", cat("devices_per_node: 1\ndevice: {like: cpu, reserve: 0", memory, "}\n"));
    partita(cat("plan ", model, " --train ", recipe, " --quiet ", pins, "--cluster ", cluster, " -o ", plan_file));
    return json::parse(TempFolder::read(plan_file));
  };
  auto bytes = [](const json& plan) { return plan["predicted"]["program_bytes"][0].get<double>(); };
  auto seconds = [](const json& plan) { return plan["predicted"]["step_seconds"].get<double>(); };
  const json none = plan("", "--pin recompute=none "), full = plan("", "--pin recompute=full "),
             some = plan("", "--pin recompute=all_but_attention ");
  EXPECT_LT(bytes(some) - bytes(full), 0.2 * (bytes(none) - bytes(full)));
  EXPECT_LT(seconds(some) - seconds(none), 0.2 * (seconds(full) - seconds(none)));
  const json tight = plan(cat(", memory: ", 1.25 * bytes(some)), "");
  ASSERT_TRUE(tight["pin"].contains("recompute_blocks")) << tight["layout"];
  const json& modes = tight["pin"]["recompute_blocks"];
  EXPECT_GE(std::count(modes.begin(), modes.end(), "all_but_attention"), 2) << modes;
  EXPECT_EQ(std::count(modes.begin(), modes.end(), "full"), 0) << modes;
  EXPECT_EQ(std::count(modes.begin(), modes.end(), "attention"), 0) << modes;
}

// Stages that have little memory compute blocks again, each as it must, and train the same numbers.
TEST(SearchedPlan_Stages, ComputeAgainBlockByBlock) {
  TempFolder out;
  auto partita = [](const std::string& arguments) {
    Outcome o = run_command(partita_program() + " " + arguments);
    EXPECT_EQ(o.code, 0) << arguments << ": " << o.text;
  };
  const std::string model = out / "model.onnx", plan_file = out / "plan.json", bundle = out / "bundle";
  partita(cat("model gpt --layers 8 --hidden 64 --heads 2 --vocab 128 --seq 64 --no-tied --with-weights --quiet -o ",
              model));
  const std::string recipe =
      out.write("train.yaml", "batch: {global: 8}\noptimizer: {kind: adamw, lr: 0.001}\ndata: {kind: synthetic}\n");
  const std::string task = cat(model, " --train ", recipe, " --quiet ");
  auto plan = [&](const std::string& memory, const std::string& pins) {
    const std::string cluster =
        out.write("cluster.yaml", cat("devices_per_node: 2\ndevice: {like: cpu, reserve: 0", memory, "}\n"));
    partita(cat("plan ", task, "--pin data=1 --pin tensor=1 --pin context=1 --pin micro_batch=1 --pin schedule=1f1b ",
                pins, "--cluster ", cluster, " -o ", plan_file));
    return json::parse(TempFolder::read(plan_file));
  };
  const json roomy = plan("", "");
  const double all = roomy["predicted"]["program_bytes"][0].get<double>();
  const std::string memory = cat(", memory: ", 0.8 * all);
  const json uniform = plan(memory, "--pin recompute=full "), tight = plan(memory, "");
  EXPECT_EQ(roomy["pin"].value("recompute", ""), "none");
  ASSERT_TRUE(tight["pin"].contains("recompute_blocks")) << tight["layout"];
  // Of the first stage's four blocks, which it holds for two micro-batches, and of the second's.
  const json& modes = tight["pin"]["recompute_blocks"];
  EXPECT_EQ(std::count(modes.begin(), modes.begin() + 4, "none"), 0) << modes;
  EXPECT_NE(modes[0], modes.size() > 4 ? modes[4] : json("none")) << modes;
  EXPECT_LT(tight["predicted"]["step_seconds"].get<double>(), uniform["predicted"]["step_seconds"].get<double>());
  partita(cat("compile ", task, "--plan ", plan_file, " -o ", bundle));
  partita(cat("verify ", bundle));
  auto losses = [&](const std::string& command) {
    std::filesystem::remove(out / "m.jsonl");
    partita(cat(command, " --steps 4 --threads 1 --quiet --metrics ", out / "m.jsonl"));
    return read_losses(out / "m.jsonl");
  };
  const std::vector<double> one = losses(cat("train ", task)), found = losses(cat("run ", bundle));
  ASSERT_EQ(found.size(), one.size());
  for (size_t s = 0; s < one.size(); ++s) EXPECT_NEAR(found[s] / one[s], 1, 1e-5) << s;
}

}  // namespace
}  // namespace partita
