// What ranks tell each other while a step runs: a few numbers, of which each learns the largest over all ranks.
#pragma once

#include <array>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "runtime/communicate/collective.h"

namespace partita::runtime {

inline constexpr size_t kExchangedFlags = 9;
using ExchangedFlags = std::array<int64_t, kExchangedFlags>;

class FlagExchange {
 public:
  // A null communicator is a run of one rank; else it outlives this.
  explicit FlagExchange(Communicator* communicator) : communicator_(communicator) {}
  // Collective, in turn: the second gives the largest of each flag that was given to the first. In between the step's
  // own collectives run.
  void begin(const ExchangedFlags& mine);
  absl::StatusOr<ExchangedFlags> end();

 private:
  Communicator* const communicator_;
  ExchangedFlags flags_ = {};
  Ticket ticket_ = 0;
};

}  // namespace partita::runtime
