// The bytes of a flight record: a header, a ring of events, then the names of program steps, one a line. The file is
// mapped by the rank that writes it and by whoever reads it, so that it is whole whatever ends the rank: no system call
// writes it. One version of the program reads it; times are nanoseconds by flight_clock().
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace partita::runtime {

// What a rank is at. Each has a limit of its own (runtime/launch/timeouts.h).
enum class Phase : uint8_t { kStart, kData, kStep, kCheckpoint, kEvaluation };

enum class FlightEventKind : uint8_t {
  kNone,
  kStep,    // a step of the program begins, and ends the one before
  kIdle,    // the program's schedule has been run
  kIssued,  // a collective operation was started
  kWaits,   // it has had no message for a while: from whom
  kDone,    // it has ended
};

struct FlightEvent {
  int64_t time = 0;
  int64_t training_step = 0;
  uint64_t ticket = 0;  // of a collective
  int32_t step = -1;    // among the names of program steps, or of a collective the step that it serves
  int32_t micro_batch = 0;
  FlightEventKind kind = FlightEventKind::kNone;
  uint8_t peers = 0;  // how many of `peer`
  char name[14] = {};
  int32_t peer[8] = {};  // world ranks
  char label[72] = {};
};

enum class FlightEnd : int32_t {
  kRunning,  // or ended without a word
  kClean,
  kFailed,    // of itself
  kFollowed,  // of another rank's end
  kSignal,    // a signal that a program gives itself: SIGSEGV, SIGABRT
  kTold,      // told to stop
};

struct FlightHeader {
  char magic[8] = {};
  int32_t version = 0, rank = 0, size = 0, reserved = 0;
  int64_t process = 0, process_start = 0;  // its number, and when it started, by the kernel's clock
  uint64_t host_key = 0;                   // the same where process numbers mean the same
  uint64_t nonce = 0;                      // of this record alone
  int64_t started = 0;
  int64_t wall = 0;  // nanoseconds since 1970 of time 0, as the host's clock was at the start
  char host[64] = {};
  std::atomic<int64_t> heartbeat;
  std::atomic<uint64_t> events;  // so far
  std::atomic<int64_t> training_step, phase_since;
  std::atomic<Phase> phase;
  std::atomic<uint64_t> waiting;  // the ticket that the rank waits for; 0: none
  std::atomic<int64_t> waiting_since;
  std::atomic<FlightEnd> end;
  std::atomic<int32_t> end_code;  // exit code or signal
  std::atomic<int64_t> end_time;
  std::atomic<int64_t> names_bytes;
  std::atomic<int64_t> progress;  // when work that takes long last got on
  std::atomic<uint64_t> start;    // rank 0's nonce, of all ranks that met; 0: they have not
  std::atomic<int64_t> met;       // the moment of that, one for all ranks, by each one's own clock
  char at[1000] = {};             // what the work is that takes long; may be empty
  char message[2000] = {};
};

inline constexpr char kFlightMagic[8] = {'P', 'F', 'L', 'I', 'G', 'H', 'T', '1'};
inline constexpr int32_t kFlightVersion = 4;
inline constexpr size_t kFlightEvents = 2048;  // a power of two
inline constexpr size_t kFlightHeaderBytes = 4096;
struct FlightSlot {
  std::atomic<uint64_t> number;  // of the event, from 1; 0 while it is written
  FlightEvent event;
};
inline constexpr size_t kFlightNamesAt = kFlightHeaderBytes + kFlightEvents * sizeof(FlightSlot);
static_assert(sizeof(FlightHeader) <= kFlightHeaderBytes);

}  // namespace partita::runtime
