#include "runtime/audit/recording_communicator.h"

#include <utility>

#include "base/checksum.h"

namespace partita::runtime {
namespace {

// Of the values in an operation's buffer alone: what lies between them is left over from earlier ones.
uint64_t checksum_of(const CollectiveOp& op, std::span<const std::byte> bytes, uint64_t seed) {
  if (op.elements.empty()) return checksum64(bytes, seed);
  size_t at = 0;
  for (const int64_t count : op.elements) {
    const size_t size = static_cast<size_t>(count * dtype_size(op.dtype));
    seed = checksum64(bytes.subspan(at, size), seed);
    at += (size + 63) / 64 * 64;
  }
  return seed;
}

}  // namespace

absl::StatusOr<GroupId> RecordingCommunicator::create_group(const std::vector<int>& world_ranks) {
  absl::StatusOr<GroupId> id = inner_.create_group(world_ranks);
  const std::lock_guard lock(mutex_);
  if (id.ok()) groups_[*id] = {world_ranks, checksum64(std::as_bytes(std::span(world_ranks)), made_[world_ranks]++)};
  return id;
}

int64_t RecordingCommunicator::group_size(GroupId group) const {
  auto at = groups_.find(group);
  return at == groups_.end() ? inner_.size() : static_cast<int64_t>(at->second.ranks.size());
}

void RecordingCommunicator::set_lane(CollectiveRecord& record, GroupId group, int place) const {
  auto at = groups_.find(group);
  const bool known = at != groups_.end() && place >= 0 && static_cast<size_t>(place) < at->second.ranks.size();
  record.peer = known ? at->second.ranks[static_cast<size_t>(place)] : place;
  record.lane = known ? at->second.lane : 0;
}

Ticket RecordingCommunicator::start(CollectiveOp op) {
  const std::lock_guard lock(mutex_);
  if (!on_) return inner_.start(std::move(op));
  CollectiveRecord record{.what = describe(op)};
  const int64_t element = dtype_size(op.dtype);
  for (const CollectiveBuffers& b : buffers_of(op)) {
    const int64_t count = buffer_counts(op.kind, b.count, group_size(op.group)).input;
    const void* in = b.input == nullptr && op.kind == CollectiveKind::kAllReduce ? b.output : b.input;
    if (in == nullptr || count == 0) continue;
    const std::span bytes(static_cast<const std::byte*>(in), static_cast<size_t>(count * element));
    record.checksum = checksum_of(op, bytes, record.checksum);
  }
  if (op.kind == CollectiveKind::kSend) set_lane(record, op.group, op.to);
  Arrival arrival{{}, records_.size()};
  if (op.kind == CollectiveKind::kRecv) {
    set_lane(record, op.group, op.from);
    record.received = true;
    arrival.bytes = {static_cast<const std::byte*>(op.output), static_cast<size_t>(op.count * element)};
  }
  const bool receives = record.received;
  records_.push_back(std::move(record));
  const Ticket ticket = inner_.start(std::move(op));
  if (receives) arrivals_.emplace(ticket, arrival);
  return ticket;
}

absl::Status RecordingCommunicator::wait(Ticket ticket) {
  absl::Status status = inner_.wait(ticket);
  if (!status.ok()) return status;
  const std::lock_guard lock(mutex_);
  auto at = arrivals_.find(ticket);
  if (at == arrivals_.end()) return status;
  records_[at->second.record].checksum = checksum64(at->second.bytes);
  arrivals_.erase(at);
  return status;
}

void RecordingCommunicator::record(bool on) {
  const std::lock_guard lock(mutex_);
  on_ = on;
  records_.clear();
  arrivals_.clear();
}

std::vector<CollectiveRecord> RecordingCommunicator::take() {
  const std::lock_guard lock(mutex_);
  return std::exchange(records_, {});
}

}  // namespace partita::runtime
