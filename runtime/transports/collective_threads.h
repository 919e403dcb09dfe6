// All ranks as threads of one process. Waits block on condition variables; a message is one memcpy, made by whichever
// side comes second.
#pragma once

#include <memory>
#include <span>

#include "absl/status/statusor.h"
#include "runtime/communicate/collective.h"

namespace partita::runtime {

// Hands each rank its Communicator. May be destroyed before them.
class ThreadWorld {
 public:
  explicit ThreadWorld(int size, const CommunicatorOptions& options = {});
  ~ThreadWorld();

  int size() const;
  // Once per rank, from any thread; `recorder` in place of the options'. InvalidArgument for a rank outside,
  // FailedPrecondition for one already taken.
  absl::StatusOr<std::unique_ptr<Communicator>> communicator(int rank, FlightRecorder* recorder = nullptr);

 private:
  struct Shared;
  class Seat;
  std::shared_ptr<Shared> shared_;
  CommunicatorOptions options_;
};

// How a run ended, from how each of its ranks did: the first error of a rank that failed by itself; where there is
// none, the first Unavailable, of ranks that lost another.
absl::Status outcome_of(std::span<const absl::Status> ranks);

}  // namespace partita::runtime
