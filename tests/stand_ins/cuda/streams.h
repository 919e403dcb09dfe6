// Streams and events of the CUDA runtime that is this machine: a stream is a queue with a thread of its own.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <random>
#include <thread>
#include <vector>

namespace partita::stand_in {

using Work = std::function<void()>;

// One recording of an event. Who waits for an event, waits for its last recording before, whatever comes after.
class Recording {
 public:
  void reach();
  void wait() const;
  bool is_over() const {
    std::lock_guard lock(mutex_);
    return over_;
  }
  std::chrono::steady_clock::time_point when() const { return when_; }  // once it is over

 private:
  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  bool over_ = false;
  std::chrono::steady_clock::time_point when_;
};
using Event = std::shared_ptr<Recording>;  // null before the first

class Stream {
 public:
  Stream();
  ~Stream();  // runs what is queued first
  void push(Work work);
  void wait();

  // Between the two, work is kept instead of queued.
  bool begin_capture();
  std::vector<Work> end_capture();
  bool is_capturing() const;

 private:
  void run();
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Work> queue_;
  bool busy_ = false, ends_ = false, capturing_ = false;
  std::vector<Work> captured_;
  std::mt19937 luck_;  // pauses before work, so that a wait that is missing shows
  std::thread thread_;
};

}  // namespace partita::stand_in
