// Work of each rank that may take long, while the ranks tell each other that they are there.
#pragma once

#include <chrono>
#include <functional>
#include <string_view>

#include "absl/status/status.h"
#include "runtime/communicate/collective.h"
#include "runtime/record/flight_recorder.h"

namespace partita::runtime {

// How long a rank lets the others wait before it speaks to them.
inline constexpr std::chrono::milliseconds kTurn{20};

// Collective: each rank runs its `work` on a thread of its own, which uses no communicator. All speak to each other
// until the last has done: so one that is gone or stopped is missed within the communicator's timeout, however long the
// work takes. The outcome is that of all_ok(). Who has done gets on for as long as the others answer; who has not says
// so itself to the recorder (may be null).
absl::Status work_together(Communicator* communicator, std::string_view label, FlightRecorder* recorder,
                           const std::function<absl::Status()>& work);

}  // namespace partita::runtime
