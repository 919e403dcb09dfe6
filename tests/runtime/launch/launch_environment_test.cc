#include "runtime/launch/launch_environment.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>

namespace partita::runtime {
namespace {

using ::testing::HasSubstr;

LaunchEnvironment parse(const EnvironmentMap& environment) {
  const absl::StatusOr<LaunchEnvironment> launch = parse_launch_environment(environment);
  EXPECT_TRUE(launch.ok()) << launch.status();
  return launch.ok() ? *launch : LaunchEnvironment{};
}

std::string error(const EnvironmentMap& environment) {
  const absl::StatusOr<LaunchEnvironment> launch = parse_launch_environment(environment);
  EXPECT_EQ(launch.status().code(), absl::StatusCode::kInvalidArgument) << launch.status();
  return std::string(launch.status().message());
}

void expect_ranks(const LaunchEnvironment& launch, LaunchKind kind, int rank, int size, int local_rank,
                  int local_size) {
  EXPECT_EQ(launch_kind_name(launch.kind), launch_kind_name(kind));
  EXPECT_EQ(launch.rank, rank);
  EXPECT_EQ(launch.world_size, size);
  EXPECT_EQ(launch.local_rank, local_rank);
  EXPECT_EQ(launch.local_size, local_size);
}

const EnvironmentMap kTorchrun = {{"RANK", "5"},
                                  {"WORLD_SIZE", "8"},
                                  {"LOCAL_RANK", "1"},
                                  {"LOCAL_WORLD_SIZE", "4"},
                                  {"MASTER_ADDR", "node7"},
                                  {"MASTER_PORT", "1234"}};
const EnvironmentMap kSlurm = {{"SLURM_PROCID", "3"},
                               {"SLURM_NTASKS", "6"},
                               {"SLURM_LOCALID", "1"},
                               {"SLURM_NODEID", "1"},
                               {"SLURM_TASKS_PER_NODE", "2(x3)"},
                               {"SLURM_JOB_NODELIST", "gpu[03-05]"},
                               {"SLURM_JOB_ID", "712345"},
                               {"SLURM_LAUNCH_NODE_IPADDR", "10.0.0.9"}};

EnvironmentMap with(EnvironmentMap environment, const EnvironmentMap& changes) {
  for (const auto& [name, value] : changes) environment[name] = value;
  return environment;
}

TEST(LaunchEnvironment, Empty_IsOneRank) {
  const LaunchEnvironment launch = parse({});
  expect_ranks(launch, LaunchKind::kSingle, 0, 1, 0, 1);
  EXPECT_EQ(launch.master_address, "127.0.0.1");
}

TEST(LaunchEnvironment, Torchrun) {
  const LaunchEnvironment launch = parse(kTorchrun);
  expect_ranks(launch, LaunchKind::kTorchrun, 5, 8, 1, 4);
  EXPECT_EQ(launch.master_address, "node7");
  EXPECT_EQ(launch.master_port, 1234);
}

TEST(LaunchEnvironment, Torchrun_AgentHoldsThePort) {
  EXPECT_EQ(parse(with(kTorchrun, {{"TORCHELASTIC_USE_AGENT_STORE", "True"}})).master_port, 1235);
  EXPECT_EQ(parse(with(kTorchrun, {{"TORCHELASTIC_USE_AGENT_STORE", "True"}, {"MASTER_PORT", "65535"}})).master_port,
            65534);
  EXPECT_EQ(parse(with(kTorchrun, {{"TORCHELASTIC_USE_AGENT_STORE", "False"}})).master_port, 1234);
  // Agents of one run that have counted other numbers of failures.
  const std::string job =
      parse(with(kTorchrun, {{"TORCHELASTIC_RUN_ID", "7"}, {"TORCHELASTIC_RESTART_COUNT", "0"}})).job_id;
  EXPECT_EQ(parse(with(kTorchrun, {{"TORCHELASTIC_RUN_ID", "7"}, {"TORCHELASTIC_RESTART_COUNT", "3"}})).job_id, job);
  EXPECT_NE(parse(with(kTorchrun, {{"TORCHELASTIC_RUN_ID", "8"}})).job_id, job);
}

TEST(LaunchEnvironment, Torchrun_ByHandOnOneHost) {
  expect_ranks(parse({{"RANK", "2"}, {"WORLD_SIZE", "3"}, {"MASTER_ADDR", "localhost"}}), LaunchKind::kTorchrun, 2, 3,
               2, 3);
  expect_ranks(parse({{"RANK", "2"}, {"WORLD_SIZE", "3"}, {"MASTER_ADDR", "far"}}), LaunchKind::kTorchrun, 2, 3, 0, 1);
}

TEST(LaunchEnvironment, OpenMpi) {
  const LaunchEnvironment launch = parse({{"OMPI_COMM_WORLD_RANK", "2"},
                                          {"OMPI_COMM_WORLD_SIZE", "4"},
                                          {"OMPI_COMM_WORLD_LOCAL_RANK", "0"},
                                          {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
                                          {"PMIX_NAMESPACE", "77"}});
  expect_ranks(launch, LaunchKind::kOpenMpi, 2, 4, 0, 2);
  EXPECT_EQ(launch.master_address, "");
  EXPECT_EQ(launch.master_port, 0);
  EXPECT_EQ(launch.job_id, "77");
}

TEST(LaunchEnvironment, OpenMpi_OnOneHostKnowsTheMaster) {
  const LaunchEnvironment launch = parse({{"OMPI_COMM_WORLD_RANK", "1"},
                                          {"OMPI_COMM_WORLD_SIZE", "2"},
                                          {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                                          {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}});
  EXPECT_EQ(launch.master_address, "127.0.0.1");
  EXPECT_EQ(launch.master_port, 29500);
}

TEST(LaunchEnvironment, Pmi) {
  expect_ranks(parse({{"PMI_RANK", "3"}, {"PMI_SIZE", "4"}, {"MPI_LOCALRANKID", "1"}, {"MPI_LOCALNRANKS", "2"}}),
               LaunchKind::kPmi, 3, 4, 1, 2);
  EnvironmentMap pmix = kSlurm;
  pmix["PMIX_RANK"] = "3";
  const LaunchEnvironment launch = parse(pmix);
  expect_ranks(launch, LaunchKind::kPmi, 3, 6, 1, 2);
  EXPECT_EQ(launch.master_address, "gpu03");
}

TEST(LaunchEnvironment, Slurm) {
  const LaunchEnvironment launch = parse(kSlurm);
  expect_ranks(launch, LaunchKind::kSlurm, 3, 6, 1, 2);
  EXPECT_EQ(launch.master_address, "gpu03");
  EXPECT_EQ(launch.master_port, 20000 + 712345 % 20000);
  EXPECT_THAT(launch.job_id, HasSubstr("712345"));
}

TEST(LaunchEnvironment, Slurm_StepWinsOverJob) {
  const LaunchEnvironment launch = parse(with(
      kSlurm,
      {{"SLURM_STEP_NUM_TASKS", "4"}, {"SLURM_STEP_NODELIST", "gpu05,gpu04"}, {"SLURM_STEP_TASKS_PER_NODE", "2(x2)"}}));
  expect_ranks(launch, LaunchKind::kSlurm, 3, 4, 1, 2);
  EXPECT_EQ(launch.master_address, "gpu05");
}

TEST(LaunchEnvironment, Slurm_WithoutNodeListUsesLaunchNode) {
  EXPECT_EQ(parse(with(kSlurm, {{"SLURM_JOB_NODELIST", ""}})).master_address, "10.0.0.9");
}

TEST(LaunchEnvironment, TfConfig) {
  const std::string cluster =
      R"("cluster": {"chief": ["a:2222"], "worker": ["b:2223", "b:2224", "c:1"], "ps": ["p:1"]})";
  const LaunchEnvironment launch =
      parse({{"TF_CONFIG", "{" + cluster + R"(, "task": {"type": "worker", "index": 1}})"}});
  expect_ranks(launch, LaunchKind::kTfConfig, 2, 4, 1, 2);
  EXPECT_EQ(launch.master_address, "a");
  EXPECT_EQ(launch.master_port, 2222);
  expect_ranks(parse({{"TF_CONFIG", "{" + cluster + R"(, "task": {"type": "chief", "index": "0"}})"}}),
               LaunchKind::kTfConfig, 0, 4, 0, 1);
}

TEST(LaunchEnvironment, Precedence_TorchrunOpenMpiPmiSlurmTfConfig) {
  EnvironmentMap all = with(kTorchrun, kSlurm);
  all = with(all, {{"OMPI_COMM_WORLD_RANK", "1"},
                   {"OMPI_COMM_WORLD_SIZE", "2"},
                   {"PMI_RANK", "0"},
                   {"PMI_SIZE", "3"},
                   {"TF_CONFIG", R"({"cluster": {"worker": ["a:1"]}, "task": {"type": "worker", "index": 0}})"}});
  for (const auto& [kind, variable] :
       std::vector<std::pair<LaunchKind, std::string>>{{LaunchKind::kTorchrun, "RANK"},
                                                       {LaunchKind::kOpenMpi, "OMPI_COMM_WORLD_RANK"},
                                                       {LaunchKind::kPmi, "PMI_RANK"},
                                                       {LaunchKind::kSlurm, "SLURM_PROCID"},
                                                       {LaunchKind::kTfConfig, "TF_CONFIG"}}) {
    const LaunchEnvironment launch = parse(all);
    EXPECT_EQ(launch_kind_name(launch.kind), launch_kind_name(kind));
    EXPECT_EQ(launch.master_address, "node7");  // MASTER_ADDR always wins
    EXPECT_EQ(launch.master_port, 1234);
    all.erase(variable);
    if (variable == "RANK") all.erase("WORLD_SIZE");
  }
  EXPECT_EQ(parse(all).kind, LaunchKind::kSingle);
}

TEST(LaunchEnvironment, BadValues_NameTheVariable) {
  EXPECT_EQ(error(with(kTorchrun, {{"RANK", "8"}})), "RANK=8 is not below WORLD_SIZE=8");
  EXPECT_EQ(error(with(kTorchrun, {{"RANK", "x\n"}})), "RANK='x\\n' is not a number");
  EXPECT_THAT(error(with(kTorchrun, {{"RANK", "-1"}})), HasSubstr("RANK=-1 is outside"));
  EXPECT_THAT(error(with(kTorchrun, {{"WORLD_SIZE", "99999999999999999999"}})), HasSubstr("WORLD_SIZE="));
  EXPECT_EQ(error(with(kTorchrun, {{"WORLD_SIZE", ""}})), "RANK is set but WORLD_SIZE is not");
  EXPECT_EQ(error({{"WORLD_SIZE", "4"}}), "WORLD_SIZE is set but RANK is not");
  EXPECT_THAT(error(with(kTorchrun, {{"LOCAL_RANK", "4"}})), HasSubstr("LOCAL_RANK=4 is not below LOCAL_WORLD_SIZE=4"));
  EXPECT_THAT(error(with(kTorchrun, {{"LOCAL_WORLD_SIZE", "9"}})),
              HasSubstr("LOCAL_WORLD_SIZE=9 is above WORLD_SIZE=8"));
  EXPECT_THAT(error(with(kTorchrun, {{"MASTER_PORT", "70000"}})), HasSubstr("MASTER_PORT=70000"));
  EXPECT_THAT(error({{"OMPI_COMM_WORLD_RANK", "2"}, {"OMPI_COMM_WORLD_SIZE", "2"}}),
              HasSubstr("OMPI_COMM_WORLD_RANK=2"));
  EXPECT_THAT(error({{"PMI_RANK", "0"}, {"PMI_SIZE", "zero"}}), HasSubstr("PMI_SIZE='zero'"));
  EXPECT_THAT(error(with(kSlurm, {{"SLURM_PROCID", "6"}})), HasSubstr("SLURM_PROCID=6"));
  EXPECT_THAT(error(with(kSlurm, {{"SLURM_TASKS_PER_NODE", "2(x"}})), HasSubstr("SLURM_TASKS_PER_NODE"));
  EXPECT_THAT(error(with(kSlurm, {{"SLURM_JOB_NODELIST", "gpu[3"}})), HasSubstr("SLURM_JOB_NODELIST"));
  EXPECT_THAT(error(with(kSlurm, {{"SLURM_LOCALID", "2"}})), HasSubstr("SLURM_LOCALID=2"));
}

TEST(LaunchEnvironment, BadTfConfig_IsRefused) {
  const std::string deep(200000, '[');
  for (const std::string& text : std::vector<std::string>{
           "{", "[]", "7", "{}", deep, R"({"cluster": [], "task": {}})",
           R"({"cluster": {}, "task": {"type": 1, "index": 0}})",
           R"({"cluster": {"worker": ["a:1"]}, "task": {"type": "worker", "index": 1}})",
           R"({"cluster": {"worker": ["a:1"]}, "task": {"type": "worker"}})",
           R"({"cluster": {"worker": ["a:1"]}, "task": {"type": "worker", "index": -1}})",
           R"({"cluster": {"worker": ["a"]}, "task": {"type": "worker", "index": 0}})",
           R"({"cluster": {"worker": [1]}, "task": {"type": "worker", "index": 0}})",
           R"({"cluster": {"worker": {}}, "task": {"type": "worker", "index": 0}})",
           R"({"cluster": {"worker": ["a:1"], "ps": ["b:1"]}, "task": {"type": "ps", "index": 0}})"}) {
    EXPECT_THAT(error({{"TF_CONFIG", text}}), HasSubstr("TF_CONFIG")) << text.substr(0, 100);
  }
}

TEST(LaunchEnvironment, SlurmHosts) {
  const std::vector<std::pair<std::string, std::string>> good = {
      {"n1", "n1"},      {"n1,n2", "n1"}, {"n[1-4]", "n1"}, {"n[007-9,12]-ib,m", "n007-ib"}, {"r[1-2]n[3,5]", "r1n3"},
      {"a.b-c", "a.b-c"}};
  for (const auto& [list, host] : good) EXPECT_EQ(first_slurm_host(list).value_or("?"), host) << list;
  for (const char* list : {"", ",a", "n[", "n[]", "n[a-b]", "n]", "n m", "n;rm"})
    EXPECT_FALSE(first_slurm_host(list).ok()) << list;
}

TEST(LaunchEnvironment, SlurmTasksPerNode) {
  EXPECT_EQ(slurm_tasks_on_node("4", 0).value_or(-1), 4);
  EXPECT_EQ(slurm_tasks_on_node("4(x2),3", 1).value_or(-1), 4);
  EXPECT_EQ(slurm_tasks_on_node("4(x2),3", 2).value_or(-1), 3);
  for (const char* text : {"", "x", "4(x2", "4(x0)", "0", "4(x2)", "-1"})
    EXPECT_FALSE(slurm_tasks_on_node(text, 2).ok()) << text;
}

TEST(LaunchEnvironment, ReadEnvironment_SeesThisProcess) {
  ::setenv("PARTITA_LAUNCH_TEST", "a=b", 1);
  EXPECT_EQ(read_environment()["PARTITA_LAUNCH_TEST"], "a=b");
  ::unsetenv("PARTITA_LAUNCH_TEST");
}

TEST(LaunchEnvironment, OneDnnInstructions_AreTheUsers) {
  EXPECT_TRUE(chooses_onednn_instructions({{"ONEDNN_MAX_CPU_ISA", "AVX2"}}));
  EXPECT_TRUE(chooses_onednn_instructions({{"DNNL_MAX_CPU_ISA", "AVX2"}}));
  EXPECT_FALSE(chooses_onednn_instructions({{"ONEDNN_VERBOSE", "1"}}));
}

}  // namespace
}  // namespace partita::runtime
