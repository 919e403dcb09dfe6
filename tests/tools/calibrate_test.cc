// `doctor --calibrate`: the profile of this machine is read by the verbs that plan; and the parts that measure.
#include "tools/calibrate/calibrate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <thread>

#include "partitioner/compute_cost.h"
#include "tests/temp_folder.h"
#include "tests/tools/command.h"
#include "tools/calibrate/measured_run.h"
#include "tools/calibrate/rank_team.h"

namespace partita {
namespace {

using testing::HasSubstr;

TEST(Calibrate, AMeasuredProfileIsWhatPlansAreMadeFrom) {
  TempFolder out;
  Outcome measured = run_command(partita_program() + " doctor --calibrate " + (out / "local.yaml") + " --ranks 2");
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
  auto timing = team.time([](int rank, runtime::Communicator*) -> absl::StatusOr<RankWork> {
    return RankWork([rank] {
      std::this_thread::sleep_for(std::chrono::milliseconds(rank == 1 ? 20 : 1));
      return absl::OkStatus();
    });
  });
  ASSERT_TRUE(timing.ok()) << timing.status();
  EXPECT_GE(timing->seconds, 0.020);
}

TEST(RankTeam, AnErrorOfOneRankEndsAll) {
  auto timing = RankTeam::of(2).time([](int rank, runtime::Communicator* c) -> absl::StatusOr<RankWork> {
    return RankWork([rank, c, calls = 0]() mutable {
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
              event(2, "update", "generated", at + 0.8, 0.02 * slow) + (k < 4 ? "," : "");
  }
  auto run = read_measured_run("{\"traceEvents\":[" + events + "]}", "t.json");
  ASSERT_TRUE(run.ok()) << run.status();
  EXPECT_NEAR(run->seconds(WorkClass::kMatrix), 0.2, 1e-9);
  EXPECT_NEAR(run->seconds(WorkClass::kCommunication), 0.05, 1e-9);
  EXPECT_NEAR(run->seconds(WorkClass::kUpdate), 0.02, 1e-9);
  EXPECT_NEAR(run->step_seconds, 1, 1e-9);
  EXPECT_NEAR(run->gap_seconds, 1 - 0.27, 1e-9);
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

TEST(MemoryTraffic, IsFoundFromTheTimeThatItGives) {
  DeviceProfile device = *ProfileLibrary::load()->device("cpu");
  device.software.memory_traffic = 1.7;
  Workload w;
  w.kinds.resize(1), w.units = {0, 0};
  w.kinds[0].forward_traffic = {1e6, 2e6}, w.kinds[0].backward_traffic = {2e6, 1e6};
  w.kinds[0].forward_kernels = w.kinds[0].backward_kernels = 4;
  double seconds = 0;
  for (size_t k = 0; k < w.units.size(); ++k) {
    UnitTime t = unit_time(w.unit(k), w, device, {}, {.samples = 3});
    seconds += t.forward + t.input_gradient;
  }
  EXPECT_NEAR(memory_traffic_for(seconds, w, device, 3), 1.7, 0.01);
}

}  // namespace
}  // namespace partita
