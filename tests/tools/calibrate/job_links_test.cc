// What joins the ranks of a job: its levels, that all ranks find the same, and the verb that a launcher starts.
#include "tools/calibrate/job_links.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <thread>

#include "base/cat.h"
#include "tests/runtime/support/on_ranks.h"
#include "tests/support/command.h"
#include "tests/support/temp_folder.h"

namespace partita {
namespace {

using testing::HasSubstr;

std::vector<JobLinks> measured(int ranks, int per_node, std::vector<std::string>* said = nullptr) {
  std::vector<JobLinks> found(static_cast<size_t>(ranks));
  runtime::on_ranks(ranks, [&](int rank, runtime::Communicator* communicator) {
    const JobRank job{.control = communicator, .data = communicator, .per_node = per_node};
    auto links =
        measure_job_links(job, {.bytes = {4096, 262144}, .product = 16}, {1e-4, 7, 0.05}, [&](const std::string& what) {
          if (rank == 0 && said != nullptr) said->push_back(what);
        });
    ASSERT_TRUE(links.ok()) << links.status();
    found[static_cast<size_t>(rank)] = *links;
  });
  return found;
}

TEST(JobLinks, AreOfTheLevelsThatThereAre) {
  std::vector<std::string> said;
  const std::vector<JobLinks> both = measured(4, 2, &said);
  EXPECT_THAT(said, testing::ElementsAre("between the 2 ranks of each node", "between 2 nodes, 2 ranks of each at once",
                                         "all ranks together"));
  for (const JobLinks& links : both) {
    ASSERT_TRUE(links.node && links.network);
    EXPECT_GT(links.node->link.bandwidth, 0);
    EXPECT_GT(links.network->link.latency, 0);
    EXPECT_GT(links.error, 0);
  }
  const JobLinks node = measured(2, 2)[0], network = measured(2, 1)[0];
  EXPECT_TRUE(node.node && !node.network);
  EXPECT_TRUE(network.network && !network.node);
  EXPECT_EQ(node.error, 0);
}

TEST(JobLinks, AreTheSameOnAllRanks) {
  const std::vector<JobLinks> found = measured(2, 1);
  EXPECT_EQ(found[0].network->link.bandwidth, found[1].network->link.bandwidth);
  EXPECT_EQ(found[0].network->link.wait_seconds, found[1].network->link.wait_seconds);
  EXPECT_EQ(found[0].noise, found[1].noise);
}

// A rank's link to the others, shaped as networks are: so many bytes a second, and after a pause as many as its bucket
// holds at once.
class Shaped : public runtime::Communicator {
 public:
  Shaped(runtime::Communicator& link, double rate, double bucket)
      : link_(link), rate_(rate), bucket_(bucket), tokens_(bucket) {}
  int rank() const override { return link_.rank(); }
  int size() const override { return link_.size(); }
  std::string_view backend() const override { return link_.backend(); }
  absl::StatusOr<runtime::GroupId> create_group(const std::vector<int>& ranks) override {
    return link_.create_group(ranks);
  }
  runtime::Ticket start(runtime::CollectiveOp op) override {
    const auto now = Clock::now();
    tokens_ = std::min(bucket_, tokens_ + rate_ * std::chrono::duration<double>(now - last_).count());
    last_ = now, tokens_ -= 4 * static_cast<double>(op.count);  // of two ranks each sends what it has of the result
    if (tokens_ < 0) std::this_thread::sleep_until(now + std::chrono::duration<double>(-tokens_ / rate_));
    return link_.start(std::move(op));
  }
  absl::Status wait(runtime::Ticket ticket) override { return link_.wait(ticket); }
  void abort(std::string_view reason) override { link_.abort(reason); }
  absl::Status failure() const override { return link_.failure(); }

 private:
  using Clock = std::chrono::steady_clock;
  runtime::Communicator& link_;
  const double rate_, bucket_;
  double tokens_;
  Clock::time_point last_ = Clock::now();
};

// What a network lets through at once after a pause is not what a step's many messages meet.
TEST(JobLinks, AreOfWhatANetworkKeepsUp) {
  constexpr double kRate = 1e7, kBucket = 65536;
  runtime::on_ranks(2, [&](int, runtime::Communicator* communicator) {
    Shaped shaped(*communicator, kRate, kBucket);
    const JobRank job{.control = communicator, .data = &shaped, .per_node = 1};
    auto links = measure_job_links(job, {.bytes = {16384, 262144}, .product = 16}, {2e-3, 7, 0.05}, [](const auto&) {});
    ASSERT_TRUE(links.ok()) << links.status();
    EXPECT_NEAR(links->network->link.bandwidth / kRate, 1, 0.1);
    EXPECT_LT(links->network->error, 0.1);
  });
}

TEST(JobLinks_Command, WritesLinksThatPlansTake) {
  TempFolder out;
  const std::string links = out / "links.yaml";
  const Outcome done =
      run_command(cat("mpirun --oversubscribe -n 2 ", partita_program(), " doctor --links ", links, " --rounds 7"));
  ASSERT_EQ(done.code, 0) << done.text;
  EXPECT_THAT(done.text, HasSubstr("links: [{kind: measured-node}]"));
  out.write("cluster.yaml", "device: cpu\ndevices_per_node: 2\nlinks: [{kind: measured-node}]\n");
  const std::string model = std::string(PARTITA_TEST_DATA) + "/gpt2";
  const Outcome plan =
      run_command(cat(partita_program(), " plan ", model, "/model.onnx --train ", model, "/train.yaml --profiles ",
                      links, " --cluster ", out / "cluster.yaml", " --pin data=2 -o ", out / "plan.json"));
  EXPECT_EQ(plan.code, 0) << plan.text;
  EXPECT_THAT(plan.text, HasSubstr("measured-node"));
}

TEST(JobLinks_Command, OfOneProcess_IsRefusedWithWhatToDo) {
  const Outcome alone = run_command(partita_program() + " doctor --links links.yaml");
  EXPECT_EQ(alone.code, 2) << alone.text;
  EXPECT_THAT(alone.text, HasSubstr("mpirun -n 2 partita doctor --links links.yaml"));
  const Outcome rounds = run_command(partita_program() + " doctor --rounds 9");
  EXPECT_EQ(rounds.code, 2) << rounds.text;
  EXPECT_THAT(rounds.text, HasSubstr("--rounds says how --calibrate or --links measures"));
}

}  // namespace
}  // namespace partita
