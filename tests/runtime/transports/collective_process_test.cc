// The TCP, MPI and NCCL back ends across processes: starts partita_collective_check as several ranks.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>

#include "tests/runtime/transports/rank_process.h"

namespace partita::runtime {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::HasSubstr;

// `ranks` of a run of `size` over TCP, with the whole run's results.
std::vector<Ended> run_tcp(const std::vector<int>& ranks, int size, const std::string& mode, const std::string& timeout,
                           double limit, const std::string& program = kProgram, const std::string& backend = "tcp") {
  const int port = free_port();
  std::vector<std::unique_ptr<Process>> processes;
  for (int rank : ranks)
    processes.push_back(std::make_unique<Process>(std::vector<std::string>{program, mode, backend, timeout},
                                                  rank_environment(rank, size, port)));
  std::vector<Ended> results;
  for (auto& process : processes) results.push_back(process->wait(limit));
  return results;
}

TEST(TcpCollective, AllOperations_MatchADirectComputation) {
  for (int size : {1, 2, 3, 4}) {
    std::vector<int> ranks;
    for (int rank = 0; rank < size; ++rank) ranks.push_back(rank);
    for (const Ended& ended : run_tcp(ranks, size, "check", "60", 120)) {
      EXPECT_EQ(ended.code, 0) << ended.output;
      EXPECT_THAT(ended.output, HasSubstr("of " + std::to_string(size) + " over tcp"));
    }
  }
}

TEST(TcpCollective, Disagreement_IsSeenByAll) {
  for (const Ended& ended : run_tcp({0, 1, 2}, 3, "disagree", "30", 60)) {
    EXPECT_EQ(ended.code, 0) << ended.output;
    EXPECT_THAT(ended.output, HasSubstr("rank 2 differs from ranks 0, 1"));
  }
}

TEST(TcpCollective, AbsentRank_TimesOutAndIsNamed) {
  for (const Ended& ended : run_tcp({0, 1, 2}, 3, "absent", "2", 20)) {
    EXPECT_EQ(ended.code, 0) << ended.output;
    EXPECT_LT(ended.seconds, 12) << ended.output;
    EXPECT_THAT(ended.output,
                AllOf(HasSubstr("all_reduce 'grad bucket 3' (step 7)"), HasSubstr("nothing from rank 2 for 2 s")));
  }
}

TEST(TcpCollective, DeadRank_EndsTheOthersWithinSeconds) {
  const std::vector<Ended> results = run_tcp({0, 1, 2, 3}, 4, "die", "60", 30);
  EXPECT_EQ(results[3].code, 9);
  for (size_t rank : {0, 1, 2}) {
    EXPECT_EQ(results[rank].code, 0) << results[rank].output;
    EXPECT_LT(results[rank].seconds, 10);
    EXPECT_THAT(results[rank].output, HasSubstr("rank 3 died"));
  }
  EXPECT_THAT(results[0].output, HasSubstr("recv 'activation of block 2' (step 8): "));
}

// Rank 0 of three is killed while rank 1 waits for it in an operation.
void expect_end_with_the_first(const std::string& program, const std::string& backend) {
  const int port = free_port();
  std::vector<std::unique_ptr<Process>> processes;
  for (int rank = 0; rank < 3; ++rank)
    processes.push_back(std::make_unique<Process>(std::vector<std::string>{program, "absent", backend, "60"},
                                                  rank_environment(rank, 3, port)));
  std::this_thread::sleep_for(std::chrono::milliseconds(2000));
  ::kill(processes[0]->pid(), SIGKILL);
  const auto killed = Clock::now();
  for (size_t rank : {1, 2}) {
    const Ended ended = processes[rank]->wait(30);
    EXPECT_EQ(ended.code, 0) << ended.output;
    EXPECT_THAT(ended.output, AnyOf(HasSubstr("rank 0 died"), HasSubstr("rank 0 left or died")));
  }
  EXPECT_LT(std::chrono::duration<double>(Clock::now() - killed).count(), 10);
  processes[0]->wait(1);
}

TEST(TcpCollective, DeadFirstRank_EndsTheOthersWithinSeconds) { expect_end_with_the_first(kProgram, "tcp"); }

TEST(TcpCollective, Abort_ReachesEverybodyWithItsReason) {
  for (const Ended& ended : run_tcp({0, 1, 2}, 3, "abort", "60", 30)) {
    EXPECT_EQ(ended.code, 0) << ended.output;
    EXPECT_LT(ended.seconds, 10) << ended.output;
    EXPECT_THAT(ended.output, HasSubstr("its loss is not a number"));
  }
}

TEST(TcpCollective, Mismatch_IsAnErrorNotAHang) {
  for (const Ended& ended : run_tcp({0, 1, 2}, 3, "mismatch", "60", 30)) {
    EXPECT_EQ(ended.code, 0) << ended.output;
    EXPECT_LT(ended.seconds, 10) << ended.output;
    EXPECT_THAT(ended.output, HasSubstr("do not match"));
  }
}

TEST(TcpCollective, MissingRank_IsNamedWhenOpening) {
  for (const Ended& ended : run_tcp({0, 2}, 4, "check", "1.5", 20)) {
    EXPECT_EQ(ended.code, 1) << ended.output;
    EXPECT_LT(ended.seconds, 10) << ended.output;
    EXPECT_THAT(ended.output, HasSubstr("ranks 1, 3 did not come"));
  }
  const std::vector<Ended> alone = run_tcp({1}, 2, "check", "1", 20);  // nobody listens
  EXPECT_EQ(alone[0].code, 1);
  EXPECT_THAT(alone[0].output, HasSubstr("cannot connect to rank 0"));
}

TEST(TcpCollective, OtherWorldSize_IsRefused) {
  const int port = free_port();
  Process first({kProgram, "check", "tcp", "2"}, rank_environment(0, 2, port));
  Process other({kProgram, "check", "tcp", "2"}, rank_environment(1, 3, port));
  EXPECT_THAT(other.wait(20).output, HasSubstr("rank 0 runs with 2 ranks, rank 1 with 3"));
  EXPECT_THAT(first.wait(20).output, HasSubstr("rank 1 did not come"));
}

// The largest S of "after S s" in the ranks' own words. mpirun's starting and ending, which a busy machine can stretch
// to half a minute, are not the back end's.
double slowest_rank(const std::string& output) {
  double slowest = -1;
  for (size_t at = output.find(" after "); at != std::string::npos; at = output.find(" after ", at + 1)) {
    slowest = std::max(slowest, std::atof(output.c_str() + at + 7));
  }
  return slowest;
}

Ended run_mpi(int size, const std::string& mode, const std::string& timeout, double limit) {
  Process process(
      {"mpirun", "--allow-run-as-root", "--oversubscribe", "-n", std::to_string(size), kProgram, mode, "mpi", timeout},
      {{"RANK", ""}, {"WORLD_SIZE", ""}, {"OMPI_MCA_rmaps_base_oversubscribe", "1"}});
  return process.wait(limit);
}

bool have_mpirun() { return std::system("command -v mpirun > /dev/null 2>&1") == 0; }

#define SKIP_WITHOUT_MPIRUN() \
  if (!have_mpirun()) GTEST_SKIP() << "mpirun is not installed"

TEST(MpiCollective, AllOperations_MatchADirectComputation) {
  SKIP_WITHOUT_MPIRUN();
  for (int size : {2, 3, 4}) {
    const Ended ended = run_mpi(size, "check", "60", 180);
    EXPECT_EQ(ended.code, 0) << ended.output;
    for (int rank = 0; rank < size; ++rank)
      EXPECT_THAT(ended.output,
                  HasSubstr("rank " + std::to_string(rank) + " of " + std::to_string(size) + " over mpi"));
  }
}

TEST(MpiCollective, AbsentRank_TimesOutAndIsNamed) {
  SKIP_WITHOUT_MPIRUN();
  const Ended ended = run_mpi(3, "absent", "2", 90);
  EXPECT_LT(slowest_rank(ended.output), 10) << ended.output;
  EXPECT_NE(ended.code, -1) << ended.output;
  EXPECT_THAT(ended.output,
              AllOf(HasSubstr("all_reduce 'grad bucket 3' (step 7)"), HasSubstr("nothing from rank 2 for 2 s")));
}

TEST(MpiCollective, DeadRank_EndsTheJobWithinSeconds) {
  SKIP_WITHOUT_MPIRUN();
  const Ended ended = run_mpi(3, "die", "300", 90);
  EXPECT_LT(ended.seconds, 55) << ended.output;  // the others would go on for 60 s and more
  EXPECT_EQ(ended.code, 9) << ended.output;      // mpirun's own report of the first failure
}

TEST(MpiCollective, Abort_ReachesEverybodyWithItsReason) {
  SKIP_WITHOUT_MPIRUN();
  const Ended ended = run_mpi(3, "abort", "60", 90);
  EXPECT_LT(slowest_rank(ended.output), 10) << ended.output;
  EXPECT_NE(ended.code, -1) << ended.output;
  EXPECT_THAT(ended.output, HasSubstr("its loss is not a number"));
}

TEST(MpiCollective, WithoutMpirun_IsRefused) {
  SKIP_WITHOUT_MPIRUN();
  Process lonely({kProgram, "check", "mpi", "5"}, rank_environment(0, 2, 29999));
  const Ended ended = lonely.wait(30);
  EXPECT_EQ(ended.code, 1) << ended.output;
  EXPECT_THAT(ended.output, HasSubstr("MPI says rank 0 of 1"));
}

#ifdef PARTITA_STAND_INS
// The CUDA module's NCCL back end as it is, on a GPU that is this machine and a NCCL that checks what it is asked
// (tests/stand_ins).
std::vector<Ended> run_nccl(const std::vector<int>& ranks, const std::string& mode, const std::string& timeout,
                            double limit) {
  return run_tcp(ranks, static_cast<int>(ranks.size()), mode, timeout, limit,
                 PARTITA_STAND_INS "/collective_check_on_host", "cuda");
}

// Each message is received before it counts as sent: what relied on NCCL's buffers would hang.
TEST(NcclCollective, AllOperations_MatchADirectComputation) {
  for (const Ended& ended : run_nccl({0, 1, 2}, "check", "60", 120)) {
    EXPECT_EQ(ended.code, 0) << ended.output;
    EXPECT_THAT(ended.output, HasSubstr("of 3 over nccl"));
  }
}

TEST(NcclCollective, AbsentRank_TimesOut) {
  for (const Ended& ended : run_nccl({0, 1, 2}, "absent", "2", 30)) {
    EXPECT_EQ(ended.code, 0) << ended.output;
    EXPECT_LT(ended.seconds, 12) << ended.output;
    EXPECT_THAT(ended.output, HasSubstr("all_reduce 'grad bucket 3' (step 7) has not ended after 2 s"));
  }
}

TEST(NcclCollective, DeadRank_EndsTheOthersWithinSeconds) {
  const std::vector<Ended> results = run_nccl({0, 1, 2, 3}, "die", "60", 30);
  EXPECT_EQ(results[3].code, 9);
  for (size_t rank : {0, 1, 2}) {
    EXPECT_THAT(results[rank].code, AnyOf(0, 1)) << results[rank].output;  // 1: its own word was still under way
    EXPECT_LT(results[rank].seconds, 10);
    EXPECT_THAT(results[rank].output, HasSubstr("rank 3 died"));
  }
}

// What waits on the GPU for the dead is aborted.
TEST(NcclCollective, DeadFirstRank_EndsTheOthersWithinSeconds) {
  expect_end_with_the_first(PARTITA_STAND_INS "/collective_check_on_host", "cuda");
}

TEST(NcclCollective, Abort_ReachesEverybodyWithItsReason) {
  for (const Ended& ended : run_nccl({0, 1, 2}, "abort", "60", 30)) {
    EXPECT_THAT(ended.code, AnyOf(0, 1)) << ended.output;  // 1: told while it was still connecting
    EXPECT_LT(ended.seconds, 10) << ended.output;
    EXPECT_THAT(ended.output, HasSubstr("its loss is not a number"));
  }
}

TEST(NcclCollective, Mismatch_IsAnErrorNotAHang) {
  for (const Ended& ended : run_nccl({0, 1, 2}, "mismatch", "60", 30)) {
    EXPECT_EQ(ended.code, 0) << ended.output;
    EXPECT_LT(ended.seconds, 10) << ended.output;
    EXPECT_THAT(ended.output, HasSubstr("found: all_reduce sum of"));
  }
}
#endif

}  // namespace
}  // namespace partita::runtime
