#include "runtime/record/flight_view.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <set>

#include "absl/strings/str_split.h"
#include "base/cat.h"
#include "base/mapped_file.h"
#include "base/quote.h"
#include "base/status.h"

namespace partita::runtime {

const FlightEvent* FlightView::program_step() const {
  for (auto e = events.rbegin(); e != events.rend(); ++e) {
    if (e->kind == FlightEventKind::kStep) return &*e;
    if (e->kind == FlightEventKind::kIdle) return nullptr;
  }
  return nullptr;
}

const FlightEvent* FlightView::collective() const {
  for (auto e = events.rbegin(); waiting != 0 && e != events.rend(); ++e) {
    const bool names = e->kind == FlightEventKind::kIssued || e->kind == FlightEventKind::kWaits;
    if (names && e->ticket == waiting) return &*e;
  }
  return nullptr;
}

// Of the collective that the rank waits for, or of one before it, whose turn comes first.
const FlightEvent* FlightView::last_wait() const {
  std::set<uint64_t> done;
  for (auto e = events.rbegin(); waiting != 0 && e != events.rend(); ++e) {
    if (e->kind == FlightEventKind::kDone) done.insert(e->ticket);
    if (e->kind == FlightEventKind::kWaits) return done.contains(e->ticket) ? nullptr : &*e;
  }
  return nullptr;
}

std::vector<int> FlightView::waits_for() const {
  const FlightEvent* e = last_wait();
  return e == nullptr ? std::vector<int>() : std::vector<int>(e->peer, e->peer + e->peers);
}

std::string FlightView::step_name(int32_t number) const {
  if (number >= 0 && static_cast<size_t>(number) < names.size()) return names[static_cast<size_t>(number)];
  return cat("step ", number);
}

std::string FlightView::operation() const {
  const FlightEvent* e = collective();
  if (const FlightEvent* held = last_wait()) e = held;
  if (e == nullptr) {
    const FlightEvent* step = program_step();
    return step == nullptr ? "" : step_name(step->step);
  }
  std::string text(e->name, ::strnlen(e->name, sizeof e->name));
  if (e->label[0] != '\0') append(text, " ", quote(e->label));
  return cat(text, " (step ", e->step, ")");
}

std::string FlightView::where() const {
  if (phase == Phase::kStart) return "at the start";
  std::string text = cat("training step ", training_step + 1);
  if (phase == Phase::kData) append(text, ", waiting for data");
  if (phase == Phase::kCheckpoint) append(text, ", at a checkpoint");
  if (phase == Phase::kEvaluation) append(text, ", in an evaluation");
  if (const std::string what = operation(); !what.empty()) append(text, ", in ", what);
  if (const std::vector<int> peers = waits_for(); !peers.empty()) append(text, ", waiting for ", name_ranks(peers));
  if (!at.empty()) append(text, "; ", at);
  return text;
}

absl::StatusOr<std::unique_ptr<FlightReader>> FlightReader::map(int descriptor) {
  std::unique_ptr<FlightReader> reader(new FlightReader());
  struct stat status {};
  if (::fstat(descriptor, &status) != 0 || static_cast<size_t>(status.st_size) < kFlightNamesAt)
    return absl::DataLossError("no flight record: it is too short");
  reader->descriptor_ = ::fcntl(descriptor, F_DUPFD_CLOEXEC, 0);
  void* memory = ::mmap(nullptr, kFlightNamesAt, PROT_READ, MAP_SHARED, descriptor, 0);
  if (memory == MAP_FAILED) return file_error("map", "a flight record", errno);
  reader->header_ = static_cast<const FlightHeader*>(memory);
  const FlightHeader& h = *reader->header_;
  if (std::memcmp(h.magic, kFlightMagic, sizeof kFlightMagic) != 0 || h.version != kFlightVersion)
    return absl::DataLossError("no flight record of this version");
  return reader;
}

absl::StatusOr<std::unique_ptr<FlightReader>> FlightReader::open(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return file_error("open", path, errno);
  auto reader = map(fd);
  ::close(fd);
  return reader.ok() ? std::move(reader) : with_context(reader.status(), quote(path, 1000));
}

FlightReader::~FlightReader() {
  if (header_ != nullptr) ::munmap(const_cast<FlightHeader*>(header_), kFlightNamesAt);
  if (descriptor_ >= 0) ::close(descriptor_);
}

FlightView FlightReader::view() const {
  const FlightHeader& h = *header_;
  FlightView v;
  v.rank = h.rank, v.size = h.size;
  v.host = std::string(h.host, ::strnlen(h.host, sizeof h.host));
  v.process = h.process, v.process_start = h.process_start, v.host_key = h.host_key;
  v.started = h.started, v.heartbeat = h.heartbeat, v.wall = h.wall;
  v.start = h.start, v.met = h.met;
  v.phase = h.phase, v.phase_since = h.phase_since, v.training_step = h.training_step;
  v.waiting = h.waiting, v.waiting_since = h.waiting_since;
  v.end = h.end, v.end_code = h.end_code, v.end_time = h.end_time;
  v.at = std::string(h.at, ::strnlen(h.at, sizeof h.at));
  v.message = std::string(h.message, ::strnlen(h.message, sizeof h.message));
  const auto* slots =
      reinterpret_cast<const FlightSlot*>(reinterpret_cast<const std::byte*>(header_) + kFlightHeaderBytes);
  std::vector<std::pair<uint64_t, FlightEvent>> events;
  for (size_t k = 0; k < kFlightEvents; ++k) {
    const uint64_t number = slots[k].number.load(std::memory_order_acquire);
    FlightEvent event = slots[k].event;
    std::atomic_thread_fence(std::memory_order_acquire);
    if (number == 0 || slots[k].number.load(std::memory_order_relaxed) != number) continue;
    event.label[sizeof event.label - 1] = '\0';
    event.peers = static_cast<uint8_t>(std::min<size_t>(event.peers, std::size(event.peer)));
    events.emplace_back(number, event);
  }
  std::sort(events.begin(), events.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  for (const auto& [number, event] : events) v.events.push_back(event);
  std::string names(static_cast<size_t>(std::clamp<int64_t>(h.names_bytes, 0, int64_t{1} << 30)), '\0');
  const ssize_t n = ::pread(descriptor_, names.data(), names.size(), static_cast<off_t>(kFlightNamesAt));
  names.resize(static_cast<size_t>(std::max<ssize_t>(n, 0)));
  v.names = absl::StrSplit(names, '\n');
  return v;
}

namespace {

// The clocks of hosts begin when they do, and are set at will: what they have in common is the moment when all ranks
// met, which is that of `first`.
void take_wall_clock(const FlightView& first, FlightView& v) {
  const bool together = v.start != 0 && v.start == first.start;
  const int64_t shift = together ? first.wall + first.met - v.met : v.wall;
  for (int64_t* time : {&v.started, &v.heartbeat, &v.phase_since, &v.waiting_since, &v.end_time}) *time += shift;
  for (FlightEvent& e : v.events) e.time += shift;
}

}  // namespace

absl::StatusOr<std::vector<FlightView>> read_flight_records(const std::string& folder) {
  std::vector<FlightView> views;
  std::error_code ec;
  for (const auto& entry : std::filesystem::directory_iterator(folder, ec)) {
    const std::string name = entry.path().filename().string();
    if (!name.starts_with("rank-") || !name.ends_with(".flight")) continue;
    PARTITA_ASSIGN_OR_RETURN(const auto reader, FlightReader::open(entry.path().string()));
    views.push_back(reader->view());
  }
  if (views.empty()) return absl::NotFoundError(cat(quote(folder, 1000), " holds no flight records (rank-N.flight)"));
  std::sort(views.begin(), views.end(), [](const FlightView& a, const FlightView& b) { return a.rank < b.rank; });
  // Every start has a rank 0, and makes its record anew.
  const FlightView first = views.front();
  std::erase_if(views, [&](const FlightView& v) { return v.start != first.start; });
  for (FlightView& v : views) take_wall_clock(first, v);
  return views;
}

std::string name_ranks(const std::vector<int>& ranks) {
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (size_t k = 0; k < ranks.size(); ++k) append(text, k == 0 ? "" : ", ", ranks[k]);
  return text;
}

}  // namespace partita::runtime
