#include "runtime/launch/rank_watch.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>

#include "base/cat.h"
#include "base/status.h"
#include "runtime/communicate/exchanges.h"
#include "runtime/launch/rank_end.h"
#include "runtime/record/process.h"

namespace partita::runtime {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kLook{100};
constexpr int64_t kMillisecond = 1'000'000;
constexpr int64_t kLinger = 1200 * kMillisecond;  // from a failure to the rank's end
constexpr int64_t kQuiet = 300 * kMillisecond;    // a heartbeat that is this old makes one look

int64_t nanoseconds(milliseconds m) { return m.count() * kMillisecond; }

std::unique_ptr<FlightReader> read_own(const FlightRecorder& recorder) {
  auto reader = FlightReader::map(recorder.descriptor());
  return reader.ok() ? *std::move(reader) : nullptr;
}

// The record of another rank of this host, through its process; null where it cannot be had.
std::unique_ptr<FlightReader> read_peer(int64_t process, int64_t descriptor, uint64_t nonce) {
  auto reader = FlightReader::open(cat("/proc/", process, "/fd/", descriptor));
  if (!reader.ok() || (*reader)->header().nonce != nonce) return nullptr;
  return *std::move(reader);
}

// The rank cannot have told the others that it ends.
bool is_wordless(const FlightHeader& h) { return h.end == FlightEnd::kRunning || h.end == FlightEnd::kSignal; }

}  // namespace

RankWatch::RankWatch(FlightRecorder& recorder, const Timeouts& timeouts,
                     std::function<void(const absl::Status&)> give_up)
    : recorder_(recorder), own_(read_own(recorder)), give_up_(std::move(give_up)), limits_(timeouts) {
  thread_ = std::thread([this] { watch(); });
}

RankWatch::~RankWatch() {
  done_ = true;
  thread_.join();
}

absl::Status RankWatch::join(Communicator* communicator) {
  recorder_.adopt_thread();
  {
    std::lock_guard lock(mutex_);
    communicator_ = communicator;
    over_ = false;
    if (communicator != nullptr) communicator->set_timeout(limits_.of_collective(recorder_.header().phase));
  }
  const FlightHeader& h = recorder_.header();
  if (communicator == nullptr) {
    recorder_.meet(h.nonce);
    return absl::OkStatus();
  }
  const int64_t mine[] = {h.process, recorder_.descriptor(), static_cast<int64_t>(h.host_key),
                          static_cast<int64_t>(h.nonce)};
  PARTITA_ASSIGN_OR_RETURN(const std::vector<int64_t> all, all_gather(communicator, mine, "flight records"));
  std::vector<std::unique_ptr<FlightReader>> peers;
  for (int rank = 0; rank < communicator->size(); ++rank) {
    const int64_t* of = all.data() + 4 * rank;
    if (rank == communicator->rank() || of[2] != mine[2]) continue;
    if (auto peer = read_peer(of[0], of[1], static_cast<uint64_t>(of[3]))) peers.push_back(std::move(peer));
  }
  // Nobody leaves before all have looked.
  PARTITA_RETURN_IF_ERROR(all_ok(communicator, absl::OkStatus(), "flight records"));
  recorder_.meet(static_cast<uint64_t>(all[3]));
  std::lock_guard lock(mutex_);
  peers_ = std::move(peers);
  return absl::OkStatus();
}

void RankWatch::leave() {
  std::lock_guard lock(mutex_);
  communicator_ = nullptr;
  over_ = true;
}

void RankWatch::limit(const Timeouts& timeouts) {
  std::lock_guard lock(mutex_);
  limits_ = TimeLimits(timeouts);
}

void RankWatch::enter(Phase phase, int64_t training_step) {
  recorder_.enter(phase, training_step);
  std::lock_guard lock(mutex_);
  if (communicator_ != nullptr) communicator_->set_timeout(limits_.of_collective(phase));
}

void RankWatch::step_took(double seconds) {
  std::lock_guard lock(mutex_);
  limits_.step_took(seconds);
}

absl::Status RankWatch::verdict() const {
  std::lock_guard lock(mutex_);
  return verdict_;
}

std::optional<int> RankWatch::lost_peer() const {
  std::lock_guard lock(mutex_);
  return dead_peer();
}

std::optional<int> RankWatch::dead_peer() const {
  for (const auto& peer : peers_) {
    const FlightHeader& h = peer->header();
    if (is_wordless(h) && process_state(h.process, h.process_start) == '\0') return h.rank;
  }
  return std::nullopt;
}

