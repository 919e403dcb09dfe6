// A flight record as others see it: another process while its rank runs, or anybody afterwards.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/enum_names.h"
#include "runtime/record/flight_format.h"

namespace partita::runtime {

// What the record says at one moment. Times are by flight_clock(), or since 1970.
struct FlightView {
  int rank = 0, size = 1;
  std::string host;
  int64_t process = 0, process_start = 0;
  uint64_t host_key = 0;
  int64_t started = 0, heartbeat = 0;
  int64_t wall = 0;    // since 1970, of flight_clock() 0
  uint64_t start = 0;  // one of all ranks of a start that met; 0: they have not
  int64_t met = 0;
  Phase phase = Phase::kStart;
  int64_t phase_since = 0, training_step = 0;
  std::string at;        // what work it is at that takes long; may be empty
  uint64_t waiting = 0;  // the ticket that it waits for, of a collective
  int64_t waiting_since = 0;
  FlightEnd end = FlightEnd::kRunning;
  int end_code = 0;
  int64_t end_time = 0;
  std::string message;
  std::vector<FlightEvent> events;  // oldest first
  std::vector<std::string> names;   // of program steps

  // The program step that it is at; null between schedules.
  const FlightEvent* program_step() const;
  // The collective that it waits for, and what that has waited for last; null where it waits for none, or where that is
  // not known.
  const FlightEvent* collective() const;
  const FlightEvent* last_wait() const;
  // The ranks that it waits for, as far as is known.
  std::vector<int> waits_for() const;
  // "training step 42, in all_reduce 'Gemm 'fc1'' (step 12), waiting for rank 1".
  std::string where() const;
  // Of that the operation: "all_reduce 'Gemm 'fc1'' (step 12)".
  std::string operation() const;
  // "step 7 'fused_2' ('MatMul 'fc1'')".
  std::string step_name(int32_t number) const;
};

// A record that is mapped, so that it stays when its file and its writer are gone.
class FlightReader {
 public:
  // The descriptor stays the caller's. DataLoss where it is no record.
  static absl::StatusOr<std::unique_ptr<FlightReader>> map(int descriptor);
  static absl::StatusOr<std::unique_ptr<FlightReader>> open(const std::string& path);
  ~FlightReader();
  FlightReader(const FlightReader&) = delete;
  FlightReader& operator=(const FlightReader&) = delete;

  const FlightHeader& header() const { return *header_; }
  FlightView view() const;

 private:
  FlightReader() = default;
  int descriptor_ = -1;
  const FlightHeader* header_ = nullptr;
};

// The records of a folder, by rank, with times since 1970: they may be of several hosts, whose clocks need not agree.
// What an earlier start left of ranks that the last one has not is left out. NotFound where it holds none; DataLoss,
// naming the file.
absl::StatusOr<std::vector<FlightView>> read_flight_records(const std::string& folder);

// Text about ranks that are waited for: "rank 3", "ranks 0, 2".
std::string name_ranks(const std::vector<int>& ranks);

}  // namespace partita::runtime

// As `--timeout` names them.
template <>
inline constexpr auto partita::kEnumNames<partita::runtime::Phase> = partita::name_table("start", "data", "step",
                                                                                         "checkpoint", "evaluation");
