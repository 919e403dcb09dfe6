#include "runtime/communicate/measured_communicator.h"

#include <chrono>
#include <utility>

namespace partita::runtime {

Ticket MeasuredCommunicator::start(CollectiveOp op) {
  const GroupId group = op.group;
  const Ticket ticket = inner_.start(std::move(op));
  const std::lock_guard lock(mutex_);  // nobody waits for a ticket that is not handed out yet
  groups_[ticket] = group;
  return ticket;
}

absl::Status MeasuredCommunicator::wait(Ticket ticket) {
  const auto begin = std::chrono::steady_clock::now();
  absl::Status status = inner_.wait(ticket);
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  const std::lock_guard lock(mutex_);
  if (const auto at = groups_.find(ticket); at != groups_.end()) {
    waited_[at->second] += seconds;
    groups_.erase(at);
  }
  return status;
}

std::map<GroupId, double> MeasuredCommunicator::waited() const {
  const std::lock_guard lock(mutex_);
  return waited_;
}

}  // namespace partita::runtime
