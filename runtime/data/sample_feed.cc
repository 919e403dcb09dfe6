#include "runtime/data/sample_feed.h"

#include <algorithm>

namespace partita::runtime {

int SampleFeed::column(std::string_view name) const {
  const auto at = std::find(names_.begin(), names_.end(), name);
  return at == names_.end() ? -1 : static_cast<int>(at - names_.begin());
}

void SampleFeed::supply(Columns columns) {
  {
    std::lock_guard lock(mutex_);
    columns_ = std::move(columns);
    ++supplied_;
    given_back_ = 0;
  }
  changed_.notify_all();
}

void SampleFeed::wait_given_back() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return given_back_ >= readers_ || closed_; });
}

void SampleFeed::close() {
  {
    std::lock_guard lock(mutex_);
    closed_ = true;
  }
  changed_.notify_all();
}

bool SampleFeed::wait(int64_t number) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return supplied_ > number || closed_; });
  return supplied_ > number;
}

void SampleFeed::give_back() {
  {
    std::lock_guard lock(mutex_);
    ++given_back_;
  }
  changed_.notify_all();
}

}  // namespace partita::runtime
