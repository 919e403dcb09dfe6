// What is handed to ssh, Slurm, torchrun and mpirun.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <sstream>
#include <thread>

#include "nlohmann/json.hpp"
#include "runtime/launch/shell_words.h"
#include "tests/support/carried_model.h"
#include "tests/support/command.h"
#include "tests/support/temp_folder.h"
#include "tools/launch/hosts_file.h"
#include "tools/launch/kubernetes_manifest.h"
#include "tools/launch/remote_ranks.h"
#include "tools/launch/scheduler_commands.h"

namespace partita {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

TEST(HostsFile, LinesOfBothForms_AreRead) {
  const auto hosts = parse_hosts("# two\ngpu01 slots=4 address=10.0.0.1\n\nme@gpu02:2  # more\n", "f");
  ASSERT_TRUE(hosts.ok()) << hosts.status();
  EXPECT_THAT(*hosts, ElementsAre(Host{"gpu01", 4, "10.0.0.1"}, Host{"me@gpu02", 2, "gpu02"}));
  EXPECT_THAT(hosts_for(*hosts, 5).value(), ElementsAre(Host{"gpu01", 4, "10.0.0.1"}, Host{"me@gpu02", 1, "gpu02"}));
  EXPECT_THAT(hosts_for(*hosts, 7).status().message(), HasSubstr("7 ranks, and the hosts have slots for 6"));
}

TEST(HostsFile, WordsThatAreNone_AreTold) {
  for (const char* line :
       {"gpu01 slots=0", "gpu01 cores=4", "-oProxyCommand=x", "a;b", "gpu01:x", "gpu01 address=$(x)"})
    EXPECT_THAT(parse_hosts(std::string("ok\n") + line, "f").status().message(), HasSubstr("'f' line 2: expected"))
        << line;
  EXPECT_THAT(parse_hosts("\n# none\n", "f").status().message(), HasSubstr("names no host"));
}

TEST(ShellWords, AreReadAsTheyWere) {
  const std::vector<std::string> words = {"a b", "", "it's", "$HOME", "x;y", "plain/word.1", "two\nlines"};
  std::string told;
  for (const std::string& word : words) told += "<" + word + ">";
  EXPECT_EQ(run_command("printf '<%s>' " + shell_line(words)).text, told);
}

const LaunchJob kJob{.command = {"/job/bundle/rank", "--data", "my text"},
                     .resume = {"--resume"},
                     .ranks = 4,
                     .nodes = 2,
                     .folder = "/job",
                     .secret_file = "/job/secret",
                     .restarts = {.most = 3}};

TEST(SchedulerCommands, Torchrun_GetsNodesAndRestarts) {
  EXPECT_EQ(shell_line(torchrun_command(kJob, "gpu01", 1, "10.0.0.2")),
            "torchrun --no-python --nproc-per-node=2 --nnodes=2 --node-rank=1 --master-addr=gpu01 --master-port=29500 "
            "--max-restarts=3 /job/bundle/rank --data 'my text' --resume");
}

// Two ranks a node: three ranks fill no nodes.
TEST(SchedulerCommands, Torchrun_OfSeveralPlansLetsHostsComeAndGo) {
  LaunchJob job = kJob;
  job.ranks = 8;
  job.nodes = 4;
  job.plans = {8, 4, 3};
  EXPECT_THAT(shell_line(torchrun_command(job, "gpu01", 1, "10.0.0.2")),
              HasSubstr(" --nproc-per-node=2 --nnodes=2:4 --rdzv-backend=c10d --rdzv-endpoint=gpu01:29500 "
                        "--rdzv-id=bundle --local-addr=10.0.0.2 --max-restarts=3 /job/bundle/rank "));
  job.plans = {8, 3};
  EXPECT_THAT(shell_line(torchrun_command(job, "gpu01", 1, "10.0.0.2")), HasSubstr(" --nnodes=4 --node-rank=1 "));
}

TEST(SchedulerCommands, Mpirun_GetsHostsAndForTcpTheSecretsFile) {
  const std::vector<Host> hosts = {{"gpu01", 2, "10.0.0.1"}, {"gpu02", 2, "gpu02"}};
  EXPECT_EQ(shell_line(mpirun_command(kJob, hosts, false)),
            "mpirun -n 4 --wdir /job --host gpu01:2,gpu02:2 /job/bundle/rank --data 'my text' --resume");
  EXPECT_THAT(shell_line(mpirun_command(kJob, hosts, true)),
              HasSubstr("-x MASTER_ADDR=10.0.0.1 -x MASTER_PORT=29500 -x PARTITA_JOB_SECRET_FILE=/job/secret"));
}

// The script with srun, scancel, scontrol and squeue that do as they are told here.
Outcome run_script(const std::string& step, const std::string& before = "", const LaunchJob& job = kJob,
                   const std::string& state = "RUNNING") {
  const TempFolder folder;
  folder.write("srun", "#!/bin/sh\necho \"srun $*\"\n" + step);
  folder.write("scancel", "#!/bin/sh\necho \"scancel $*\"\nkill -TERM $(cat " + folder / "step" + ")\n");
  folder.write("squeue", "#!/bin/sh\necho " + state + "\n");
  folder.write("scontrol", "#!/bin/sh\necho \"scontrol $*\"\n");
  folder.write("script", slurm_script(job, "bundle", {"--partition=gpu"}));
  return run_command("cd " + folder.path() +
                     " && chmod +x srun scancel scontrol squeue && export SLURM_JOB_ID=7 STEP=" + folder / "step" +
                     " PATH=" + folder.path() + ":$PATH && " + before + " bash script");
}

TEST(SlurmScript, SaysWhatSbatchAndSrunNeed) {
  const std::string script = slurm_script(kJob, "bundle", {"--partition=gpu"});
  for (const char* line : {"#!/bin/bash\n#SBATCH --job-name=bundle\n", "#SBATCH --nodes=2\n", "#SBATCH --ntasks=4\n",
                           "#SBATCH --ntasks-per-node=2\n", "#SBATCH --signal=B:USR1@120\n",
                           "#SBATCH --partition=gpu\n", "export PARTITA_JOB_SECRET_FILE=/job/secret\n"})
    EXPECT_THAT(script, HasSubstr(line));
  const Outcome fine = run_script("exit 0");
  EXPECT_EQ(fine.code, 0);
  EXPECT_THAT(fine.text, AllOf(HasSubstr("/job/bundle/rank --data my text --resume"), Not(HasSubstr("scontrol"))));
}

// As sbatch 22.05 reads them.
TEST(SlurmScript, NamesWithSpacesAndQuotes_AreQuoted) {
  LaunchJob job = kJob;
  job.folder = "/my job/#1\\\"";
  EXPECT_THAT(slurm_script(job, "a b", {}),
              AllOf(HasSubstr("#SBATCH --job-name=\"a b\"\n"), HasSubstr("#SBATCH --chdir=\"/my job/#1\\\\\\\"\"\n")));
}

TEST(SlurmScript, OfSeveralPlansTakesTheLargestThatTheNodesHaveRoomFor) {
  LaunchJob job = kJob;
  job.plans = {4, 2, 1};
  EXPECT_THAT(slurm_script(job, "bundle", {}), AllOf(HasSubstr("#SBATCH --nodes=1-2\n"), Not(HasSubstr("--ntasks="
                                                                                                       "4"))));
  for (const auto& [nodes, ranks] : {std::pair{"2", "4"}, {"1", "2"}}) {
    const Outcome out = run_script("exit 0", std::string("SLURM_JOB_NUM_NODES=") + nodes, job);
    EXPECT_THAT(out.text, HasSubstr(std::string("srun --ntasks=") + ranks + " --kill-on-bad-exit=1"));
  }
}

TEST(SlurmScript, CodesWorthAnotherStart_AreQueuedAgainAsOftenAsSaid) {
  const Outcome lost = run_script("exit 129");
  EXPECT_EQ(lost.code, 129);
  EXPECT_THAT(lost.text, HasSubstr("scontrol requeue 7"));
  EXPECT_THAT(run_script("exit 2").text, Not(HasSubstr("scontrol")));
  EXPECT_THAT(run_script("exit 129", "SLURM_RESTART_COUNT=3").text, Not(HasSubstr("scontrol")));
  EXPECT_THAT(run_script("exit 143", "", kJob, "COMPLETING").text,
              AllOf(HasSubstr("the job is COMPLETING and not queued again"), Not(HasSubstr("scontrol"))));
}

TEST(SlurmScript, BeforeItsTimeIsOver_RanksSaveAndItIsQueuedAgain) {
  const Outcome out = run_script(
      "echo $$ > $STEP\ntrap 'echo saved; exit 143' TERM\nkill -USR1 $PPID\nwhile true; do sleep 0.05; done");
  EXPECT_EQ(out.code, 143);
  EXPECT_THAT(out.text, AllOf(HasSubstr("scancel --signal=TERM 7.0"), HasSubstr("saved"),
                              HasSubstr("as they were told"), HasSubstr("scontrol requeue 7")));
}

TEST(KubernetesManifest, HasAPodForEachNodeAndTheSecretOutsideOfIt) {
  const std::string text =
      kubernetes_manifest(kJob, {"my-bundle", "registry/job:1", "hidden", true, {"data:/job/data"}});
  const size_t cut = text.find("\n---\n");
  const auto secret = nlohmann::json::parse(text.substr(0, cut)), set = nlohmann::json::parse(text.substr(cut + 5));
  EXPECT_EQ(secret["stringData"]["secret"], "hidden");
  EXPECT_THAT(text.substr(cut), Not(HasSubstr("hidden")));
  EXPECT_EQ(set["spec"]["failurePolicy"]["maxRestarts"], 3);
  const auto& job = set["spec"]["replicatedJobs"][0]["template"]["spec"];
  EXPECT_EQ(job["completions"], 2);
  const auto& container = job["template"]["spec"]["containers"][0];
  EXPECT_EQ(container["resources"]["limits"]["nvidia.com/gpu"], 2);
  EXPECT_EQ(container["env"][0]["value"], "my-bundle-ranks-0-0.my-bundle");
  EXPECT_EQ(container["volumeMounts"][1]["mountPath"], "/job/data");
  EXPECT_EQ(dns_label("2_My Bundle."), "my-bundle");
}

TEST(KubernetesManifest, APodsRanksKnowTheirNumbersAndItsCodeIsTheirs) {
  LaunchJob job = kJob;
  const TempFolder folder;
  job.resume.clear();
  const auto run = [&](const std::string& rank) {
    job.command = {"sh", folder.write("rank", rank)};
    return run_command("JOB_COMPLETION_INDEX=1 sh " + folder.write("pod", pod_script(job)) + " & pod=$!; " +
                       "sleep 0.3; kill -TERM $pod 2>/dev/null; wait $pod");
  };
  EXPECT_THAT(run("echo $RANK of $WORLD_SIZE, $LOCAL_RANK of $LOCAL_WORLD_SIZE").text,
              AllOf(HasSubstr("2 of 4, 0 of 2"), HasSubstr("3 of 4, 1 of 2")));
  EXPECT_EQ(run("[ $RANK = 2 ] && exit 129; exit 2").code, 2);
  EXPECT_EQ(run("trap 'exit 143' TERM; while true; do sleep 0.05; done").code, 143);
}

// An "ssh" that runs what it is asked to on this host.
class OverSsh : public testing::Test {
 protected:
  OverSsh() {
    ssh_ = folder_.write("ssh", "#!/bin/sh\necho \"to $1\"\nexec sh -c \"$2\"\n");
    run_command("chmod +x " + ssh_);
    job_.folder = folder_.path();
    job_.ranks = 2;
  }
  absl::Status run(const std::string& script, const std::atomic<bool>* stop = nullptr) {
    job_.command = {"sh", folder_.write("rank", script)};
    const std::vector<Host> hosts = {{"one", 1, "10.0.0.1"}, {"two", 1, "two"}};
    return run_on_hosts(job_, hosts, {ssh_}, std::string(64, 's'), stop);
  }
  std::string read(const std::string& name) { return TempFolder::read(folder_ / name); }

