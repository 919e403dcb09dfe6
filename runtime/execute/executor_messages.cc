// Messages that leave from outboxes: to other ranks, and to the rank itself, which stay there until they are received.
#include <algorithm>
#include <utility>

#include "base/cat.h"
#include "base/status.h"
#include "runtime/execute/executor.h"
#include "runtime/program/params.h"
#include "runtime/program/placement.h"

namespace partita::runtime {

// Whether the step's peer is this very rank: one chunk of its stage sends to another one.
bool Executor::is_to_itself(const Step& step) const {
  const int64_t place = int_param(step.params, "peer", -1);
  if (place < 0) return false;
  const CollectiveGroup& axes = program().groups[static_cast<size_t>(int_param(step.params, "group", 0))];
  return peer_rank(program().mesh, axes, rank_, place) == rank_;
}

absl::Status Executor::send(const BoundStep& step, std::byte* const* buffers) {
  Outbox& box = outboxes_.at(step.outbox);
  Ticket& ticket = box.places[box.next];
  std::byte* const place = buffers[1] + static_cast<int64_t>(box.next) * step.step->operands[1].shape[1];
  box.next = (box.next + 1) % box.places.size();
  if (ticket != 0) PARTITA_RETURN_IF_ERROR(communicator_->wait(std::exchange(ticket, 0)));
  if (step.alone) {
    std::deque<const std::byte*>& own = to_itself_[step.collective.group];
    if (std::count(own.begin(), own.end(), place) > 0)
      return absl::FailedPreconditionError("an outbox is full of messages that this rank has not received from itself");
    own.push_back(place);
  }
  PARTITA_RETURN_IF_ERROR(copy(place, buffers[0], step.bytes));
  if (step.alone) return absl::OkStatus();
  CollectiveOp op = step.collective;
  op.count = step.pieces.front().count;
  op.input = place;
  ticket = communicator_->start(std::move(op));
  return absl::OkStatus();
}

absl::Status Executor::receive_own(const BoundStep& step, std::byte* const* buffers) {
  std::deque<const std::byte*>& own = to_itself_[step.collective.group];
  if (own.empty()) return absl::FailedPreconditionError("this rank receives a message from itself before it is sent");
  PARTITA_RETURN_IF_ERROR(copy(buffers[0], own.front(), step.pieces.front().bytes));
  own.pop_front();
  return absl::OkStatus();
}

// What is still under way from outboxes at a schedule's end.
absl::Status Executor::finish_sends() {
  for (auto& [number, box] : outboxes_) {
    for (Ticket& ticket : box.places) {
      if (ticket != 0) PARTITA_RETURN_IF_ERROR(communicator_->wait(std::exchange(ticket, 0)));
    }
  }
  return absl::OkStatus();
}

}  // namespace partita::runtime
