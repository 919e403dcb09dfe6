#include "runtime/record/flight_recorder.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <mutex>
#include <new>
#include <random>

#include "base/cat.h"
#include "base/host/lost_file.h"
#include "base/mapped_file.h"
#include "base/status.h"
#include "runtime/program/program_check.h"
#include "runtime/record/process.h"

namespace partita::runtime {
namespace {

constexpr auto kRelaxed = std::memory_order_relaxed;

template <size_t N>
void copy_text(char (&to)[N], std::string_view text) {
  const size_t n = std::min(text.size(), N - 1);
  std::memcpy(to, text.data(), n);
  to[n] = '\0';
}

int64_t nanoseconds_of(clockid_t clock) {
  timespec now{};
  ::clock_gettime(clock, &now);
  return int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

// Whether the path is that of the open file.
bool is_file(int descriptor, const std::string& path) {
  struct stat open {
  }, named{};
  return ::fstat(descriptor, &open) == 0 && ::stat(path.c_str(), &named) == 0 && open.st_ino == named.st_ino &&
         open.st_dev == named.st_dev;
}

enum class Found { kNothing, kInUse, kNeverMet, kMet };

// The record at a path. In use: of a process that runs, another run's in the same folder.
Found find_record(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  alignas(FlightHeader) std::byte head[sizeof(FlightHeader)];
  const bool read = fd >= 0 && ::read(fd, head, sizeof head) == static_cast<ssize_t>(sizeof head);
  if (fd >= 0) ::close(fd);
  if (!read) return Found::kNothing;
  const auto* header = reinterpret_cast<const FlightHeader*>(head);
  if (header->host_key == host_key() && process_state(header->process, header->process_start) != '\0')
    return Found::kInUse;
  return header->start != 0 ? Found::kMet : Found::kNeverMet;
}

// A start whose ranks never met says less than the one before it, which may lie there. The error where it stays.
std::error_code put_away(const std::string& path, Found found, FormerRecord former) {
  std::error_code ec;
  const std::filesystem::path from(path), folder = from.parent_path() / kFormerStart;
  if (former == FormerRecord::kIsKept && found == Found::kMet) {
    std::filesystem::create_directories(folder, ec);
    std::filesystem::rename(from, folder / from.filename(), ec);
  }
  std::filesystem::remove(from, ec);
  return ec;
}

// What a signal handler can reach. Of ranks that are threads, a crash outside their own threads is the last one's.
std::atomic<FlightHeader*> any_record = nullptr;
thread_local FlightHeader* own_record = nullptr;

void note_end(FlightHeader& header, FlightEnd how, int code, std::string_view message) {
  FlightEnd running = FlightEnd::kRunning;
  if (!header.end.compare_exchange_strong(running, how)) return;
  header.end_code = code;
  header.end_time = flight_clock();
  copy_text(header.message, message);
}

// Others' handlers, as MPI installs some, come after ours.
constexpr int kCrashes[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT};
struct sigaction after[std::size(kCrashes)];

void on_crash(int signal, siginfo_t* info, void*) {
  if (signal == SIGBUS) end_if_lost_file(*info);  // it tells why itself
  FlightHeader* header = own_record != nullptr ? own_record : any_record.load();
  if (header != nullptr) note_end(*header, FlightEnd::kSignal, signal, "");
  ::sigaction(signal, &after[std::find(std::begin(kCrashes), std::end(kCrashes), signal) - kCrashes], nullptr);
  ::raise(signal);
}

// Pages that do not exist yet are made now, and a full disk is told now. 0, or the error.
int make_room(int descriptor) {
  return ::ftruncate(descriptor, kFlightNamesAt) != 0 ? errno : ::posix_fallocate(descriptor, 0, kFlightNamesAt);
}

}  // namespace

int64_t flight_clock() { return nanoseconds_of(CLOCK_MONOTONIC); }

int64_t wall_clock() { return nanoseconds_of(CLOCK_REALTIME); }

std::string flight_file(const std::string& folder, int rank) { return cat(folder, "/rank-", rank, ".flight"); }

void put_away_records(const std::string& folder, int from) {
  std::error_code ec;
  std::vector<std::string> paths;
  for (const auto& entry : std::filesystem::directory_iterator(folder, ec)) {
    int rank = -1;
    const std::string name = entry.path().filename().string();
    if (std::sscanf(name.c_str(), "rank-%d.flight", &rank) == 1 && rank >= from &&
        flight_file(folder, rank) == entry.path())
      paths.push_back(entry.path().string());
  }
  for (const std::string& path : paths) {
    if (const Found found = find_record(path); found != Found::kInUse) put_away(path, found, FormerRecord::kIsKept);
  }
}

absl::StatusOr<int> make_flight_file(const std::string& path, FormerRecord former) {
  int fd = -1;
  const Found found = path.empty() ? Found::kNothing : find_record(path);
  if (path.empty() || found == Found::kInUse) {
    fd = ::memfd_create("flight record", MFD_CLOEXEC);
  } else {
    std::error_code ec;
    const std::filesystem::path folder = std::filesystem::path(path).parent_path();
    std::filesystem::create_directories(folder, ec);
    if (ec) return file_error("create the folder", folder.string(), ec.value());
    ec = put_away(path, found, former);
    if (ec) return file_error("replace", path, ec.value());
    fd = ::open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
  }
  if (fd < 0) return file_error("create", path.empty() ? "a flight record" : path, errno);
  // On a full disk a run goes on for as long as it can.
  if (const int error = make_room(fd); error != 0 && !path.empty()) {
    std::fprintf(stderr, "note: no room for the flight record %s (%s): it stays in memory\n", path.c_str(),
                 std::strerror(error));
    ::close(fd);
    ::unlink(path.c_str());
    return make_flight_file("", former);
  }
  return fd;
}

absl::StatusOr<std::unique_ptr<FlightRecorder>> FlightRecorder::create(const std::string& path, int rank, int size,
                                                                       FormerRecord former) {
  PARTITA_ASSIGN_OR_RETURN(const int fd, make_flight_file(path, former));
  return open(fd, path, rank, size);
}

absl::StatusOr<std::unique_ptr<FlightRecorder>> FlightRecorder::open(int descriptor, std::string path, int rank,
                                                                     int size) {
  std::unique_ptr<FlightRecorder> recorder(new FlightRecorder());
  recorder->descriptor_ = descriptor;
  recorder->path_ = std::move(path);
  // Where not even memory may be a file of that size (ulimit -f), the record is this process's own.
  if (make_room(descriptor) != 0) {
    ::close(descriptor);
    recorder->descriptor_ = descriptor = -1;
  }
  void* memory = ::mmap(nullptr, kFlightNamesAt, PROT_READ | PROT_WRITE,
                        descriptor < 0 ? MAP_SHARED | MAP_ANONYMOUS : MAP_SHARED, descriptor, 0);
  if (memory == MAP_FAILED) return file_error("map", recorder->path_, errno);
  FlightHeader* header = new (memory) FlightHeader();
  recorder->header_ = header;
  recorder->slots_ = reinterpret_cast<FlightSlot*>(static_cast<std::byte*>(memory) + kFlightHeaderBytes);
  std::memset(static_cast<void*>(recorder->slots_), 0, kFlightEvents * sizeof(FlightSlot));
  header->version = kFlightVersion;
  header->rank = rank;
  header->size = size;
  header->process = ::getpid();
  header->process_start = process_start(::getpid());
  header->host_key = host_key();
  std::random_device random;
  header->nonce = (uint64_t{random()} << 32) | random();
  header->started = flight_clock();
  header->wall = wall_clock() - header->started;
  ::gethostname(header->host, sizeof header->host - 1);
  header->heartbeat = header->started;
  header->phase_since = header->started;
  std::memcpy(header->magic, kFlightMagic, sizeof kFlightMagic);
  return recorder;
}

FlightRecorder::~FlightRecorder() {
  if (header_ != nullptr) {
    if (header_->end == FlightEnd::kClean && is_file(descriptor_, path_)) {
      std::error_code ec;
      const std::filesystem::path folder = std::filesystem::path(path_).parent_path();
      ::unlink(path_.c_str());
      if (header_->rank == 0) {
        for (const char* former : {kFormerStart, kToldStart}) std::filesystem::remove_all(folder / former, ec);
      }
      ::rmdir(folder.c_str());  // where it was the last
    }
    FlightHeader* mine = header_;
    any_record.compare_exchange_strong(mine, nullptr);
    if (own_record == header_) own_record = nullptr;
    ::munmap(header_, kFlightNamesAt);
  }
  if (descriptor_ >= 0) ::close(descriptor_);
}

absl::StatusOr<int32_t> FlightRecorder::add_program(const Program& program) {
  std::string text;
  int32_t steps = 0;
  for (const ProgramSegment& segment : program.segments) {
    for (const Step& step : segment.steps) {
      append(text, describe_step(program, step), "\n");
      ++steps;
    }
  }
  for (size_t at = 0; at < text.size();) {
    const ssize_t n = ::pwrite(descriptor_, text.data() + at, text.size() - at,
                               static_cast<off_t>(kFlightNamesAt) + header_->names_bytes.load());
    if (n <= 0) break;  // a full disk: steps have numbers, and no names
    header_->names_bytes += n;
    at += static_cast<size_t>(n);
  }
  return std::exchange(names_, names_ + steps);
}

void FlightRecorder::meet(uint64_t start) {
  header_->met = flight_clock();
  header_->start = start;
  // Where the file is another host's, who this was is known there now, should this host be lost.
  ::msync(header_, kFlightHeaderBytes, path_.empty() ? MS_ASYNC : MS_SYNC);
}

void FlightRecorder::enter(Phase phase, int64_t training_step) {
  header_->training_step.store(training_step, kRelaxed);
  header_->phase_since.store(flight_clock(), kRelaxed);
  header_->phase.store(phase, kRelaxed);
}

void FlightRecorder::beat() { header_->heartbeat.store(flight_clock(), kRelaxed); }

void FlightRecorder::progress() { header_->progress.store(flight_clock(), kRelaxed); }

void FlightRecorder::at(std::string_view what) {
  if (what != std::string_view(header_->at)) copy_text(header_->at, what);
}

FlightEvent* FlightRecorder::begin_event(FlightEventKind kind, uint64_t& number) {
  number = header_->events.fetch_add(1, kRelaxed) + 1;
  FlightSlot& slot = slots_[(number - 1) % kFlightEvents];
  slot.number.store(0, std::memory_order_release);
  slot.event.time = flight_clock();
  slot.event.training_step = header_->training_step.load(kRelaxed);
  slot.event.kind = kind;
  return &slot.event;
}

void FlightRecorder::finish_event(uint64_t number) {
  slots_[(number - 1) % kFlightEvents].number.store(number, std::memory_order_release);
}

void FlightRecorder::step(int32_t number, int32_t micro_batch) {
  uint64_t event = 0;
  FlightEvent* e = begin_event(FlightEventKind::kStep, event);
  e->step = number;
  e->micro_batch = micro_batch;
  finish_event(event);
}

void FlightRecorder::idle() {
  uint64_t event = 0;
  begin_event(FlightEventKind::kIdle, event);
  finish_event(event);
}

void FlightRecorder::note(FlightEventKind kind, uint64_t ticket, int64_t step, std::string_view name,
                          std::string_view label, std::span<const int> peers) {
  uint64_t event = 0;
  FlightEvent* e = begin_event(kind, event);
  e->ticket = ticket;
  e->step = static_cast<int32_t>(step);
  std::memset(e->name, 0, sizeof e->name);  // full, it has no end
  std::memcpy(e->name, name.data(), std::min(name.size(), sizeof e->name));
  copy_text(e->label, label);
  e->peers = static_cast<uint8_t>(std::min(peers.size(), std::size(e->peer)));
  std::copy_n(peers.begin(), e->peers, e->peer);
  finish_event(event);
}

void FlightRecorder::issued(uint64_t ticket, int64_t step, std::string_view name, std::string_view label) {
  note(FlightEventKind::kIssued, ticket, step, name, label, {});
}

void FlightRecorder::waits(uint64_t ticket, int64_t step, std::string_view name, std::string_view label,
                           std::span<const int> peers) {
  note(FlightEventKind::kWaits, ticket, step, name, label, peers);
}

void FlightRecorder::done(uint64_t ticket) {
  uint64_t event = 0;
  begin_event(FlightEventKind::kDone, event)->ticket = ticket;
  finish_event(event);
}

void FlightRecorder::waiting(uint64_t ticket) {
  if (own_record != header_) return;
  if (ticket != 0) header_->waiting_since.store(flight_clock(), kRelaxed);
  header_->waiting.store(ticket, kRelaxed);
}

void FlightRecorder::end(FlightEnd how, int code, std::string_view message) { note_end(*header_, how, code, message); }

void FlightRecorder::adopt_thread() {
  own_record = header_;
  any_record = header_;
  static std::mutex mutex;
  std::lock_guard lock(mutex);
  for (size_t k = 0; k < std::size(kCrashes); ++k) {
    struct sigaction now {
    }, ours{};
    ours.sa_sigaction = on_crash;
    ours.sa_flags = SA_ONSTACK | SA_SIGINFO;
    if (::sigaction(kCrashes[k], nullptr, &now) != 0 || now.sa_sigaction == on_crash) continue;
    after[k] = now;
    ::sigaction(kCrashes[k], &ours, nullptr);
  }
}

}  // namespace partita::runtime
