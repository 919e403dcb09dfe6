#include "runtime/transports/collective_threads.h"

#include <condition_variable>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <tuple>
#include <utility>

#include "base/cat.h"
#include "base/status.h"
#include "runtime/communicate/lost_ranks.h"
#include "runtime/communicate/transport.h"
#include "runtime/communicate/transport_communicator.h"

namespace partita::runtime {

struct ThreadWorld::Shared {
  struct Lane {  // one of the two is empty
    std::deque<Transfer*> sends, recvs;
  };
  struct Member {
    std::condition_variable changed;
    bool taken = false, left = false;
    bool event = false;  // what progress() waits for
    int copies = 0;      // memcpys now running on its transfers in other threads
    absl::Status failure;
  };

  explicit Shared(int size) : members(static_cast<size_t>(size)) {}
  Member& at(int rank) { return members[static_cast<size_t>(rank)]; }
  void notify(int rank) {
    at(rank).event = true;
    at(rank).changed.notify_all();
  }
  void fail(int rank, const absl::Status& status) {
    if (at(rank).failure.ok()) at(rank).failure = status;
    notify(rank);
  }

  std::mutex mutex;
  std::deque<Member> members;
  std::map<std::tuple<int, int, uint64_t>, Lane> lanes;  // from one rank to another, by lane_of()
};

class ThreadWorld::Seat final : public Transport {
 public:
  Seat(std::shared_ptr<Shared> shared, int rank) : shared_(std::move(shared)), rank_(rank) {}

  std::string_view name() const override { return "threads"; }
  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(shared_->members.size()); }

  void post_send(Transfer& transfer) override { post(transfer, true); }
  void post_recv(Transfer& transfer) override { post(transfer, false); }

  absl::Status progress(SteadyTime until) override {
    std::unique_lock lock(shared_->mutex);
    Shared::Member& me = shared_->at(rank_);
    me.changed.wait_until(lock, until, [&] { return me.event || !me.failure.ok(); });
    me.event = false;
    return me.failure;
  }

  void wake() override {
    std::lock_guard lock(shared_->mutex);
    shared_->notify(rank_);
  }

  void abort(std::string_view reason) override {
    std::unique_lock lock(shared_->mutex);
    for (int peer = 0; peer < size(); ++peer) {
      if (peer != rank_) shared_->fail(peer, gave_up_error(reason));
    }
    leave(lock);
  }

  void close() override {
    std::unique_lock lock(shared_->mutex);
    leave(lock);
  }

 private:
  void post(Transfer& transfer, bool is_send);
  void deliver(std::unique_lock<std::mutex>& lock, Transfer& mine, Transfer& theirs, bool is_send);
  void leave(std::unique_lock<std::mutex>& lock);
  absl::Status left_error(int peer) { return absl::UnavailableError(cat("rank ", peer, " has left the run")); }

  const std::shared_ptr<Shared> shared_;
  const int rank_;
};

void ThreadWorld::Seat::post(Transfer& transfer, bool is_send) {
  std::unique_lock lock(shared_->mutex);
  if (shared_->at(transfer.peer).left) return shared_->fail(rank_, left_error(transfer.peer));
  const uint64_t lane_id = lane_of(transfer.envelope);
  const auto key = is_send ? std::tuple(rank_, transfer.peer, lane_id) : std::tuple(transfer.peer, rank_, lane_id);
  Shared::Lane& lane = shared_->lanes[key];
  std::deque<Transfer*>& waiting = is_send ? lane.recvs : lane.sends;
  if (waiting.empty()) {
    (is_send ? lane.sends : lane.recvs).push_back(&transfer);
    return;
  }
  Transfer& other = *waiting.front();
  if (!matches(transfer.envelope, other.envelope) || transfer.size != other.size) {
    return shared_->fail(rank_,
                         mismatch_error(transfer.peer, transfer.envelope, transfer.size, other.envelope, other.size));
  }
  waiting.pop_front();
  if (waiting.empty()) shared_->lanes.erase(key);
  deliver(lock, transfer, other, is_send);
}

void ThreadWorld::Seat::deliver(std::unique_lock<std::mutex>& lock, Transfer& mine, Transfer& theirs, bool is_send) {
  Shared::Member& peer = shared_->at(mine.peer);
  if (mine.size > 0) {
    ++peer.copies;  // so that the peer does not abandon its buffer now
    lock.unlock();
    is_send ? std::memcpy(theirs.data, mine.data, mine.size) : std::memcpy(mine.data, theirs.data, mine.size);
    lock.lock();
    --peer.copies;
  }
  mine.done.store(true, std::memory_order_release);
  theirs.done.store(true, std::memory_order_release);
  shared_->notify(rank_);
  shared_->notify(mine.peer);
}

void ThreadWorld::Seat::leave(std::unique_lock<std::mutex>& lock) {
  Shared::Member& me = shared_->at(rank_);
  me.left = true;
  for (auto lane = shared_->lanes.begin(); lane != shared_->lanes.end();) {
    const auto [from, to, id] = lane->first;
    if (from != rank_ && to != rank_) {
      ++lane;
      continue;
    }
    // Whatever the peer has queued here can never be answered.
    const bool awaited = from == rank_ ? !lane->second.recvs.empty() : !lane->second.sends.empty();
    if (awaited) shared_->fail(from == rank_ ? to : from, left_error(rank_));
    lane = shared_->lanes.erase(lane);
  }
  me.changed.wait(lock, [&] { return me.copies == 0; });
}

ThreadWorld::ThreadWorld(int size, const CommunicatorOptions& options) : options_(options) {
  PARTITA_CHECK(size > 0, "a world has at least one rank");
  shared_ = std::make_shared<Shared>(size);
}
ThreadWorld::~ThreadWorld() = default;

int ThreadWorld::size() const { return static_cast<int>(shared_->members.size()); }

absl::StatusOr<std::unique_ptr<Communicator>> ThreadWorld::communicator(int rank, FlightRecorder* recorder) {
  if (rank < 0 || rank >= size()) return absl::InvalidArgumentError(cat("rank ", rank, " in a world of ", size()));
  {
    std::lock_guard lock(shared_->mutex);
    if (std::exchange(shared_->at(rank).taken, true)) {
      return absl::FailedPreconditionError(cat("rank ", rank, " already has its communicator"));
    }
  }
  CommunicatorOptions options = options_;
  if (recorder != nullptr) options.recorder = recorder;
  return open_transport_communicator(
      [shared = shared_, rank]() -> absl::StatusOr<std::unique_ptr<Transport>> {
        return std::make_unique<Seat>(shared, rank);
      },
      options);
}

absl::Status outcome_of(std::span<const absl::Status> ranks) {
  absl::Status first;
  for (const absl::Status& s : ranks) {
    if (!s.ok() && !absl::IsUnavailable(s)) return s;
    if (first.ok()) first = s;
  }
  return first;
}

}  // namespace partita::runtime
