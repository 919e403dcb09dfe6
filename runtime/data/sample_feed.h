// Batches that the program around a run hands over, one a step, in place of data files.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"

namespace partita::runtime {

// One side supplies, each of `readers` (the ranks of this process) takes every batch in turn. Thread-safe.
class SampleFeed {
 public:
  // The whole global batch of each column, packed row-major; of one without a batch axis, its value.
  using Columns = std::vector<std::span<const std::byte>>;

  SampleFeed(std::vector<std::string> names, int readers) : names_(std::move(names)), readers_(readers) {}

  // The column of an input, or -1.
  int column(std::string_view name) const;

  // Hands over the next batch: its memory is read until given_back() has returned.
  void supply(Columns columns);
  // Waits until every reader has given the batch back that was supplied last, or the feed is closed.
  void wait_given_back();
  // No batch comes any more. What was supplied is taken all the same.
  void close();

  // Waits for batch `number` (from 0, as they were supplied). False where none comes any more.
  bool wait(int64_t number);
  // Of the batch that wait() has seen, until give_back().
  std::span<const std::byte> columns(int column) const { return columns_[static_cast<size_t>(column)]; }
  void give_back();

 private:
  const std::vector<std::string> names_;
  const int readers_;
  std::mutex mutex_;
  std::condition_variable changed_;
  Columns columns_;
  int64_t supplied_ = 0;  // batches
  int given_back_ = 0;    // by so many readers, of the last one
  bool closed_ = false;
};

}  // namespace partita::runtime