  TempFolder folder_;
  std::string ssh_;
  LaunchJob job_;
};

TEST_F(OverSsh, RanksLearnWhoTheyAreAndTheSecret) {
  const absl::Status status = run(
      "echo $RANK $WORLD_SIZE $LOCAL_RANK $LOCAL_WORLD_SIZE $MASTER_ADDR $MASTER_PORT $PARTITA_JOB_SECRET > out.$RANK\n"
      "tr '\\0' ' ' < /proc/$PPID/cmdline > shown.$RANK");
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_EQ(read("out.0"), "0 2 0 1 10.0.0.1 29500 " + std::string(64, 's') + "\n");
  EXPECT_EQ(read("out.1"), "1 2 0 1 10.0.0.1 29500 " + std::string(64, 's') + "\n");
  EXPECT_THAT(read("shown.1"), AllOf(HasSubstr("RANK=1"), Not(HasSubstr("sss"))));
}

TEST_F(OverSsh, MistakesEndTheRunAndLostRanksStartAgainWithResume) {
  job_.restarts.most = 2;
  EXPECT_EQ(run("exit 2").code(), absl::StatusCode::kInvalidArgument);
  job_.resume = {"--resume"};
  const absl::Status status = run("[ \"$1\" = --resume ] && exit 0; exit 129");
  EXPECT_TRUE(status.ok()) << status;
  job_.restarts.most = 0;
  EXPECT_THAT(run("exit 129").message(), HasSubstr("' ended with code 129"));
}

// "two" is lost and comes back: what is there goes on, with the plan for it.
TEST_F(OverSsh, LostHost_IsDoneWithoutUntilItIsBack) {
  folder_.write("ssh",
                "#!/bin/sh\n[ \"$1\" = two ] && [ -e " + folder_ / "lost" + " ] && exit 255\nexec sh -c \"$2\"\n");
  job_.restarts.most = 3;
  job_.plans = {2, 1};
  // The first start loses the host, the second one has it back before it ends.
  const absl::Status status =
      run("echo $RANK of $WORLD_SIZE >> out\n"
          "case $WORLD_SIZE.$(ls | grep -c again) in\n"
          "2.0) touch lost again; exit 129;; 1.1) rm lost; exit 129;; *) exit 0;; esac");
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_THAT(read("out"), HasSubstr("0 of 1\n"));
  EXPECT_THAT(read("out").substr(read("out").find("0 of 1")), AllOf(HasSubstr("0 of 2\n"), HasSubstr("1 of 2\n")));
  // The host comes back while the ranks run: they are told to save, and go on with more.
  job_.checkpoints = "ckpt";
  job_.ask_seconds = 0.1;
  const absl::Status grown =
      run("echo $RANK of $WORLD_SIZE >> grown\n"
          "[ $WORLD_SIZE = 2 ] && { [ -e saved ] && exit 0; touch lost; exit 129; }\n"
          "trap 'touch saved; exit 143' TERM\nrm lost\nwhile true; do sleep 0.05; done");
  EXPECT_TRUE(grown.ok()) << grown;
  EXPECT_THAT(read("grown").substr(read("grown").find("0 of 1")), HasSubstr("1 of 2\n"));
  folder_.write("lost", "");
  job_.plans = {2};
  job_.restarts.most = 1;
  EXPECT_EQ(run("exit 0").code(), absl::StatusCode::kUnavailable);
}

// A second line of standard input says how long it may take to leave.
TEST_F(OverSsh, RankThatDoesNotLeave_IsKilled) {
  job_.command = {"sh", folder_.write("rank", "trap '' TERM; while true; do sleep 0.05; done")};
  const std::string line = remote_rank_line(job_, {{"one", 2, "10.0.0.1"}}, 0, false);
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_EQ(run_command("{ echo secret; sleep 0.5; echo 1; } | sh -c " + shell_word(line)).code, 137);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(20));
}

