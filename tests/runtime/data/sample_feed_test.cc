#include "runtime/data/sample_feed.h"

#include <gtest/gtest.h>

#include <cstring>
#include <thread>

namespace partita::runtime {
namespace {

std::span<const std::byte> bytes_of(const std::vector<int>& values) { return std::as_bytes(std::span(values)); }

TEST(SampleFeed, KnowsItsColumns) {
  SampleFeed feed({"x", "target"}, 1);
  EXPECT_EQ(feed.column("target"), 1);
  EXPECT_EQ(feed.column("y"), -1);
}

TEST(SampleFeed, HandsEachBatchToEveryReader) {
  SampleFeed feed({"x"}, 2);
  std::vector<std::vector<int>> seen(2);
  std::vector<std::thread> readers;
  for (size_t r = 0; r < 2; ++r) {
    readers.emplace_back([&, r] {
      for (int64_t k = 0; feed.wait(k); ++k) {
        int value = 0;
        std::memcpy(&value, feed.columns(0).data(), sizeof value);
        seen[r].push_back(value);
        feed.give_back();
      }
    });
  }
  for (int k = 0; k < 100; ++k) {
    std::vector<int> batch{k};
    feed.supply({bytes_of(batch)});
    feed.wait_given_back();
    batch[0] = -1;  // nobody looks any more
  }
  feed.close();
  for (std::thread& t : readers) t.join();
  std::vector<int> all(100);
  for (int k = 0; k < 100; ++k) all[static_cast<size_t>(k)] = k;
  EXPECT_EQ(seen[0], all);
  EXPECT_EQ(seen[1], all);
}

TEST(SampleFeed_Closed, StillHasWhatWasSupplied) {
  SampleFeed feed({"x"}, 1);
  const std::vector<int> batch{7};
  feed.supply({bytes_of(batch)});
  feed.close();
  EXPECT_TRUE(feed.wait(0));
  EXPECT_FALSE(feed.wait(1));
  feed.wait_given_back();  // does not wait for readers that are gone
}

}  // namespace
}  // namespace partita::runtime
