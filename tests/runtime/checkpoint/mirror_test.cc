#include "runtime/checkpoint/mirror.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <vector>

#include "base/cat.h"
#include "runtime/communicate/exchanges.h"
#include "tests/runtime/checkpoint/held_states.h"
#include "tests/support/temp_folder.h"

namespace partita::runtime {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

// Ranks 0 and 1 are of one host, the others of another: each has a folder of its own.
class Mirrored : public testing::Test {
 protected:
  void SetUp() override {
    for (const char* host : {"host0", "host1"}) fs::create_directories(folder_ / host);
  }
  CheckpointOptions options(const Communicator& c, const std::string& resume) {
    return {.folder = folder_ / "checkpoints",
            .resume = resume,
            .mirror = {.every = 1, .in = folder_ / cat("host", c.rank() * 2 / c.size())}};
  }
  // So many of the three turns of a copy: sent, given its name, the one before removed.
  static absl::Status settle(Checkpointer& c, Communicator* communicator, int turns) {
    while (turns > 0) {
      const Checkpointer::Progress mine = c.progress();
      int64_t all[] = {mine.mirroring, mine.mirror_failed};
      if (auto s = all_reduce(communicator, all, ReduceOp::kMax, "test"); !s.ok()) return s;
      if (all[0] == 0) --turns;
      if (auto s = c.settle({.mirroring = all[0], .mirror_failed = all[1]}); !s.ok()) return s;
    }
    return absl::OkStatus();
  }
  // Mirrors content(7) as step 7, then content(8) as step 8 with so many turns, and ends as if killed.
  absl::Status run(const Layout& layout, int turns_of_second) {
    return on_ranks(holder(layout), [&](const Executor& executor, Communicator* communicator) -> absl::Status {
      auto c = Checkpointer::open(options(*communicator, ""), executor, communicator);
      if (!c.ok()) return c.status();
      for (const auto& [step, turns] : {std::pair{7, 3}, {8, turns_of_second}}) {
        fill(executor, static_cast<uint64_t>(step));
        if (auto s = (*c)->mirror(head(step)); !s.ok()) return s;
        fill(executor, 999);  // training goes on
        if (auto s = settle(**c, communicator, turns); !s.ok()) return s;
      }
      return absl::OkStatus();
    });
  }
  // The step that another run goes on from, 0 where there is none, and whether it has that content.
  int64_t resumed(const Layout& layout) {
    std::atomic<int64_t> step = 0, different = 0;
    const absl::Status status =
        on_ranks(holder(layout), [&](const Executor& executor, Communicator* communicator) -> absl::Status {
          auto c = Checkpointer::open(options(*communicator, "auto"), executor, communicator);
          if (!c.ok()) return c.status();
          auto from = (*c)->resume();
          if (!from.ok() || !from->has_value()) return from.status();
          step = (*from)->step;
          different += differences(executor, static_cast<uint64_t>(step));
          return absl::OkStatus();
        });
    EXPECT_TRUE(status.ok()) << status;
    EXPECT_EQ(different, 0);
    return step;
  }
  void lose(const std::string& host) {
    fs::remove_all(folder_ / host);
    fs::create_directories(folder_ / host);
  }

  TempFolder folder_;
};

TEST_F(Mirrored, OutlivesEitherHost_UnderTheSamePlanAndAnother) {
  for (int from : {3, 5}) {
    for (const char* host : {"host0", "host1"}) {
      for (int to : {from, 2}) {
        SetUp();
        const absl::Status ran = run(layouts()[static_cast<size_t>(from)], 3);
        ASSERT_TRUE(ran.ok()) << ran;
        lose(host);
        EXPECT_EQ(resumed(layouts()[static_cast<size_t>(to)]), 8) << layouts()[static_cast<size_t>(to)].name;
        fs::remove_all(folder_ / "checkpoints");
        lose("host0");
        lose("host1");
      }
    }
  }
}

TEST_F(Mirrored, OneThatIsNotWhole_SparesTheOneBefore) {
  for (const int turns : {0, 1}) {
    ASSERT_TRUE(run(layouts()[3], turns).ok());
    lose("host1");
    EXPECT_EQ(resumed(layouts()[3]), 7);
    // Now both hosts have all of it.
    lose("host0");
    EXPECT_EQ(resumed(layouts()[3]), 7);
    lose("host0");
    lose("host1");
    EXPECT_EQ(resumed(layouts()[3]), 0);
    fs::remove_all(folder_ / "checkpoints");
  }
}

TEST_F(Mirrored, AnotherRunsCopies_AreNotTaken) {
  ASSERT_TRUE(run(layouts()[3], 3).ok());
  fs::remove_all(folder_ / "checkpoints");
  EXPECT_EQ(resumed(layouts()[3]), 0);
}

TEST(MirrorPartners, AreOfTheNextHost) {
  const std::vector<std::vector<int>> hosts = {{0, 1, 2}, {3}, {4, 5}};
  const std::vector<int> to = {3, 3, 3, 4, 0, 1};
  for (int rank = 0; rank < 6; ++rank) EXPECT_EQ(mirror_partners(hosts, rank).to, to[static_cast<size_t>(rank)]);
  EXPECT_EQ(mirror_partners(hosts, 3).from, (std::vector<int>{0, 1, 2}));
  EXPECT_EQ(mirror_partners(hosts, 0).from, std::vector<int>{4});
  EXPECT_TRUE(mirror_partners(hosts, 2).from.empty());
}

}  // namespace
}  // namespace partita::runtime
