#include "runtime/communicate/work_together.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "runtime/communicate/exchanges.h"
#include "runtime/transports/collective_threads.h"

namespace partita::runtime {
namespace {

using std::chrono::milliseconds;

// What each of two ranks says after so much work; of rank 1 none where it never comes. The limit is 300 ms.
std::vector<absl::Status> outcomes(std::function<absl::Status()> first, std::function<absl::Status()> second) {
  ThreadWorld world(2, {.timeout = milliseconds(300)});
  std::vector<absl::Status> all(2);
  std::vector<std::unique_ptr<Communicator>> communicators;
  for (int rank = 0; rank < 2; ++rank) communicators.push_back(*world.communicator(rank));
  std::vector<std::thread> ranks;
  for (size_t rank = 0; rank < 2; ++rank) {
    const auto& work = rank == 0 ? first : second;
    if (work)
      ranks.emplace_back([&, rank] { all[rank] = work_together(communicators[rank].get(), "x", nullptr, work); });
  }
  for (std::thread& t : ranks) t.join();
  return all;
}

absl::Status quick() { return absl::OkStatus(); }
absl::Status slow() {
  std::this_thread::sleep_for(milliseconds(800));
  return absl::OkStatus();
}

TEST(WorkTogether, TakesLongerThanTheTimeout_WhileAllAreThere) {
  for (const absl::Status& s : outcomes(slow, quick)) EXPECT_TRUE(s.ok()) << s;
}

TEST(WorkTogether, MissesARankThatIsGone) {
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_EQ(outcomes(slow, nullptr)[0].code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(outcomes(quick, nullptr)[0].code(), absl::StatusCode::kUnavailable);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(5));
}

TEST(WorkTogether, TellsAllOfAnError) {
  const auto all = outcomes(quick, [] { return absl::ResourceExhaustedError("no room"); });
  EXPECT_EQ(all[1].message(), "no room");
  EXPECT_EQ(all[0].message(), "rank 1 failed: x: no room");
  EXPECT_TRUE(is_of_another(all[0]));
}

}  // namespace
}  // namespace partita::runtime
