// A rank's flight record, as the rank writes it: what it is at, and its last operations.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "runtime/program/program.h"
#include "runtime/record/flight_format.h"

namespace partita::runtime {

// Where a rank of a run has its record, in a folder of such.
std::string flight_file(const std::string& folder, int rank);

// What becomes of a record that is at the path: its start has been told of, or is to be (take_last_start()).
enum class FormerRecord { kGoes, kIsKept };

// A new record's file: at `path`, whose folder is made, or nameless in memory where that is empty. The caller closes
// it. Errors: of files.
absl::StatusOr<int> make_flight_file(const std::string& path, FormerRecord former);

// Where those are kept, in the folder of the records; and where they are once they have been told of.
inline constexpr const char *kFormerStart = ".former", *kToldStart = "former";
// Keeps those of ranks from `from` on, but what a process of this host still writes.
void put_away_records(const std::string& folder, int from);

class FlightRecorder {
 public:
  // Owns the descriptor. `path`: what goes away after a clean end; may be empty.
  static absl::StatusOr<std::unique_ptr<FlightRecorder>> open(int descriptor, std::string path, int rank, int size);
  static absl::StatusOr<std::unique_ptr<FlightRecorder>> create(const std::string& path, int rank, int size,
                                                                FormerRecord former = FormerRecord::kGoes);
  ~FlightRecorder();
  FlightRecorder(const FlightRecorder&) = delete;
  FlightRecorder& operator=(const FlightRecorder&) = delete;

  int descriptor() const { return descriptor_; }
  const FlightHeader& header() const { return *header_; }

  // The names of a program's steps; the number of the first one.
  absl::StatusOr<int32_t> add_program(const Program& program);

  // All ranks of this start have met, just now. `start`: the nonce of rank 0's record.
  void meet(uint64_t start);
  void enter(Phase phase, int64_t training_step);
  void beat();
  // Work that takes long got on. From any thread.
  void progress();
  // What that work is, as where() says it; empty when it is done. From one thread at a time.
  void at(std::string_view what);
  // A step of a program begins: the first one's number and its own. Costs a look at the clock.
  void step(int32_t number, int32_t micro_batch);
  void idle();
  // Collective operations, by their communicator's tickets. From any thread.
  void issued(uint64_t ticket, int64_t step, std::string_view name, std::string_view label);
  void waits(uint64_t ticket, int64_t step, std::string_view name, std::string_view label, std::span<const int> peers);
  void done(uint64_t ticket);
  // The rank's own thread waits for a ticket, or no longer.
  void waiting(uint64_t ticket);

  // The first end counts.
  void end(FlightEnd how, int code, std::string_view message);
  // The calling thread is the rank's: waiting() counts there alone, and its crashes, with those of threads that belong
  // to no rank, are this rank's end.
  void adopt_thread();

 private:
  FlightRecorder() = default;
  FlightEvent* begin_event(FlightEventKind kind, uint64_t& number);
  void finish_event(uint64_t number);
  void note(FlightEventKind kind, uint64_t ticket, int64_t step, std::string_view name, std::string_view label,
            std::span<const int> peers);

  int descriptor_ = -1;
  std::string path_;
  FlightHeader* header_ = nullptr;
  FlightSlot* slots_ = nullptr;
  int32_t names_ = 0;
};

// The same for all processes of a host, and never set: limits hold whatever is done to the host's clock.
int64_t flight_clock();
// Nanoseconds since 1970.
int64_t wall_clock();

}  // namespace partita::runtime