Diagnosis RankWatch::diagnose() const {
  std::vector<FlightView> views;
  if (own_ != nullptr) views.push_back(own_->view());
  std::lock_guard lock(mutex_);
  for (const auto& peer : peers_) views.push_back(peer->view());
  std::sort(views.begin(), views.end(), [](const FlightView& a, const FlightView& b) { return a.rank < b.rank; });
  return runtime::diagnose(views, {}, flight_clock());
}

bool RankWatch::tells_root() const {
  const Diagnosis d = diagnose();
  for (const RankFate& f : d.others) {
    if (f.kind == FateKind::kRuns || f.kind == FateKind::kFollowed) return f.rank == recorder_.header().rank;
  }
  return true;
}

void RankWatch::watch() {
  while (!done_) {
    record_stop(*this);
    recorder_.beat();
    if (parent_ != 0 && ::getppid() != parent_) {
      parent_ = 0;
      ::kill(::getpid(), SIGTERM);
    }
    look(flight_clock());
    std::this_thread::sleep_for(kLook);
  }
}

void RankWatch::look(int64_t now) {
  absl::Status failed;
  {
    std::lock_guard lock(mutex_);
    if (over_) return;
    look_at_peers(now);
    look_at_time(now);
    failed = !verdict_.ok() ? verdict_ : communicator_ != nullptr ? communicator_->failure() : absl::OkStatus();
    if (failed.ok()) return;
    if (failed_ == 0) failed_ = now;
    if (now - failed_ < kLinger) return;
  }
  if (give_up_) give_up_(failed);
}

// Holding mutex_, as those below.
void RankWatch::look_at_peers(int64_t now) {
  if (communicator_ == nullptr || failed_ != 0) return;
  const bool quiet = std::any_of(peers_.begin(), peers_.end(), [&](const auto& peer) {
    return is_wordless(peer->header()) && now - peer->header().heartbeat > kQuiet;
  });
  if (!quiet) return;
  if (const std::optional<int> lost = dead_peer())
    end_run(absl::UnavailableError(cat("rank ", *lost, " died: its process has ended")));
}

void RankWatch::look_at_time(int64_t now) {
  const FlightHeader& h = recorder_.header();
  if (failed_ != 0 || own_ == nullptr) return;
  const Phase phase = h.phase;
  const int64_t waiting_since = h.waiting != 0 ? h.waiting_since.load() : 0;
  // A checkpoint takes as long as there is to write; what is limited is the time without progress.
  const bool gets_on = phase == Phase::kCheckpoint;
  const int64_t since = gets_on ? std::max(h.phase_since.load(), h.progress.load()) : h.phase_since.load();
  const milliseconds limit = limits_.of(phase);
  const std::string what = cat(gets_on ? "without progress " : "", "in the phase ", enum_name(phase));
  // Ranks that write, or whose samples are still to come, speak to each other all the time: a short wait is none.
  const bool speaks = gets_on || phase == Phase::kData;
  const bool waits = waiting_since != 0 && (!speaks || now - waiting_since > kQuiet);
  if (waits) {
    warn(waiting_since, limits_.of_collective(phase), now, "at an operation between ranks");
  } else {
    warn(since, limit, now, what);
  }
  if (now - since < nanoseconds(limit)) return;
  const std::string text = cat("not done after ", std::chrono::duration<double>(limit).count(), " s ", what);
  // Who waits for another rank is not the cause.
  end_run(waits ? absl::UnavailableError(text) : absl::DeadlineExceededError(text));
}

void RankWatch::warn(int64_t since, milliseconds limit, int64_t now, const std::string& what) {
  if (since <= warned_ || now - since < nanoseconds(limit) / 2) return;
  warned_ = since;
  std::fprintf(stderr, "%s\n",
               cat("warning: rank ", recorder_.header().rank, ": ",
                   static_cast<double>((now - since) / (100 * kMillisecond)) / 10, " s ", what, ": ",
                   own_->view().where(), "; given up after ", std::chrono::duration<double>(limit).count(), " s")
                   .c_str());
}

void RankWatch::end_run(absl::Status why) {
  verdict_ = std::move(why);
  if (communicator_ != nullptr)
    communicator_->abort(cat("rank ", recorder_.header().rank, ": ", verdict_.message(), ", ", where()));
}

}  // namespace partita::runtime
