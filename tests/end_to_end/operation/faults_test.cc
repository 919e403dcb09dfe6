// What a run does when something happens to it: real processes, real signals.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <optional>
#include <set>
#include <thread>
#include <vector>

#include "nlohmann/json.hpp"
#include "runtime/checkpoint/checkpoint_manifest.h"
#include "runtime/record/flight_recorder.h"
#include "runtime/record/flight_view.h"
#include "runtime/record/process.h"
#include "tests/support/command.h"
#include "tests/support/running.h"
#include "tests/support/temp_folder.h"

namespace partita {
namespace {

namespace fs = std::filesystem;
using runtime::FlightReader;
using testing::AllOf;
using testing::ContainsRegex;
using testing::HasSubstr;
using testing::Not;

struct RankProcess {
  int64_t id = 0, start = 0;
  bool lives() const { return id != 0 && runtime::process_state(id, start) != '\0'; }
};

class Faults : public testing::Test {
 protected:
  static constexpr const char* kForever = " --steps 1000000000 --quiet --threads 1";

  std::string compile(const std::string& flags, const std::string& layers = "32,64,8") {
    const Outcome model = run_partita("model mlp --layers " + layers + " --batch 8 --with-weights -o " +
                                      (out_ / "mlp.onnx") + " --quiet");
    const std::string recipe =
        out_.write("train.yaml",
                   "loss: {kind: mse, target: target}\noptimizer: {kind: adamw, lr: 0.001}\ndata: {kind: synthetic}\n");
    const Outcome done = run_partita("compile " + (out_ / "mlp.onnx") + " --train " + recipe + " --quiet " + flags +
                                     " -o " + (out_ / "bundle"));
    EXPECT_EQ(model.code + done.code, 0) << model.text << done.text;
    return out_ / "bundle";
  }
  std::string run(const std::string& bundle, const std::string& flags) {
    return "exec " + partita_program() + " run " + bundle + kForever + " " + flags;
  }
  // The ranks' processes, once all have taken some steps.
  std::vector<RankProcess> ranks(const std::string& records, int count, const Running& running) {
    std::vector<RankProcess> found;
    const bool all = wait_until(
        [&] {
          found.clear();
          for (int rank = 0; rank < count; ++rank) {
            const auto reader = FlightReader::open(runtime::flight_file(records, rank));
            if (!reader.ok() || (*reader)->header().training_step < 3) return false;
            found.push_back({(*reader)->header().process, (*reader)->header().process_start});
          }
          return true;
        },
        60);
    EXPECT_TRUE(all) << running.text();
    found.resize(static_cast<size_t>(count));
    return found;
  }
  static bool none_lives(const std::vector<RankProcess>& ranks) {
    for (const RankProcess& r : ranks) {
      if (r.lives()) return false;
    }
    return true;
  }