TEST_F(OverSsh, Stop_LetsRanksSaveAndLeave) {
  std::atomic<bool> stop = false;
  std::thread stopper([&] {  // once both can hear it
    while (read("ready.0") + read("ready.1") != "yes\nyes\n") std::this_thread::sleep_for(std::chrono::milliseconds(5));
    stop = true;
  });
  const absl::Status status = run(
      "trap 'echo saved > out.$RANK; exit 143' TERM\necho yes > ready.$RANK\nwhile true; do sleep 0.05; done", &stop);
  stopper.join();
  EXPECT_EQ(status.code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(read("out.0") + read("out.1"), "saved\nsaved\n");
}

TEST(Launch, DryRunOfThisHost_PrintsEachRankAndStartsNone) {
  const TempFolder folder;
  const std::string bundle = folder / "bundle", checkpoints = folder / "ckpt";
  ASSERT_EQ(run_partita("compile " + kCarriedModel + "--ranks 2 --quiet -o " + bundle).code, 0);
  const Outcome o = run_partita("launch " + bundle + " --dry-run --data " + write_text(folder) +
                                " --steps 2 --checkpoint " + checkpoints);
  EXPECT_EQ(o.code, 0) << o.text;
  for (const char* rank : {"RANK=0 LOCAL_RANK=0 WORLD_SIZE=2", "RANK=1 LOCAL_RANK=1 WORLD_SIZE=2"})
    EXPECT_THAT(o.text, HasSubstr(rank));
  EXPECT_THAT(o.text, HasSubstr("bundle/rank --data"));
  EXPECT_FALSE(std::filesystem::exists(checkpoints));
}

}  // namespace
}  // namespace partita
