// `doctor --calibrate`: the profile of this machine is read by the verbs that plan; and the parts that measure.
#include "tools/calibrate/calibrate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <thread>

#include "tests/support/command.h"
#include "tests/support/temp_folder.h"
#include "tools/calibrate/measured_run.h"
#include "tools/calibrate/rank_team.h"
#include "tools/calibrate/refine.h"

namespace partita {
namespace {

using testing::HasSubstr;

TEST(Calibrate, AMeasuredProfileIsWhatPlansAreMadeFrom) {
  TempFolder out;
  Outcome measured =
      run_command(partita_program() + " doctor --calibrate " + (out / "local.yaml") + " --ranks 2 --rounds 7");
  ASSERT_EQ(measured.code, 0) << measured.text;
  EXPECT_THAT(measured.text, HasSubstr("noise"));
  out.write("cluster.yaml", "preset: local-2\n");
  std::string model = std::string(PARTITA_TEST_DATA) + "/gpt2";
  Outcome plan = run_command(partita_program() + " plan " + model + "/model.onnx --train " + model +
                             "/train.yaml --profiles " + (out / "local.yaml") + " --cluster " + (out / "cluster.yaml") +
                             " --pin data=2 -o " + (out / "plan.json"));
  EXPECT_EQ(plan.code, 0) << plan.text;
}

TEST(Calibrate, WhatCannotBeWrittenOrMeasuredIsRefused) {
  TempFolder out;
  Outcome ranks = run_command(partita_program() + " doctor --ranks 2");
  EXPECT_EQ(ranks.code, 2) << ranks.text;
  EXPECT_THAT(ranks.text, HasSubstr("--calibrate"));
  Outcome folder = run_command(partita_program() + " doctor --ranks 1 --calibrate " + (out / "none/local.yaml"));
  EXPECT_EQ(folder.code, 2) << folder.text;
  EXPECT_THAT(folder.text, HasSubstr("none/local.yaml"));
}

TEST(RankTeam, TheSlowestRankCounts) {
  RankTeam team = RankTeam::of(2);
  team.rounds = 3;
  auto timing = team.time([](const RankPlace& place) -> absl::StatusOr<RankWork> {
    return RankWork([rank = place.rank] {
      std::this_thread::sleep_for(std::chrono::milliseconds(rank == 1 ? 20 : 1));
      return absl::OkStatus();
    });
  });
  ASSERT_TRUE(timing.ok()) << timing.status();
  EXPECT_GE(timing->seconds, 0.020);
}

TEST(RankTeam, AnErrorOfOneRankEndsAll) {
  auto timing = RankTeam::of(2).time([](const RankPlace& place) -> absl::StatusOr<RankWork> {
    return RankWork([rank = place.rank, c = place.communicator, calls = 0]() mutable {
      if (rank == 1 && ++calls > 2) return absl::InvalidArgumentError("no more");
      return c->run({});
    });
  });
  EXPECT_FALSE(timing.ok());
}

std::string event(int step, const char* segment, const char* category, double begin, double seconds) {
  return "{\"ph\":\"X\",\"cat\":\"" + std::string(category) + "\",\"ts\":" + std::to_string(begin * 1e6) +
         ",\"dur\":" + std::to_string(seconds * 1e6) + ",\"args\":{\"step\":" + std::to_string(step) +
         ",\"segment\":\"" + segment + "\",\"bytes\":100}}";
}

TEST(MeasuredRun, TheFirstTrainingStepIsLeftOut) {
  std::string events;
  for (int k = 0; k < 5; ++k) {
    double at = k + 1, slow = k == 0 ? 5 : 1;
    events += event(0, "forward", "matmul", at, 0.1 * slow) + "," +
              event(0, "forward", "matmul", at + 0.5, 0.1 * slow) + "," +
              event(1, "backward", "wait all_reduce", at + 0.6, 0.05) + "," +
              event(3, "backward", "grouped_matmul_grad", at + 0.7, 0.03 * slow) + "," +
              event(2, "update", "generated", at + 0.8, 0.02 * slow) + (k < 4 ? "," : "");
  }
  auto run = read_measured_run("{\"traceEvents\":[" + events + "]}", "t.json");
  ASSERT_TRUE(run.ok()) << run.status();
  EXPECT_NEAR(run->seconds(WorkClass::kMatrix), 0.23, 1e-9);
  EXPECT_NEAR(run->seconds(WorkClass::kCommunication), 0.05, 1e-9);
  EXPECT_NEAR(run->seconds(WorkClass::kUpdate), 0.02, 1e-9);
  EXPECT_NEAR(run->step_seconds, 1, 1e-9);
  EXPECT_NEAR(run->gap_seconds, 1 - 0.30, 1e-9);
  EXPECT_EQ(run->steps[0].calls, 2);
}

TEST(MeasuredRun, WhatIsNoTraceOfATrainingRunIsRefused) {
  for (const char* text : {"", "[]", "{\"traceEvents\":[]}", "{\"traceEvents\":[{\"ph\":\"X\",\"args\":{}}]}",
                           "{\"traceEvents\":[{\"ph\":\"X\",\"args\":{\"step\":\"a\",\"segment\":1}}]}"}) {
    auto run = read_measured_run(text, "t.json");
    ASSERT_FALSE(run.ok()) << text;
    EXPECT_EQ(run.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(run.status().message(), HasSubstr("t.json"));
  }
}

// Two units of elementwise work and products on two ranks.
struct SmallProblem {
  SmallProblem() {
    workload.kinds.resize(1), workload.units = {0, 0};
    UnitWork& u = workload.kinds[0];
    u.forward_traffic = {1e6, 2e6}, u.backward_traffic = {2e6, 1e6};
    u.forward_kernels = u.backward_kernels = 4;
    u.parameters = {1e6, 0};
    u.matrices.push_back({.m = 200, .n = 200, .k = 200});
    workload.parameters = 2e6;
    DeviceGroup g;
    g.devices_per_node = 2;
    g.device = *ProfileLibrary::load()->device("cpu");
    g.links = {{*ProfileLibrary::load()->link("memory"), 2}};
    cluster.groups = {g};
    problem.workload = &workload, problem.cluster = &cluster, problem.global_batch = 6;
  }
  Workload workload;
  Cluster cluster;
  Problem problem;
  Layout layout{.data = 2, .micro_batch = 3};
};

TEST(MemoryTraffic, IsFoundFromTheTimeThatItGives) {
  SmallProblem s;
  DeviceProfile device = s.cluster.groups[0].device;
  device.software.memory_traffic = 1.7;
  double seconds = class_seconds(WorkClass::kMemory, s.problem, device, s.layout);
  EXPECT_NEAR(memory_traffic_for(seconds, s.problem, device, s.layout), 1.7, 0.01);
}

// A run on a machine whose constants are others gives those constants back.
TEST(Refine, TheProfileOfTheMachineThatRanIsFound) {
  SmallProblem s;
  SmallProblem there;
  DeviceProfile& d = there.cluster.groups[0].device;
  d.flops[0] /= 2, d.bandwidth *= 1.5, d.software.memory_traffic = 1.4, d.launch_seconds = 0;
  s.cluster.groups[0].device.launch_seconds = 0;
  there.cluster.groups[0].links[0].link.bandwidth /= 4, there.cluster.groups[0].links[0].link.latency *= 4;
  MeasuredRun run;
  run.gap_seconds = 0.003;
  run.step_seconds = run.gap_seconds;
  for (int c = 0; c < kWorkClasses; ++c) {
    double seconds = class_seconds(static_cast<WorkClass>(c), there.problem, d, there.layout);
    run.class_seconds[static_cast<size_t>(c)] = seconds;
    run.step_seconds += seconds;
  }
  const Refined refined = refine(s.problem, s.layout, {{.measured = {.run = run}}});
  const DeviceGroup& g = refined.cluster.groups[0];
  EXPECT_NEAR(g.device.flops[0] / d.flops[0], 1, 0.02);
  EXPECT_NEAR(g.device.bandwidth / d.bandwidth, 1, 0.02);
  EXPECT_NEAR(g.device.software.memory_traffic / 1.4, 1, 0.02);
  EXPECT_NEAR(g.device.software.step_seconds, 0.003, 1e-9);
  EXPECT_NEAR(g.links[0].link.bandwidth / there.cluster.groups[0].links[0].link.bandwidth, 1, 0.02);
  EXPECT_GE(refined.corrections.size(), 6u);
}

// What is waited for is what compute does not hide: links that are forty times as slow are waited for more than forty
// times as long.
TEST(Refine, LinksThatComputeHidesAreFound) {
  SmallProblem s, there;
  for (SmallProblem* p : {&s, &there})
    p->problem.own_programs = false, p->cluster.groups[0].device.software.overlap_data = 0.9;
  LinkProfile& link = there.cluster.groups[0].links[0].link;
  link.bandwidth /= 40, link.latency *= 40, link.wait_seconds *= 40;
  auto waited = [](const SmallProblem& p) {
    return class_seconds(WorkClass::kCommunication, p.problem, p.cluster.groups[0].device, p.layout);
  };
  EXPECT_GT(waited(there), 41 * waited(s));
  MeasuredRun run;
  run.step_seconds = CostModel(there.problem).predict(there.layout, true).step_seconds;
  run.class_seconds[static_cast<size_t>(WorkClass::kCommunication)] = waited(there);
  const Refined refined = refine(s.problem, s.layout, {{.measured = {.run = run}}});
  EXPECT_NEAR(refined.cluster.groups[0].links[0].link.bandwidth / link.bandwidth, 1, 0.02);
}

// Each group's devices are corrected from the ranks that are on them.
TEST(Refine, EachGroupsProfileIsFound) {
  SmallProblem s, there;
  for (SmallProblem* p : {&s, &there}) {
    DeviceGroup other = p->cluster.groups[0];
    other.device.name = "other";
    other.devices_per_node = 1;
    p->cluster.groups.push_back(other);
    p->layout = {.data = 2, .pipeline = 2, .micro_batch = 3, .cuts = {1, 1}, .stages = {{.data = 2}, {.data = 1}}};
    for (DeviceGroup& g : p->cluster.groups) g.device.launch_seconds = 0;
  }
  there.cluster.groups[0].device.flops[0] *= 2;
  DeviceProfile& second = there.cluster.groups[1].device;
  second.flops[0] /= 3, second.bandwidth /= 2, second.software.memory_traffic = 1.6;
  std::vector<MeasuredGroup> measured;
  for (size_t g = 0; g < 2; ++g) {
    MeasuredGroup& m = measured.emplace_back();
    m.group = g, m.stage = static_cast<int64_t>(g), m.first_rank = g == 0 ? 0 : 2;
    MeasuredRun& run = m.measured.run;
    run.gap_seconds = run.step_seconds = 0.001 * static_cast<double>(g + 1);
    for (WorkClass c : {WorkClass::kMatrix, WorkClass::kMemory, WorkClass::kUpdate}) {
      const double seconds = class_seconds(c, there.problem, there.cluster.groups[g].device, there.layout, m.stage);
      EXPECT_GT(seconds, 0) << g;
      run.class_seconds[static_cast<size_t>(c)] = seconds, run.step_seconds += seconds;
    }
  }
  const Refined refined = refine(s.problem, s.layout, measured);
  for (size_t g = 0; g < 2; ++g) {
    const DeviceProfile &found = refined.cluster.groups[g].device, &real = there.cluster.groups[g].device;
    EXPECT_NEAR(found.flops[0] / real.flops[0], 1, 0.02) << g;
    EXPECT_NEAR(found.bandwidth / real.bandwidth, 1, 0.02) << g;
    EXPECT_NEAR(found.software.memory_traffic / real.software.memory_traffic, 1, 0.02) << g;
    EXPECT_NEAR(found.software.step_seconds, 0.001 * static_cast<double>(g + 1), 1e-9);
  }
  EXPECT_EQ(refined.corrections.back().constant, "other: software.step_seconds");
  // A step waits for the host that takes longest.
  Problem now = s.problem;
  now.cluster = &refined.cluster;
  EXPECT_NEAR(CostModel(now).predict(s.layout, true).breakdown.host -
                  CostModel(s.problem).predict(s.layout, true).breakdown.host,
              0.002 - s.cluster.groups[0].device.software.step_seconds, 1e-9);
}

// Of three ranks: what the median computes, and what the one that all others wait for spends on communication.
TEST(Refine, RanksAreHeldTogether) {
  auto rank = [](double products, double waits) {
    MeasuredRun r;
    r.steps = {{WorkClass::kMatrix, products, products, 1, 0, 0}, {WorkClass::kCommunication, waits, waits, 1, 0, 64}};
    r.class_seconds[static_cast<size_t>(WorkClass::kMatrix)] = products;
    r.class_seconds[static_cast<size_t>(WorkClass::kCommunication)] = waits;
    return r;
  };
  const MeasuredRanks all = as_one({rank(2, 4), rank(5, 1), rank(3, 3)});
  EXPECT_EQ(all.ranks, 3u);
  EXPECT_EQ(all.slowest, 1u);
  EXPECT_DOUBLE_EQ(all.slowest_work, 5);
  EXPECT_DOUBLE_EQ(all.median_work, 3);
  EXPECT_DOUBLE_EQ(all.run.seconds(WorkClass::kMatrix), 3);
  EXPECT_DOUBLE_EQ(all.run.seconds(WorkClass::kCommunication), 1);
  ASSERT_EQ(all.run.steps.size(), 2u);
  EXPECT_DOUBLE_EQ(all.run.steps[0].seconds, 3);
  EXPECT_DOUBLE_EQ(all.run.steps[1].seconds, 1);
}

TEST(Refine, AMeasuredRunCorrectsThePlan) {
  TempFolder out;
  std::string model = std::string(PARTITA_TEST_DATA) + "/gpt2";
  std::string flags = model + "/model.onnx --train " + model + "/train.yaml ";
  out.write("cluster.yaml", "nodes: 1\ndevices_per_node: 2\ndevice: cpu\nlinks: [{kind: memory}]\n");
  out.write("text.bin", std::string(60000, 'a') + std::string(60000, 'b'));
  std::string plan = partita_program() + " plan " + flags + "--cluster " + (out / "cluster.yaml");
  Outcome first = run_command(plan + " --pin data=2 --pin recompute=none -o " + (out / "plan.json"));
  ASSERT_EQ(first.code, 0) << first.text;
  Outcome run = run_command(partita_program() + " train " + flags + "--plan " + (out / "plan.json") + " --data " +
                            (out / "text.bin") + " --quiet --steps 8 --profile " + (out / "trace.json"));
  ASSERT_EQ(run.code, 0) << run.text;
  EXPECT_EQ(run.text, "");
  Outcome refined = run_command(plan + " --refine " + (out / "trace.json") + " --ran " + (out / "plan.json") +
                                " --refined-profile " + (out / "refined.yaml"));
  ASSERT_EQ(refined.code, 0) << refined.text;
  EXPECT_THAT(refined.text, HasSubstr("the plan "));
  EXPECT_THAT(refined.text, HasSubstr("flops.fp32"));
  EXPECT_THAT(refined.text, HasSubstr("of 2 ranks, rank "));
  Outcome again = run_command(plan + " --profiles " + (out / "refined.yaml"));
  EXPECT_EQ(again.code, 0) << again.text;
  // What ran had other samples: the profile would be corrected by the batch.
  const Outcome other =
      run_command(plan + " --batch-size 64 --refine " + (out / "trace.json") + " --ran " + (out / "plan.json"));
  EXPECT_EQ(other.code, 2) << other.text;
  EXPECT_THAT(other.text, HasSubstr("is a plan of another batch"));
  out.write("one.yaml", "nodes: 1\ndevices_per_node: 1\ndevice: cpu\n");
  const Outcome others = run_command(partita_program() + " plan " + flags + "--cluster " + (out / "one.yaml") +
                                     " --refine " + (out / "trace.json"));
  EXPECT_EQ(others.code, 2) << others.text;
  EXPECT_THAT(others.text, HasSubstr("the trace of a run of 2 ranks, where the plan has 1"));
  out.write("none.json", "{}");
  Outcome refused = run_command(plan + " --refine " + (out / "none.json"));
  EXPECT_EQ(refused.code, 2) << refused.text;
  EXPECT_THAT(refused.text, HasSubstr("none.json"));
}

}  // namespace
}  // namespace partita