  TempFolder out_;
};

TEST_F(Faults, KilledSupervisor_TakesItsRanksAlong_AndLeavesTheirRecords) {
  const std::string bundle = compile("--ranks 2 --like ddp"), logs = out_ / "logs";
  Running running(run(bundle, "--processes --log-dir " + logs), out_ / "output");
  const std::vector<RankProcess> started = ranks(logs, 2, running);
  ::kill(running.id(), SIGKILL);
  EXPECT_EQ(running.end(5), 137);
  EXPECT_TRUE(wait_until([&] { return none_lives(started); }, 2));
  const Outcome autopsy = run_partita("autopsy " + logs + " --last 60");  // more than a training step has
  EXPECT_EQ(autopsy.code, 0) << autopsy.text;
  EXPECT_THAT(autopsy.text, HasSubstr("root cause: all 2 ranks ended at once without a word: who started them"));
  EXPECT_THAT(autopsy.text, HasSubstr("rank 1, its last operations"));
  EXPECT_THAT(autopsy.text, ContainsRegex("started  all_reduce .*Gemm"));
  // Who starts it again is told; after a clean end there is nothing to tell.
  for (const bool first : {true, false}) {
    const Outcome again = run_partita("run " + bundle + " --steps 3 --quiet --threads 1 --processes --log-dir " + logs);
    EXPECT_EQ(again.code, 0) << again.text;
    EXPECT_EQ(again.text.find("partita: the last start, of 2 ranks, ended at training step ") != std::string::npos,
              first)
        << again.text;
  }
}

TEST_F(Faults, KilledRank_EndsTheOthersSoon_AndIsTheRootCause) {
  for (const char* layout : {"--ranks 4 --like ddp", "--ranks 4 --pin pipeline=2 --pin data=2 --pin micro_batch=2"}) {
    const std::string bundle = compile(layout), logs = out_ / "logs";
    Running running(run(bundle, "--processes --log-dir " + logs), out_ / "output");
    const std::vector<RankProcess> started = ranks(logs, 4, running);
    const auto begin = Clock::now();
    ::kill(static_cast<pid_t>(started[2].id), SIGKILL);
    EXPECT_EQ(running.end(15), 129) << layout;
    EXPECT_LT(seconds_since(begin), 4) << layout;  // 2 s on a machine that does nothing else
    EXPECT_TRUE(none_lives(started));
    const std::string text = running.text();
    EXPECT_THAT(text, ContainsRegex("partita: rank 0: followed: lost rank 2; training step [0-9]+"));
    EXPECT_THAT(text,
                ContainsRegex("root cause: rank 2 on host .* was killed by signal 9 \\(Killed\\); training step"));
    EXPECT_EQ(text.find("root cause"), text.rfind("root cause")) << text;
    const Outcome autopsy = run_partita("autopsy " + logs);
    EXPECT_THAT(autopsy.text, ContainsRegex("^root cause: rank 2 on host ")) << layout;
    EXPECT_THAT(autopsy.text, HasSubstr("rank 3: followed: lost rank 2"));
    fs::remove_all(logs);
  }
}

// Samples for ten steps, and more to come: no step can be left half way, and none has begun.
TEST_F(Faults, SignalsWhileDataAreStillToCome_TakeEffectAtOnce) {
  std::string tokens;
  for (int k = 0; k < 324; ++k) tokens += {static_cast<char>(k * 7 % 64), '\0'};
  fs::create_directories(out_ / "data");
  out_.write("data/a.bin", tokens);
  const auto index = [&](const std::string& flags) {
    const Outcome done = run_partita("data index " + (out_ / "data") + " --dtype uint16 " + flags);
    EXPECT_EQ(done.code, 0) << done.text;
  };
  index("--more");
  Outcome made = run_partita(
      "model gpt --layers 1 --hidden 16 --heads 2 --vocab 64 --seq 8 --batch 4 --with-weights "
      "--quiet -o " +
      (out_ / "gpt.onnx"));
  ASSERT_EQ(made.code, 0) << made.text;
  const std::string recipe = out_.write("gpt.yaml", "optimizer: {kind: sgd, lr: 0.01}\n"), ckpt = out_ / "ckpt";
  made = run_partita("compile " + (out_ / "gpt.onnx") + " --train " + recipe + " --ranks 2 --pin data=2 --quiet -o " +
                     (out_ / "bundle"));
  ASSERT_EQ(made.code, 0) << made.text;
  const std::string command = "exec " + partita_program() + " run " + (out_ / "bundle") +
                              " --quiet --threads 1 --data " + (out_ / "data") + " --checkpoint " + ckpt +
                              " --processes --resume --steps ";
  Running running(command + "1000", out_ / "output");
  const std::vector<RankProcess> started = ranks(ckpt + "/flight", 2, running);
  ASSERT_TRUE(wait_until(
      [&] {
        const auto reader = FlightReader::open(runtime::flight_file(ckpt + "/flight", 0));
        return reader.ok() && (*reader)->header().training_step == 10;
      },
      20));
  ::kill(static_cast<pid_t>(started[1].id), SIGUSR1);
  EXPECT_TRUE(wait_until([&] { return runtime::list_checkpoints(ckpt) == std::vector<int64_t>{10}; }, 3));
  EXPECT_EQ(running.poll(), -1) << running.text();
  ::kill(running.id(), SIGTERM);
  EXPECT_EQ(running.end(3), 143) << running.text();
  EXPECT_THAT(running.text(), HasSubstr("told to stop: the checkpoint of step 10 is in"));
  out_.write("data/b.bin", tokens);
  index("");
  Running again(command + "20", out_ / "output");
  EXPECT_EQ(again.end(20), 0) << again.text();
  EXPECT_EQ(runtime::list_checkpoints(ckpt).back(), 20);
}

// Machines that are taken away leave seconds, and an evaluation may take an hour.
TEST_F(Faults, SignalsInAnEvaluation_TakeEffectAtOnce) {
  const std::string bundle = compile(
      "--ranks 2 --like ddp --set evaluate.every=2 --set evaluate.batches=1000000000 --set "
      "evaluate.data.kind=synthetic");
  const std::string ckpt = out_ / "ckpt";
  Running running(run(bundle, "--processes --checkpoint " + ckpt), out_ / "output");
  const auto evaluates = [&](int rank) {
    const auto reader = FlightReader::open(runtime::flight_file(ckpt + "/flight", rank));
    return reader.ok() && (*reader)->header().phase == runtime::Phase::kEvaluation;
  };
  ASSERT_TRUE(wait_until([&] { return evaluates(0) && evaluates(1); }, 60)) << running.text();
  ::kill(running.id(), SIGTERM);
  EXPECT_EQ(running.end(10), 143) << running.text();
  EXPECT_THAT(running.text(), HasSubstr("told to stop: the checkpoint of step 2 is in"));
  EXPECT_EQ(runtime::list_checkpoints(ckpt), std::vector<int64_t>{2});
}

// No folder at all: the ranks' records are in memory, and the supervisor has them.
TEST_F(Faults, CrashedRank_IsToldWithItsSignal) {
  const std::string bundle = compile("--ranks 2 --like ddp");
  const std::string metrics = out_ / "metrics.jsonl";
  Running running(run(bundle, "--processes --metrics " + metrics), out_ / "output");
  std::string children;
  ASSERT_TRUE(wait_until(
      [&] {
        const std::string task = std::to_string(running.id());
        children = TempFolder::read("/proc/" + task + "/task/" + task + "/children");
        return std::count(children.begin(), children.end(), ' ') == 2;
      },
      60));
  ASSERT_TRUE(wait_until([&] { return !TempFolder::read(metrics).empty(); }, 60));
  ::kill(std::stoi(children.substr(children.find(' '))), SIGSEGV);
  EXPECT_EQ(running.end(15), 129);
  EXPECT_THAT(running.text(), ContainsRegex("root cause: rank 1 on host .* crashed with signal 11"));
  EXPECT_THAT(running.text(), HasSubstr("rank 0: followed: lost rank 1"));
}

// Rank 1 gets a signal at its sixth step, each time that it is started.
struct Again {
  int code = -1;
  size_t times = 0;
  std::string text;
};
Again signal_each_attempt(const std::string& command, const std::string& folder, const std::string& output,
                          int signal) {
  Running running(command + " --max-restarts 9 --every 2 --checkpoint " + folder, output);
  std::set<int64_t> told;
  Again again;
  EXPECT_TRUE(wait_until(
      [&] {
        const auto reader = FlightReader::open(runtime::flight_file(folder + "/flight", 1));
        if (reader.ok() && (*reader)->header().training_step >= 5 && told.insert((*reader)->header().process).second)
          ::kill(static_cast<pid_t>((*reader)->header().process), signal);
        return told.size() >= 3 && (again.code = running.poll()) >= 0;
      },
      60));
  again.times = told.size();
  again.text = running.text();
  return again;
}

// As where memory is too little for it: no host was lost.
TEST_F(Faults, OneStepThatEndsEveryAttempt_EndsTheRun) {
  const std::string bundle = compile("--ranks 2 --like ddp", "1024,2048,64");
  const Again again = signal_each_attempt(run(bundle, "--processes"), out_ / "checkpoints", out_ / "output", SIGKILL);
  EXPECT_EQ(again.code, 3) << again.text;
  EXPECT_THAT(again.text, ContainsRegex("training step [0-9]+ has ended the run 3 times in a row: it is that step"));
  EXPECT_LT(again.times, 9U);
}

// No device was lost: the plan for fewer ranks would hang there, too.
TEST_F(Faults, HangThatComesAgain_EndsTheRun_AndNoRankIsLeftOut) {
  const std::string bundle = compile("--ranks 2 --like ddp --also 1", "1024,2048,64");
  const Again again = signal_each_attempt(run(bundle, "--processes --timeout collective=1 --timeout step=1"),
                                          out_ / "checkpoints", out_ / "output", SIGSTOP);
  EXPECT_EQ(again.code, 1) << again.text;
  EXPECT_THAT(again.text,
              ContainsRegex("(training step [0-9]+ has ended the run|the run hung) 3 times in a row.*: it is "
                            "that (step|operation), and no host that was lost; root cause: rank 1 on host "
                            ".* (is stopped or hangs|did not come)"));
  EXPECT_THAT(again.text, Not(HasSubstr("going on without device")));
  EXPECT_LT(again.times, 9U);
}

TEST_F(Faults, StoppedRank_IsWarnedOfAtHalfTime_ThenGivenUp) {
  const std::string bundle = compile("--ranks 2 --pin pipeline=2"), logs = out_ / "logs";
  Running running(run(bundle, "--processes --log-dir " + logs + " --timeout collective=4 --timeout step=8"),
                  out_ / "output");
  const std::vector<RankProcess> started = ranks(logs, 2, running);
  const auto begin = Clock::now();
  ::kill(static_cast<pid_t>(started[0].id), SIGSTOP);
  EXPECT_EQ(running.end(20), 129);
  EXPECT_GT(seconds_since(begin), 3);
  EXPECT_LT(seconds_since(begin), 12);
  EXPECT_TRUE(none_lives(started));
  EXPECT_THAT(running.text(), ContainsRegex("root cause: rank 0 on host .* is stopped or hangs: silent for"));
  const std::string log = TempFolder::read(logs + "/rank-1.log");
  EXPECT_THAT(log,
              ContainsRegex("warning: rank 1: [2-4][.0-9]* s at an operation between ranks: training step [0-9]+, in "
                            "[a-z_]+ .*, waiting for rank 0; given up after 4 s"));
  EXPECT_THAT(run_partita("autopsy " + logs).text, ContainsRegex("^root cause: rank 0 on host .* silent for"));
}

// Training itself may take its default of half a minute and more.
TEST_F(Faults, RankStoppedWhileACheckpointIsWritten_IsMissedWithinItsTimeout) {
  const std::string bundle = compile("--ranks 2 --like ddp", "1024,2048,64"), logs = out_ / "logs";
  Running running(run(bundle, "--processes --every 1 --checkpoint " + (out_ / "checkpoints") + " --log-dir " + logs +
                                  " --timeout checkpoint=3"),
                  out_ / "output");
  const std::vector<RankProcess> started = ranks(logs, 2, running);
  const auto victim = FlightReader::open(runtime::flight_file(logs, 1)),
             other = FlightReader::open(runtime::flight_file(logs, 0));
  ASSERT_TRUE(victim.ok() && other.ok());
  const auto writes = [](const auto& record) { return (*record)->header().phase == runtime::Phase::kCheckpoint; };
  const auto caught = [&] {
    // A checkpoint is short: no sleep while it is waited for.
    for (const auto begin = Clock::now(); !writes(victim);) {
      if (seconds_since(begin) > 2) return false;
    }
    ::kill(static_cast<pid_t>(started[1].id), SIGSTOP);
    if (wait_until([&] { return writes(other); }, 1)) {
      std::this_thread::sleep_for(std::chrono::milliseconds(200));
      if (writes(victim) && writes(other)) return true;
    }
    ::kill(static_cast<pid_t>(started[1].id), SIGCONT);
    return false;
  };
  ASSERT_TRUE(wait_until(caught, 60)) << running.text();
  const auto begin = Clock::now();
  EXPECT_EQ(running.end(20), 129);
  EXPECT_GT(seconds_since(begin), 1);
  EXPECT_LT(seconds_since(begin), 10);
  EXPECT_TRUE(none_lives(started));
  EXPECT_THAT(running.text(), ContainsRegex("root cause: rank 1 on host .* is stopped or hangs: silent for"));
  EXPECT_THAT(TempFolder::read(logs + "/rank-0.log"),
              ContainsRegex("warning: rank 0: [12][.0-9]* s at an operation between ranks: .*; given up after 3 s"));
}

// A terminal's Ctrl-C reaches the supervisor and all ranks.
TEST_F(Faults, SigintSavesAndLeaves_ASecondOneEndsAtOnce) {
  const std::string bundle = compile("--ranks 2 --like ddp"), folder = out_ / "checkpoints";
  for (const char* how : {"", "--processes"}) {
    fs::remove_all(folder);
    Running running(run(bundle, std::string(how) + " --checkpoint " + folder), out_ / "output");
    const std::vector<RankProcess> started = ranks(folder + "/flight", 2, running);
    ::kill(-running.id(), SIGUSR1);
    EXPECT_TRUE(wait_until([&] { return !runtime::list_checkpoints(folder).empty(); }, 10)) << running.text();
    EXPECT_TRUE(started[1].lives());
    ::kill(-running.id(), SIGINT);
    EXPECT_EQ(running.end(10), 143) << running.text();
    EXPECT_GE(runtime::list_checkpoints(folder).size(), 2u);
    EXPECT_TRUE(none_lives(started));
  }
  fs::remove_all(folder);
  Running running(run(bundle, "--processes --checkpoint " + folder), out_ / "output");
  const std::vector<RankProcess> started = ranks(folder + "/flight", 2, running);
  ::kill(static_cast<pid_t>(started[1].id), SIGSTOP);  // so that nothing can be saved
  ::kill(running.id(), SIGINT);
  std::this_thread::sleep_for(std::chrono::milliseconds(400));
  ::kill(running.id(), SIGINT);
  EXPECT_EQ(running.end(2), 130) << running.text();
  EXPECT_TRUE(wait_until([&] { return none_lives(started); }, 2));
}

TEST_F(Faults, Mpirun_ASurvivorTellsTheRootCause) {
  if (run_command("command -v mpirun").code != 0) GTEST_SKIP() << "no mpirun here";
  const std::string bundle = compile("--ranks 2 --like ddp"), logs = out_ / "logs", metrics = out_ / "metrics.jsonl";
  for (const std::string& flags : {std::string(), " --log-dir " + logs}) {
    Running running("exec mpirun --allow-run-as-root --oversubscribe -n 2 sh -c 'echo $$ > " + (out_ / "rank") +
                        "$OMPI_COMM_WORLD_RANK; exec " + bundle + "/rank" + kForever + flags + " --metrics " + metrics +
                        "'",
                    out_ / "output");
    ASSERT_TRUE(wait_until([&] { return !TempFolder::read(metrics).empty(); }, 60));
    ::kill(std::stoi(TempFolder::read(out_ / "rank1")), SIGKILL);
    EXPECT_GT(running.end(15), 128);
    EXPECT_THAT(running.text(), AllOf(ContainsRegex("rank 0: followed: .*rank 1.*training step [0-9]+, in "),
                                      ContainsRegex("root cause: rank 1 on host .* ended without a word")));
    fs::remove(metrics);
  }
}

TEST_F(Faults, MistakesAreToldOnce_AndTorchrunFindsThem) {
  const std::string bundle = compile("--ranks 1"), error = out_ / "error.json";
  const Outcome failed = run_command("TORCHELASTIC_ERROR_FILE=" + error + " " + bundle + "/rank --steps 1 --init " +
                                     (out_ / "nothing.safetensors"));
  EXPECT_EQ(failed.code, 2) << failed.text;
  const nlohmann::json told = nlohmann::json::parse(TempFolder::read(error));
  EXPECT_THAT(told["message"]["message"].get<std::string>(), HasSubstr("nothing.safetensors"));
  EXPECT_GT(std::stoll(told["message"]["extraInfo"]["timestamp"].get<std::string>()), 1'700'000'000);
  const std::string two = compile("--ranks 2 --like ddp");
  const Outcome supervised =
      run_partita("run " + two + " --processes --steps 1 --init " + (out_ / "nothing.safetensors"));
  EXPECT_EQ(supervised.code, 2) << supervised.text;
  EXPECT_THAT(supervised.text, Not(HasSubstr("root cause")));
}

// A sample; in full it is a command of its own.
TEST_F(Faults, CampaignOfRandomFaults_NamesTheRightRank) {
  const Outcome campaign = run_command(std::string(PARTITA_TEST_DATA) +
                                       "/../../tools/fault_campaign --runs 3 --seed 5 --build " PARTITA_BUILD);
  EXPECT_EQ(campaign.code, 0) << campaign.text;
  EXPECT_THAT(campaign.text, HasSubstr("right in 3 of 3"));
}

// Of a pipeline one stage alone reads what is damaged.
TEST_F(Faults, SoakOfDamagedCheckpoints_GoesOnFromTheOneBefore) {
  const Outcome soak = run_command(std::string(PARTITA_TEST_DATA) +
                                   "/../../tools/soak --faults 2 --cases gpt-pipeline --faults-of corrupt --partita " +
                                   partita_program());
  EXPECT_EQ(soak.code, 0) << soak.text;
  EXPECT_THAT(soak.text, HasSubstr("2 faults (2 corrupt)"));
}

TEST_F(Faults, CleanRun_LeavesItsLogsAlone) {
  const std::string bundle = compile("--ranks 2 --like ddp"), logs = out_ / "logs";
  const Outcome done = run_partita("run " + bundle + " --processes --steps 5 --log-every 1 --log-dir " + logs);
  EXPECT_EQ(done.code, 0) << done.text;
  EXPECT_THAT(done.text, HasSubstr("step 5/5"));
  EXPECT_THAT(TempFolder::read(logs + "/rank-0.log"), HasSubstr("step 5/5"));
  EXPECT_TRUE(fs::exists(logs + "/rank-1.log"));
  EXPECT_FALSE(fs::exists(logs + "/rank-0.flight"));
  EXPECT_EQ(run_partita("autopsy " + logs).code, 2);
}

}  // namespace
}  // namespace partita
