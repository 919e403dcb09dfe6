// The progress thread takes operations off a queue. Collectives run to their end there; sends, receives and permutes
// are posted and looked after from then on (`background_`), while later operations run, and while a collective before
// them does: a stage's message does not wait for sums that its sender has started. When nothing is to be done the
// thread rests in Transport::progress(), where it also hears of peers that died or gave up.
// The first error is kept in `failure_`, told to the peers, and ends the thread: it answers every ticket not yet
// finished.
#include "runtime/communicate/transport_communicator.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <deque>
#include <list>
#include <map>
#include <mutex>
#include <optional>
#include <thread>
#include <unordered_map>

#include "base/cat.h"
#include "base/status.h"
#include "runtime/communicate/collective_algorithms.h"
#include "runtime/communicate/lost_ranks.h"
#include "runtime/record/flight_recorder.h"

namespace partita::runtime {
namespace {

using Clock = std::chrono::steady_clock;
constexpr size_t kMaxReasonBytes = 2000;

class TransportCommunicator final : public Communicator {
 public:
  explicit TransportCommunicator(const CommunicatorOptions& options)
      : recorder_(options.recorder), timeout_(options.timeout) {}
  ~TransportCommunicator() override;
  absl::Status open(TransportFactory factory);

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  std::string_view backend() const override { return name_; }
  std::chrono::milliseconds timeout() const override { return timeout_; }
  void set_timeout(std::chrono::milliseconds timeout) override { timeout_ = timeout; }
  absl::StatusOr<GroupId> create_group(const std::vector<int>& world_ranks) override;
  Ticket start(CollectiveOp op) override;
  absl::Status wait(Ticket ticket) override;
  void abort(std::string_view reason) override;
  absl::Status failure() const override;

 private:
  struct Task {
    Task(Ticket t, Transport& transport, const Group& group, CollectiveOp op,
         const std::atomic<std::chrono::milliseconds>& timeout, std::function<absl::Status()> tick)
        : ticket(t), exchange(transport, group, std::move(op), timeout, std::move(tick)) {}
    Ticket ticket;
    Exchange exchange;
  };

  void run(TransportFactory factory);
  absl::Status open_transport(const TransportFactory& factory);
  absl::Status serve();
  // The next operation of the queue, which it leaves; 0: there is none.
  Ticket take(bool messages_alone);
  absl::Status execute(Ticket ticket);
  absl::Status tick();
  void finish(Ticket ticket);
  void note_waits(SteadyTime now);
  // Keeps the first error; `ticket` is the operation it came from, 0 for none.
  absl::Status fail(Ticket ticket, absl::Status status);
  void wake();

  FlightRecorder* const recorder_;
  std::atomic<std::chrono::milliseconds> timeout_;
  std::thread thread_;
  std::string name_;
  int rank_ = 0, size_ = 0;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  bool opened_ = false, leaving_ = false, ended_ = false;
  std::string abort_reason_;
  absl::Status open_status_, failure_;
  Ticket failed_ticket_ = 0, last_ticket_ = 0;
  std::deque<Ticket> queue_;
  std::unordered_map<Ticket, CollectiveOp> unfinished_;
  std::deque<Group> groups_;  // stable addresses
  std::map<std::vector<int>, uint64_t> group_versions_;

  std::unique_ptr<Transport> transport_;  // changes under mutex_; used by the progress thread, and by all for wake()
  // The progress thread's own. A failed task stays until the transport has let go of its transfers.
  std::optional<Task> current_;
  std::list<Task> background_;
  SteadyTime noted_;  // when it was last recorded what is waited for
};

uint64_t group_hash(const std::vector<int>& ranks, uint64_t version) {
  Envelope words{.group = version, .count = static_cast<int64_t>(ranks.size())};
  for (int rank : ranks) words.group = envelope_hash(words) ^ static_cast<uint64_t>(rank);
  return envelope_hash(words);
}

absl::Status TransportCommunicator::open(TransportFactory factory) {
  thread_ = std::thread([this, factory = std::move(factory)]() mutable { run(std::move(factory)); });
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return opened_; });
  return open_status_;
}

TransportCommunicator::~TransportCommunicator() {
  {
    std::lock_guard lock(mutex_);
    leaving_ = true;
    wake();
  }
  if (thread_.joinable()) thread_.join();
}

// Holding mutex_.
void TransportCommunicator::wake() {
  if (transport_ != nullptr) transport_->wake();
}

