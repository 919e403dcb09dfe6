#include "runtime/communicate/work_together.h"

#include <cstdint>
#include <future>
#include <new>

#include "base/fault.h"
#include "runtime/communicate/exchanges.h"

namespace partita::runtime {

absl::Status work_together(Communicator* communicator, std::string_view label, FlightRecorder* recorder,
                           const std::function<absl::Status()>& work) {
  std::future<absl::Status> outcome = std::async(std::launch::async, [&]() -> absl::Status {
    try {
      return work();
    } catch (...) {
      return status_of_exception();
    }
  });
  int64_t working = 1;
  absl::Status heard;
  while (working != 0 && heard.ok()) {
    const bool done = outcome.wait_for(kTurn) == std::future_status::ready;
    working = !done;
    heard = all_reduce(communicator, {&working, 1}, ReduceOp::kMax, label);
    if (done && recorder != nullptr) recorder->progress();
  }
  const absl::Status mine = outcome.get();
  return heard.ok() || !mine.ok() ? all_ok(communicator, mine, label) : heard;
}

}  // namespace partita::runtime
