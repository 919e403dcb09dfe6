#include "tests/stand_ins/cuda/streams.h"

#include <utility>

namespace partita::stand_in {

void Recording::reach() {
  std::lock_guard lock(mutex_);
  over_ = true;
  when_ = std::chrono::steady_clock::now();
  changed_.notify_all();
}

void Recording::wait() const {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return over_; });
}

Stream::Stream() : luck_(static_cast<unsigned>(reinterpret_cast<uintptr_t>(this) >> 4)), thread_([this] { run(); }) {}

Stream::~Stream() {
  {
    std::lock_guard lock(mutex_);
    ends_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void Stream::push(Work work) {
  {
    std::lock_guard lock(mutex_);
    if (capturing_) {
      captured_.push_back(std::move(work));
      return;
    }
    queue_.push_back(std::move(work));
  }
  changed_.notify_all();
}

void Stream::wait() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return queue_.empty() && !busy_; });
}

bool Stream::begin_capture() {
  std::lock_guard lock(mutex_);
  return !std::exchange(capturing_, true);
}

std::vector<Work> Stream::end_capture() {
  std::lock_guard lock(mutex_);
  capturing_ = false;
  return std::exchange(captured_, {});
}

bool Stream::is_capturing() const {
  std::lock_guard lock(mutex_);
  return capturing_;
}

void Stream::run() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return !queue_.empty() || ends_; });
    if (queue_.empty()) return;
    Work work = std::move(queue_.front());
    queue_.pop_front();
    busy_ = true;
    lock.unlock();
    if (luck_() % 16 == 0) std::this_thread::sleep_for(std::chrono::microseconds(luck_() % 200));
    work();
    work = nullptr;
    lock.lock();
    busy_ = false;
    changed_.notify_all();
  }
}

}  // namespace partita::stand_in