absl::StatusOr<GroupId> TransportCommunicator::create_group(const std::vector<int>& world_ranks) {
  if (world_ranks.empty()) return absl::InvalidArgumentError("a group needs at least one rank");
  std::vector<int> sorted = world_ranks;
  std::sort(sorted.begin(), sorted.end());
  if (sorted.front() < 0 || sorted.back() >= size_) {
    return absl::InvalidArgumentError(cat("group of ", describe_ranks(sorted), " in a world of ", size_, " ranks"));
  }
  if (std::adjacent_find(sorted.begin(), sorted.end()) != sorted.end()) {
    return absl::InvalidArgumentError(cat("group of ", describe_ranks(sorted), " names a rank twice"));
  }
  const auto mine = std::find(world_ranks.begin(), world_ranks.end(), rank_);
  std::lock_guard lock(mutex_);
  Group& group = groups_.emplace_back();
  group.ranks = world_ranks;
  group.mine = mine == world_ranks.end() ? -1 : static_cast<int>(mine - world_ranks.begin());
  group.id = group_hash(world_ranks, group_versions_[world_ranks]++);
  return static_cast<GroupId>(groups_.size() - 1);
}

Ticket TransportCommunicator::start(CollectiveOp op) {
  std::lock_guard lock(mutex_);
  const Ticket ticket = ++last_ticket_;
  if (recorder_ != nullptr) recorder_->issued(ticket, op.step_id, collective_name(op.kind), op.label);
  unfinished_.emplace(ticket, std::move(op));
  if (!ended_) {
    queue_.push_back(ticket);
    wake();
  }
  return ticket;
}

absl::Status TransportCommunicator::wait(Ticket ticket) {
  std::unique_lock lock(mutex_);
  if (ticket == 0 || ticket > last_ticket_) return absl::InvalidArgumentError(cat("no operation has ticket ", ticket));
  if (recorder_ != nullptr && unfinished_.contains(ticket)) recorder_->waiting(ticket);
  changed_.wait(lock, [&] { return ended_ || !unfinished_.contains(ticket); });
  const auto found = unfinished_.find(ticket);
  if (found == unfinished_.end()) {
    if (recorder_ != nullptr) recorder_->waiting(0);  // after an error it stays as it was
    return absl::OkStatus();
  }
  if (ticket == failed_ticket_) return failure_;
  return with_context(failure_, describe(found->second));
}

void TransportCommunicator::abort(std::string_view reason) {
  std::lock_guard lock(mutex_);
  if (abort_reason_.empty()) abort_reason_ = reason.empty() ? "no reason given" : std::string(reason);
  wake();
}

absl::Status TransportCommunicator::failure() const {
  std::lock_guard lock(mutex_);
  return failure_;
}

absl::Status TransportCommunicator::open_transport(const TransportFactory& factory) {
  PARTITA_ASSIGN_OR_RETURN(std::unique_ptr<Transport> transport, factory());
  name_ = std::string(transport->name());
  rank_ = transport->rank();
  size_ = transport->size();
  Group& world = groups_.emplace_back();
  for (int i = 0; i < size_; ++i) world.ranks.push_back(i);
  world.mine = rank_;
  world.id = group_hash({}, 0);
  std::lock_guard lock(mutex_);
  transport_ = std::move(transport);
  return absl::OkStatus();
}

void TransportCommunicator::run(TransportFactory factory) {
  const absl::Status opened = open_transport(factory);
  factory = nullptr;
  {
    std::lock_guard lock(mutex_);
    opened_ = true;
    open_status_ = opened;
    ended_ = !opened.ok();
    changed_.notify_all();
  }
  if (!opened.ok()) return;
  const absl::Status served = serve();
  std::unique_ptr<Transport> transport;
  {
    std::lock_guard lock(mutex_);
    transport = std::move(transport_);
  }
  if (served.ok()) {
    transport->close();
  } else {
    const std::string reason(served.message().substr(0, kMaxReasonBytes));
    transport->abort(with_code(cat("rank ", rank_, " gave up: ", reason), end_code(served)));
  }
  current_.reset();
  background_.clear();
  {
    // Only now: who has an answer may reuse the buffers.
    std::lock_guard lock(mutex_);
    ended_ = true;
    changed_.notify_all();
  }
}

absl::Status TransportCommunicator::serve() {
  while (true) {
    {
      std::lock_guard lock(mutex_);
      if (leaving_ && unfinished_.empty()) return absl::OkStatus();
    }
    if (const Ticket next = take(false); next != 0) {
      PARTITA_RETURN_IF_ERROR(execute(next));
    } else {
      const absl::Status moved =
          transport_->progress(Clock::now() + (background_.empty() ? std::chrono::hours(1) : kTick));
      if (!moved.ok()) return fail(0, moved);
    }
    if (const absl::Status status = tick(); !status.ok()) return fail(0, status);
  }
}

