// A plan that the search made is what `train` and `compile` run: from cluster.yaml to losses.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <regex>
#include <set>
#include <sstream>

#include "base/cat.h"
#include "nlohmann/json.hpp"
#include "tests/support/carried_model.h"
#include "tests/support/losses.h"
#include "tests/support/report_page.h"
#include "tests/support/temp_folder.h"

namespace partita {
namespace {

using testing::HasSubstr;

class PlanCommand : public testing::Test {
 protected:
  void SetUp() override {
    out_.write("cluster.yaml", "nodes: 1\ndevices_per_node: 4\ndevice: cpu\n");
    write_text(out_);
  }

  Outcome plan(const std::string& flags, const std::string& file) {
    return run_partita("plan " + kCarriedModel + "--cluster " + (out_ / "cluster.yaml") + " --quiet -o " +
                       (out_ / file) + " " + flags);
  }
  std::vector<double> train(const std::string& flags) const { return train_carried(out_, flags); }

  TempFolder out_;
};

TEST_F(PlanCommand, ThePlannedLayoutTrainsAsOneRankDoes) {
  std::vector<double> one = train("");
  ASSERT_EQ(one.size(), 3u);
  for (const char* pins : {"--pin pipeline=1 --pin recompute=none", "--like megatron:tp2 --pin recompute=none",
                           "--like zero3 --pin recompute=none --pin micro_batch=1"}) {
    SCOPED_TRACE(pins);
    Outcome planned = plan(pins, "plan.json");
    ASSERT_EQ(planned.code, 0) << planned.text;
    std::vector<double> losses = train("--plan " + (out_ / "plan.json"));
    ASSERT_EQ(losses.size(), one.size());
    for (size_t k = 0; k < one.size(); ++k) EXPECT_NEAR(losses[k] / one[k], 1, 1e-5) << k;
  }
}

// A file of 8 samples at a time and a global batch of four of them: batch norms take a run's 8 at once, on all ranks.
TEST_F(PlanCommand, RunsWithBatchStatisticsAreSharedByAllRanks) {
  ASSERT_EQ(run_partita("model resnet --depth 18 --classes 10 --image 32 --batch 8 --with-weights --quiet -o " +
                        (out_ / "resnet.onnx"))
                .code,
            0);
  const std::string recipe = " --train " + out_.write("resnet.yaml",
                                                      "loss: {kind: cross_entropy, output: logits, target: target}\n"
                                                      "optimizer: {kind: sgd, lr: 0.01}\nbatch: {global: 32}\n"
                                                      "data: {kind: synthetic}\n");
  auto losses = [&](const std::string& flags) {
    std::filesystem::remove(out_ / "m.jsonl");
    Outcome o = run_partita("train " + (out_ / "resnet.onnx") + recipe + " --steps 2 --threads 1 --quiet --metrics " +
                            (out_ / "m.jsonl") + flags);
    EXPECT_EQ(o.code, 0) << o.text;
    return read_losses(out_ / "m.jsonl");
  };
  const std::vector<double> one = losses("");
  ASSERT_EQ(one.size(), 2u);
  for (const char* pins : {"", " --pin data=4", " --pin data=2"}) {
    SCOPED_TRACE(pins);
    Outcome o = run_partita("plan " + (out_ / "resnet.onnx") + recipe + " --cluster " + (out_ / "cluster.yaml") +
                            " --quiet -o " + (out_ / "plan.json") + pins);
    ASSERT_EQ(o.code, 0) << o.text;
    const std::vector<double> planned = losses(" --plan " + (out_ / "plan.json"));
    ASSERT_EQ(planned.size(), one.size());
    for (size_t k = 0; k < one.size(); ++k) EXPECT_NEAR(planned[k] / one[k], 1, 1e-4) << k;
  }
  Outcome o = run_partita("plan " + (out_ / "resnet.onnx") + recipe + " --cluster " + (out_ / "cluster.yaml") +
                          " --quiet --pin data=4 --pin micro_batch=8 -o " + (out_ / "plan.json"));
  EXPECT_EQ(o.code, 2);
  EXPECT_THAT(o.text, HasSubstr("batch statistics need a run's 8 samples on all ranks at once, found 4 ranks with a "
                                "micro-batch of 8"));
}

TEST_F(PlanCommand, ShardGroupsThatDoNotDivideAreRefused) {
  const Outcome three = plan("--pin data=4 --pin zero=3 --pin zero_group=3", "plan.json");
  EXPECT_EQ(three.code, 2) << three.text;
  EXPECT_THAT(three.text, HasSubstr("zero_group 3 does not divide 4 data-parallel ranks"));
  for (const char* group : {"2", "node"})
    EXPECT_EQ(plan(std::string("--pin data=4 --pin zero=3 --pin zero_group=") + group, "plan.json").code, 0) << group;
}

// explain plans again with the flags that the plan was made with.
TEST_F(PlanCommand, ExplainKeepsTheFlagsOfThePlan) {
  ASSERT_EQ(plan("--pin pipeline=2 --pin micro_batch=1 --like zero1 --precision bf16", "plan.json").code, 0);
  Outcome o = run_partita("explain " + (out_ / "plan.json") + " --what-if");
  ASSERT_EQ(o.code, 0) << o.text;
  std::smatch step, now;
  ASSERT_TRUE(std::regex_search(o.text, step, std::regex("step ([0-9.e+-]+) s"))) << o.text;
  ASSERT_TRUE(std::regex_search(o.text, now, std::regex("as it is +([0-9.e+-]+) s"))) << o.text;
  EXPECT_EQ(step[1].str(), now[1].str());
  EXPECT_THAT(o.text, testing::Not(HasSubstr("twice the network")));  // there is none
  out_.write("cluster.yaml", "nodes: 1\ndevices_per_node: 2\ndevice: cpu\n");
  EXPECT_THAT(run_partita("explain " + (out_ / "plan.json") + " --what-if").text, HasSubstr("has changed since"));
}

// The first four of eight layers are frozen: stages still begin at layers, by name, and the weights are counted.
TEST_F(PlanCommand, FrozenLayersHaveStages) {
  const std::string model = out_ / "m.onnx";
  ASSERT_EQ(run_partita("model gpt --layers 8 --hidden 1024 --heads 8 --vocab 1000 --seq 128 -o " + model).code, 0);
  out_.write("cluster.yaml", "device: RTX-4090\ndevices_per_node: 4\n");
  auto planned = [&](const std::string& frozen) {
    out_.write("t.yaml", "optimizer: {kind: adamw}\nbatch: {global: 16}\n" + frozen);
    Outcome o =
        run_partita("plan " + model + " --train " + (out_ / "t.yaml") + " --cluster " + (out_ / "cluster.yaml") +
                    " --quiet --pin pipeline=4 --pin schedule=1f1b -o " + (out_ / "p.json"));
    EXPECT_EQ(o.code, 0) << o.text;
    return nlohmann::json::parse(TempFolder::read(out_ / "p.json"));
  };
  const nlohmann::json trained = planned(""), frozen = planned("frozen: ['transformer.h.[0-3].*']\n");
  EXPECT_EQ(frozen["pin"]["cuts"], trained["pin"]["cuts"]);
  EXPECT_EQ(frozen["pin"]["cuts"][0], "transformer.h.2.ln_1.weight");
  auto of_second = [](const nlohmann::json& plan, const char* part) {
    return plan["stages"][1]["memory"][part].get<double>();
  };
  EXPECT_NEAR(of_second(frozen, "parameters") / of_second(trained, "parameters"), 1, 0.01);  // f32, both
  EXPECT_EQ(of_second(frozen, "optimizer"), 0);
}

TEST_F(PlanCommand, ReportsHoldAMeasuredRunBesideThePlan) {
  out_.write("cluster.yaml", "device: cpu\ndevices_per_node: 2\n");
  ASSERT_EQ(plan("--like ddp", "plan.json").code, 0);
  Outcome run =
      run_partita("train " + kCarriedModel + "--quiet --steps 6 --data " + (out_ / "text.bin") + " --plan " +
                  (out_ / "plan.json") + " --profile " + (out_ / "trace.json") + " --metrics " + (out_ / "m.jsonl"));
  ASSERT_EQ(run.code, 0) << run.text;
  const std::string report = "report " + (out_ / "plan.json") + " -o " + (out_ / "r.html");
  ASSERT_EQ(run_partita(report).code, 0);
  for (const char* part : {"measured", "learning", "proof", "what_if"})
    EXPECT_FALSE(page_data(TempFolder::read(out_ / "r.html")).contains(part)) << part;
  Outcome o = run_partita(report + " --trace " + (out_ / "trace.json") + " --metrics " + (out_ / "m.jsonl"));
  ASSERT_EQ(o.code, 0) << o.text;
  const nlohmann::json data = page_data(TempFolder::read(out_ / "r.html"));
  ASSERT_EQ(data["measured"]["groups"].size(), 1u);
  std::set<std::string> found;
  for (const nlohmann::json& row : data["measured"]["groups"][0]["rows"]) {
    found.insert(row["work"].get<std::string>());
    if (row["work"] == "the step") {
      EXPECT_GT(row["predicted"].get<double>(), 0);
      EXPECT_GT(row["measured"].get<double>(), 0);
    }
  }
  for (const char* row : {"matrix products", "update", "communication", "the step"})
    EXPECT_TRUE(found.contains(row)) << row;
  EXPECT_EQ(data["learning"]["steps"], 6);
  EXPECT_EQ(data["learning"]["unit"], "tokens");
  ASSERT_EQ(data["learning"]["points"].size(), 6u);
  EXPECT_EQ(data["learning"]["points"][5][1], read_losses(out_ / "m.jsonl")[5]);
  for (const char* flag : {" --trace ", " --metrics ", " --certificate "})
    EXPECT_EQ(run_partita(report + flag + (out_ / "text.bin")).code, 2) << flag;
}

TEST_F(PlanCommand, SweepsTellWhatTheyCannotPlan) {
  out_.write("cluster.yaml", "nodes: 1\ndevices_per_node: 3\ndevice: A100-40GB\n");
  std::string sweep = "sweep " + kCarriedModel + "--cluster " + (out_ / "cluster.yaml");
  Outcome o =
      run_partita(sweep + " --devices 1,2,4,6 --tokens 1e9 --svg " + (out_ / "s.svg") + " --csv " + (out_ / "s.csv"));
  ASSERT_EQ(o.code, 0) << o.text;
  EXPECT_THAT(o.text, HasSubstr("4          - expected whole nodes of 3 devices"));
  EXPECT_THAT(o.text, HasSubstr("between nodes of 3: ethernet"));
  EXPECT_THAT(TempFolder::read(out_ / "s.csv"), HasSubstr("4,,,,,,,,,\"expected whole nodes of 3"));
  const std::string chart = TempFolder::read(out_ / "s.svg");
  EXPECT_THAT(chart, HasSubstr("<polygon"));
  for (const char* size : {"1", "2", "6"})
    EXPECT_THAT(chart,
                testing::ContainsRegex(cat("<title>", size, " devices: [0-9.e-]+ s a step, [0-9.]+ days, \\$[0-9.]+")));
  EXPECT_EQ(run_partita(sweep + " --devices 4,5").code, 2);
  out_.write("cluster.yaml", "device: {like: A100-40GB, memory: 1e9}\n");  // less than the reserve
  EXPECT_EQ(run_partita(sweep + " --devices 1,2").code, 3);
}

TEST_F(PlanCommand, RunsWithFailuresTellTheirEndAndPrice) {
  const std::string nodes = "devices_per_node: 2\ndevice: A100-40GB\nspare_nodes: 1\n";
  out_.write("cluster.yaml", "nodes: 1\n" + nodes);
  ASSERT_EQ(plan("", "small.json").code, 0);
  out_.write("cluster.yaml",
             "nodes: 2\n" + nodes + "failures: {node_mtbf: 3h, repair: 12h, detect: 30s, restart: 90s}\n");
  ASSERT_EQ(plan("", "plan.json").code, 0);
  const std::string simulate = "simulate " + (out_ / "plan.json") + " --start 2027-03-01 --replays 20 ";
  const Outcome o = run_partita(simulate + "--days 7");
  ASSERT_EQ(o.code, 0) << o.text;
  // A node each 1.5 hours, one to spare, and repairs of 12 hours: it mostly waits.
  EXPECT_THAT(o.text, HasSubstr("are 7.0 days on 2 nodes (1 more to spare)\nsomething fails every 90 min"));
  EXPECT_THAT(o.text, HasSubstr("waiting for nodes"));
  EXPECT_THAT(o.text, testing::ContainsRegex("with [0-9]+ nodes to spare .* goodput 9[0-9]\\.[0-9] %"));
  EXPECT_THAT(o.text, testing::ContainsRegex("begun on 2027-03-01, done on 2027-0[4-6]-"));
  EXPECT_THAT(o.text, testing::ContainsRegex("\\$[0-9]+ \\(\\$[0-9]+ to"));
  EXPECT_EQ(run_partita(simulate + "--days 7").text, o.text);
  auto goodput = [](const std::string& text) { return std::stod(text.substr(text.find("goodput ") + 8)); };
  const Outcome with = run_partita(simulate + "--days 7 --also " + (out_ / "small.json"));
  ASSERT_EQ(with.code, 0) << with.text;
  EXPECT_GT(goodput(with.text), goodput(o.text));
  EXPECT_EQ(run_partita(simulate + "--days 7 --also " + (out_ / "plan.json")).code, 2);
  EXPECT_EQ(run_partita(simulate + "--days 7 --steps 5").code, 2);
  EXPECT_EQ(run_partita("simulate " + (out_ / "plan.json") + " --days 7 --start March").code, 2);
  EXPECT_EQ(run_partita(simulate + "--steps 1e8 --checkpoint-every 1e8").code, 3);
  EXPECT_THAT(run_partita(simulate + "--days 7 --checkpoint-every 0.3").text, HasSubstr("expected whole steps"));
  EXPECT_THAT(run_partita(simulate).text, HasSubstr("--start is of a run: say how long it is by --days"));
  EXPECT_THAT(run_partita(simulate + "--days nan").text, HasSubstr("--days: expected a number, found 'nan'"));
  const std::string sweeping =
      "sweep " + kCarriedModel + "--cluster " + (out_ / "cluster.yaml") + " --devices 2,4 --failures";
  EXPECT_THAT(run_partita(sweeping + " --tokens 1e25").text, HasSubstr("--tokens: expected at most 1000000000 steps"));
  const Outcome sweep = run_partita(sweeping);
  ASSERT_EQ(sweep.code, 0) << sweep.text;
  EXPECT_THAT(sweep.text, testing::ContainsRegex("devices +step s +effic. +goodput"));
  out_.write("cluster.yaml", "nodes: 2\n" + nodes + "failures: {node_mtbf: 3 weeks}\n");
  EXPECT_THAT(plan("", "bad.json").text, HasSubstr("failures.node_mtbf: expected a number"));
}

// In ONNX's own words, and back.
TEST_F(PlanCommand, AnnotatedModelsHaveTheLayout) {
  for (const char* pins :
       {"--pin data=2 --pin tensor=2 --pin zero=1", "--pin pipeline=2 --pin data=2 --pin micro_batch=1"}) {
    SCOPED_TRACE(pins);
    const std::string annotated = out_ / "annotated.onnx";
    ASSERT_EQ(plan(cat("--annotate ", annotated, " ", pins), "plan.json").code, 0);
    const nlohmann::json first = nlohmann::json::parse(TempFolder::read(out_ / "plan.json"));
    ASSERT_EQ(plan("--like " + annotated, "again.json").code, 0);
    const nlohmann::json again = nlohmann::json::parse(TempFolder::read(out_ / "again.json"));
    EXPECT_EQ(again["pin"], first["pin"]);
    // Without the pins that went along: axes, stages and split weights are in the annotations.
    std::string bytes = TempFolder::read(annotated);
    const size_t key = bytes.find("partita.pins");
    ASSERT_NE(key, std::string::npos);
    bytes[key] = 'q';
    out_.write("others.onnx", bytes);
    const Outcome o = plan("--like " + (out_ / "others.onnx"), "others.json");
    ASSERT_EQ(o.code, 0) << o.text;
    const nlohmann::json others = nlohmann::json::parse(TempFolder::read(out_ / "others.json"));
    for (const char* axis : {"data", "tensor", "pipeline"}) EXPECT_EQ(others["pin"][axis], first["pin"][axis]) << axis;
  }
  const Outcome none = plan("--like " + (out_ / "missing.onnx"), "plan.json");
  EXPECT_EQ(none.code, 2) << none.text;
}

// Stages as they are pinned: the plan prices them, and what is compiled from it has them.
TEST_F(PlanCommand, PinnedStagesAreThoseOfThePlan) {
  const std::vector<double> one = train("");
  for (const char* pins : {"--pin data=2 --pin 'cuts=transformer.h.1.*'",
                           "--pin 'stages=[{data: 2}, {tensor: 2}]' --pin 'cuts=transformer.h.1.*'"}) {
    SCOPED_TRACE(pins);
    const std::string flags = std::string(pins) +
                              " --pin recompute=none --pin micro_batch=2 --pin schedule=1f1b "
                              "--pin zero=1 --pin sequence_parallel=false";
    Outcome planned = plan(flags, "plan.json");
    ASSERT_EQ(planned.code, 0) << planned.text;
    const nlohmann::json plan = nlohmann::json::parse(TempFolder::read(out_ / "plan.json"));
    ASSERT_EQ(plan["stages"].size(), 2u);
    EXPECT_EQ(plan["stages"][1]["chunks"][0]["first_unit"], 2);
    EXPECT_THAT(run_partita("explain " + (out_ / "plan.json")).text, HasSubstr("stages begin at: transformer.h.1.*"));
    std::vector<double> losses = train("--plan " + (out_ / "plan.json"));
    ASSERT_EQ(losses.size(), one.size());
    for (size_t k = 0; k < one.size(); ++k) EXPECT_NEAR(losses[k] / one[k], 1, 1e-5) << k;
    const std::string bundles[] = {out_ / "pinned", out_ / "planned"};
    Outcome pinned = run_partita("compile " + kCarriedModel + "--quiet --ranks 4 -o " + bundles[0] + " " + flags),
            again = run_partita("compile " + kCarriedModel + "--quiet --plan " + (out_ / "plan.json") + " -o " +
                                bundles[1]);
    ASSERT_EQ(pinned.code, 0) << pinned.text;
    ASSERT_EQ(again.code, 0) << again.text;
    for (const char* file : {"/verify/rank.0.ir", "/verify/rank.1.ir"})
      EXPECT_TRUE(TempFolder::read(bundles[0] + file) == TempFolder::read(bundles[1] + file)) << file;
  }
  Outcome inside = plan("--pin pipeline=2 --pin 'cuts=transformer.h.1.mlp.*'", "plan.json");
  EXPECT_EQ(inside.code, 2) << inside.text;
  EXPECT_THAT(inside.text, HasSubstr("inside of block 1, which a plan keeps in one piece"));
}

// Elements of the parameters that a rank's program keeps, as its IR lists them.
double compiled_parameters(const std::string& ir) {
  double sum = 0;
  static const std::regex state("state %\\d+ f32\\[([\\d,]*)\\] parameter ");
  for (std::sregex_iterator at(ir.begin(), ir.end(), state), end; at != end; ++at) {
    double elements = 1;
    std::istringstream sizes((*at)[1]);
    for (std::string size; std::getline(sizes, size, ',');) elements *= std::stod(size);
    sum += elements;
  }
  return sum;
}

// Stages that the search cuts unevenly, chunks of interleaved ones, and even ones of a pinned pipeline.
TEST_F(PlanCommand, CompiledStagesHoldTheParametersOfThePlan) {
  struct Case {
    int layers, ranks;
    const char *pins, *layout;
  };
  for (const Case& c : {Case{5, 2, "schedule=1f1b", "pipeline 2"}, Case{5, 2, "interleave=2", "interleaved 2"},
                        Case{5, 4, "schedule=1f1b", "uneven stages"}, Case{7, 3, "schedule=1f1b", "uneven stages"},
                        Case{7, 4, "pipeline=4", "pipeline 4"}}) {
    SCOPED_TRACE(cat(c.layers, " layers, ", c.ranks, " ranks, ", c.pins));
    const std::string model = out_ / "gpt.onnx", train = out_ / "train.yaml";
    out_.write("train.yaml", "batch: {global: 8}\nloss: {kind: output}\noptimizer: {kind: adamw, lr: 0.001}\n");
    Outcome made = run_partita(cat("model gpt --layers ", c.layers, " --hidden 64 --heads 4 --vocab 2048 --seq 32 ",
                                   "--with-weights --quiet -o ", model));
    ASSERT_EQ(made.code, 0) << made.text;
    out_.write("ranks.yaml", cat("nodes: 1\ndevices_per_node: ", c.ranks, "\ndevice: cpu\n"));
    const std::string schedule = c.pins == std::string("interleave=2") ? " --pin schedule=interleaved" : "";
    Outcome planned = run_partita(cat("plan ", model, " --train ", train, " --cluster ", out_ / "ranks.yaml",
                                      " --pin data=1 --pin tensor=1 --pin micro_batch=1 --pin recompute=none --pin ",
                                      c.pins, schedule, " -o ", out_ / "plan.json"));
    ASSERT_EQ(planned.code, 0) << planned.text;
    nlohmann::json plan = nlohmann::json::parse(TempFolder::read(out_ / "plan.json"));
    EXPECT_THAT(plan["layout"].get<std::string>(), HasSubstr(c.layout));
    ASSERT_EQ(plan["stages"].size(), static_cast<size_t>(c.ranks));
    auto compile = [&](const std::string& file) {
      return run_partita(
          cat("compile ", model, " --train ", train, " --quiet -o ", out_ / "b", " --plan ", out_ / file));
    };
    Outcome compiled = compile("plan.json");
    ASSERT_EQ(compiled.code, 0) << compiled.text;
    for (int stage = 0; stage < c.ranks; ++stage) {
      const std::string ir = TempFolder::read(out_ / cat("b/verify/rank.", stage, ".ir"));
      EXPECT_EQ(4 * compiled_parameters(ir), plan["stages"][stage]["memory"]["parameters"].get<double>()) << stage;
      for (int block = 0; block < c.layers; ++block) {  // unit 0 is what stands before the blocks
        bool here = false;
        for (const nlohmann::json& chunk : plan["stages"][stage]["chunks"]) {
          const int first = chunk["first_unit"], units = chunk["units"];
          here = here || (block + 1 >= first && block + 1 < first + units);
        }
        EXPECT_EQ(ir.find(cat("parameter \"transformer.h.", block, ".")) != ir.npos, here) << stage << " " << block;
      }
    }
    Outcome proved = run_partita("verify " + (out_ / "b"));
    EXPECT_EQ(proved.code, 0) << proved.text;
    // Another number of stages has other cuts.
    if (c.ranks == 4) {
      EXPECT_EQ(compile("plan.json --pin pipeline=2 --pin data=2").code, 0);
    }
    // Plans that do not say where stages begin: compile balances them.
    plan["pin"].erase("cuts");
    out_.write("without.json", plan.dump());
    compiled = compile("without.json");
    EXPECT_EQ(compiled.code, 0) << compiled.text;
    EXPECT_THAT(run_partita("explain " + (out_ / "without.json")).text, HasSubstr("compile balances the stages anew"));
  }
}

TEST_F(PlanCommand, WhatDoesNotFitThePlanIsRefused) {
  ASSERT_EQ(plan("--pin pipeline=1 --pin recompute=none", "plan.json").code, 0);
  auto compile = [&](const std::string& flags) {
    return run_partita("compile " + kCarriedModel + "-o " + (out_ / "bundle") + " --plan " + flags);
  };
  Outcome ranks = compile((out_ / "plan.json") + " --ranks 3");
  EXPECT_EQ(ranks.code, 2) << ranks.text;
  EXPECT_THAT(ranks.text, HasSubstr("--ranks says 3"));
  out_.write("half.json", TempFolder::read(out_ / "plan.json").substr(0, 200));
  Outcome half = compile(out_ / "half.json");
  EXPECT_EQ(half.code, 2) << half.text;
  EXPECT_THAT(half.text, HasSubstr("expected a plan in JSON"));
  std::string text = TempFolder::read(out_ / "plan.json"), batch = "\"global_batch\": 8";
  size_t at = text.find(batch);
  ASSERT_NE(at, std::string::npos);
  out_.write("other.json", text.replace(at, batch.size(), "\"global_batch\": 16"));
  Outcome other = compile(out_ / "other.json");
  EXPECT_EQ(other.code, 2) << other.text;
  EXPECT_THAT(other.text, HasSubstr("is for a global batch of 16 and batch.global is 8"));
}

// On devices of any size, down to those that nothing fits: what the plan offers, compile takes.
TEST_F(PlanCommand, WhatIsOfferedFits) {
  const std::string model = out_ / "m.onnx", train = out_ / "t.yaml";
  ASSERT_EQ(run_partita(
                "model gpt --layers 4 --hidden 256 --heads 4 --vocab 8000 --seq 256 --with-weights --quiet -o " + model)
                .code,
            0);
  out_.write("t.yaml", "optimizer: {kind: adamw}\nbatch: {global: 16}\nprecision: bf16\nloss: {kind: output}\n");
  const std::string flags = model + " --train " + train + " --quiet ";
  size_t offered = 0, none = 0;
  for (const char* memory : {"10e6", "30e6", "60e6", "90e6", "130e6", "180e6", "250e6", "400e6"}) {
    SCOPED_TRACE(memory);
    out_.write("cluster.yaml",
               cat("devices_per_node: 4\ndevice: {like: RTX-4090, reserve: 0, memory: ", memory, "}\n"));
    Outcome planned =
        run_partita("plan " + flags + "--cluster " + (out_ / "cluster.yaml") + " -o " + (out_ / "p.json"));
    if (planned.code == 3) {
      ++none;
      continue;
    }
    ASSERT_EQ(planned.code, 0) << planned.text;
    ++offered;
    const nlohmann::json plan = nlohmann::json::parse(TempFolder::read(out_ / "p.json"));
    for (const nlohmann::json& bytes : plan["predicted"]["program_bytes"])
      EXPECT_LE(bytes.get<double>(), std::stod(memory));
    Outcome compiled =
        run_partita("compile " + flags + "--target cuda:sm_89 --plan " + (out_ / "p.json") + " -o " + (out_ / "b"));
    EXPECT_EQ(compiled.code, 0) << plan["layout"] << compiled.text;
  }
  EXPECT_GT(offered, 2u);
  EXPECT_GT(none, 0u);
}

// The search counts what programs compiled here hold: nothing that fits is refused by the count, or nearly.
TEST_F(PlanCommand, TheCountIsThatOfTheProgram) {
  out_.write("t.yaml", "optimizer: {kind: adamw}\nbatch: {global: 16}\nprecision: bf16\nloss: {kind: output}\n");
  out_.write("cluster.yaml", "devices_per_node: 4\ndevice: {like: cpu, reserve: 0, memory: 1e12}\n");
  const std::pair<int, const char*> layouts[] = {{8, "--pin data=4 --pin zero=0"},
                                                 {8, "--pin data=4 --pin zero=1"},
                                                 {8, "--pin data=4 --pin zero=3"},
                                                 {8, "--pin tensor=4 --pin zero=0"},
                                                 {9, "--pin tensor=4 --pin zero=0"},  // all heads on all ranks
                                                 {6, "--pin tensor=4 --pin zero=0"},  // two ranks do the same heads
                                                 {8, "--pin pipeline=4 --pin zero=0 --pin schedule=1f1b"},
                                                 {8, "--pin pipeline=4 --pin zero=0 --pin schedule=zero_bubble"},
                                                 {8, "--pin data=4 --pin zero=0 --pin recompute=full"}};
  for (const auto& [heads, pins] : layouts) {
    SCOPED_TRACE(cat(heads, " heads ", pins));
    const std::string model = out_ / cat("m", heads, ".onnx");
    ASSERT_EQ(run_partita(cat("model gpt --layers 6 --hidden ", 64 * heads, " --heads ", heads,
                              " --vocab 8000 --seq 512 --norm rmsnorm --quiet -o ", model))
                  .code,
              0);
    const Outcome planned =
        run_partita("plan " + model + " --train " + (out_ / "t.yaml") + " --pin micro_batch=2 " + pins +
                    " --quiet --cluster " + (out_ / "cluster.yaml") + " -o " + (out_ / "p.json"));
    ASSERT_EQ(planned.code, 0) << planned.text;
    const nlohmann::json plan = nlohmann::json::parse(TempFolder::read(out_ / "p.json")), predicted = plan["predicted"];
    for (size_t stage = 0; stage < predicted["program_bytes"].size(); ++stage)
      EXPECT_NEAR(predicted["memory_bytes"][stage].get<double>() / predicted["program_bytes"][stage].get<double>(), 1,
                  std::string_view(pins).find("pipeline") == std::string_view::npos ? 0.15 : 0.25);
    if (heads % 4 != 0) {
      EXPECT_THAT(plan["units"][1]["tensor_split"].get<std::string>(),
                  HasSubstr(cat("; ", heads == 9 ? 4 : 2, " ranks do the same heads")));
    }
  }
}

// The plan's memory is a model's; what the program was laid out to need decides.
TEST_F(PlanCommand, AProgramThatNeedsMoreThanThePlansDevicesIsRefused) {
  ASSERT_EQ(plan("--pin pipeline=1 --pin recompute=none", "plan.json").code, 0);
  auto compile = [&](const std::string& flags) {
    return run_partita("compile " + kCarriedModel + "-o " + (out_ / "bundle") + " --plan " + flags);
  };
  EXPECT_EQ(compile(out_ / "plan.json").code, 0);
  std::string text = TempFolder::read(out_ / "plan.json"), capacity = "\"capacity_bytes\": ";
  size_t at = text.find(capacity);
  ASSERT_NE(at, std::string::npos);
  size_t number = at + capacity.size(), end = text.find_first_of(",}\n", number);
  out_.write("small.json", text.replace(number, end - number, "100100000"));  // 100 kB beside the reserve
  Outcome refused = compile(out_ / "small.json");
  EXPECT_EQ(refused.code, 3) << refused.text;
  EXPECT_THAT(refused.text, HasSubstr("of device memory (state"));
  EXPECT_THAT(refused.text, HasSubstr("the plan's devices have 0.0001 GB beside the reserve"));
  EXPECT_EQ(compile((out_ / "small.json") + " --allow-infeasible").code, 0);
}

// Steps of our own programs that GPUs have run (tools/bench/results/gpu) are foretold.
TEST(Plan_OwnPrograms, AreForetoldAsTheyRanOnGpus) {
  const Outcome foretold = run_command(
      cat("python3 " PARTITA_TEST_DATA "/../../tools/bench/gpu_predictions --limit 15 --partita ", partita_program()));
  EXPECT_EQ(foretold.code, 0) << foretold.text;
  EXPECT_THAT(foretold.text, HasSubstr("over 8 steps"));
}

}  // namespace
}  // namespace partita