Ticket TransportCommunicator::take(bool messages_alone) {
  std::lock_guard lock(mutex_);
  // What is started after abort() must not run, though tick() has not seen the reason yet: abort() has woken
  // progress().
  if (!abort_reason_.empty()) return 0;
  const auto next = std::find_if(queue_.begin(), queue_.end(), [&](Ticket t) {
    return !messages_alone || unfinished_.at(t).kind >= CollectiveKind::kSend;
  });
  if (next == queue_.end()) return 0;
  const Ticket ticket = *next;
  queue_.erase(next);
  return ticket;
}

absl::Status TransportCommunicator::execute(Ticket ticket) {
  CollectiveOp op;
  Group* group = nullptr;
  {
    std::lock_guard lock(mutex_);
    op = unfinished_.at(ticket);
    if (op.group >= 0 && static_cast<size_t>(op.group) < groups_.size())
      group = &groups_[static_cast<size_t>(op.group)];
  }
  if (group == nullptr) return fail(ticket, absl::InvalidArgumentError(cat("no group ", op.group)));
  if (const absl::Status valid = check_operation(op, *group); !valid.ok()) return fail(ticket, valid);
  if (op.kind >= CollectiveKind::kSend) {
    Task& task = background_.emplace_back(ticket, *transport_, *group, std::move(op), timeout_, nullptr);
    post_point_to_point(task.exchange, *group);
    return absl::OkStatus();
  }
  current_.emplace(ticket, *transport_, *group, std::move(op), timeout_, [this] { return tick(); });
  current_->exchange.set_sequence(group->operations++);
  if (const absl::Status status = run_collective(current_->exchange); !status.ok()) return fail(ticket, status);
  current_.reset();
  finish(ticket);
  return absl::OkStatus();
}

absl::Status TransportCommunicator::tick() {
  {
    std::lock_guard lock(mutex_);
    if (!abort_reason_.empty()) return gave_up_error(cat("the run was aborted: ", abort_reason_));
    if (leaving_ && !unfinished_.empty()) {
      return absl::UnavailableError(cat("it left before ", describe(unfinished_.begin()->second), " was finished"));
    }
  }
  while (current_) {
    const Ticket message = take(true);
    if (message == 0) break;
    PARTITA_RETURN_IF_ERROR(execute(message));
  }
  const SteadyTime now = Clock::now();
  for (auto task = background_.begin(); task != background_.end();) {
    if (task->exchange.finished()) {
      finish(task->ticket);
      task = background_.erase(task);
      continue;
    }
    if (const absl::Status status = task->exchange.overdue(now); !status.ok()) return fail(task->ticket, status);
    ++task;
  }
  note_waits(now);
  return absl::OkStatus();
}

// Of what this rank has waited for longer than a moment: the operation whose turn it is, else a message.
void TransportCommunicator::note_waits(SteadyTime now) {
  constexpr std::chrono::milliseconds kMoment{150}, kAgain{1000};
  const Task* held = current_ ? &*current_ : nullptr;
  if (recorder_ == nullptr || now - noted_ < kAgain) return;
  for (const Task& task : background_) {
    if (held == nullptr && task.ticket == recorder_->header().waiting) held = &task;
  }
  if (held == nullptr || now - held->exchange.moved() < kMoment) return;
  const std::vector<int> missing = held->exchange.missing();
  if (missing.empty()) return;
  const CollectiveOp& op = held->exchange.op();
  recorder_->waits(held->ticket, op.step_id, collective_name(op.kind), op.label, missing);
  noted_ = now;
}

void TransportCommunicator::finish(Ticket ticket) {
  std::lock_guard lock(mutex_);
  if (recorder_ != nullptr) recorder_->done(ticket);
  unfinished_.erase(ticket);
  changed_.notify_all();
}

absl::Status TransportCommunicator::fail(Ticket ticket, absl::Status status) {
  std::lock_guard lock(mutex_);
  if (!failure_.ok()) return failure_;
  failed_ticket_ = ticket;
  failure_ = ticket == 0 ? std::move(status) : with_context(status, describe(unfinished_.at(ticket)));
  return failure_;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Communicator>> open_transport_communicator(TransportFactory open,
                                                                          const CommunicatorOptions& options) {
  if (options.timeout.count() <= 0) return absl::InvalidArgumentError("the communicator's timeout must be positive");
  auto communicator = std::make_unique<TransportCommunicator>(options);
  PARTITA_RETURN_IF_ERROR(communicator->open(std::move(open)));
  return communicator;
}

}  // namespace partita::runtime
