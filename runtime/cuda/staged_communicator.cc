// Collectives of device memory through the host: an operation's input is copied out when it starts, the control plane's
// communicator does the rest, and its output is copied back when it is waited for. Slow, and right wherever the control
// plane is: for several ranks on one device, which NCCL refuses, and for machines without it.
#include <algorithm>
#include <deque>
#include <set>
#include <vector>

#include "base/status.h"
#include "runtime/cuda/communicator_base.h"

namespace partita::runtime {
namespace {

class StagedCommunicator final : public DeviceCommunicator {
 public:
  using DeviceCommunicator::DeviceCommunicator;
  ~StagedCommunicator() override {
    // What is under way uses our memory.
    for (auto& [ticket, flight] : flights_) (void)control_.wait(flight.ticket);
  }

  std::string_view backend() const override { return "staged"; }

  absl::StatusOr<GroupId> create_group(const std::vector<int>& world_ranks) override {
    PARTITA_ASSIGN_OR_RETURN(GroupId id, control_.create_group(world_ranks));
    sizes_[id] = static_cast<int64_t>(world_ranks.size());
    return id;
  }

  Ticket start(CollectiveOp op) override {
    const Ticket ticket = ++last_;
    Flight& flight = flights_[ticket];
    auto size = sizes_.find(op.group);
    const int64_t members = size == sizes_.end() ? control_.size() : size->second;
    std::vector<CollectiveBuffers> buffers = buffers_of(op);
    for (CollectiveBuffers& b : buffers) stage(op, b, members, flight.copies.emplace_back());
    op.input = buffers[0].input;
    op.output = buffers[0].output;
    op.more.assign(buffers.begin() + 1, buffers.end());
    flight.ticket = control_.start(std::move(op));
    return ticket;
  }

  absl::Status wait(Ticket ticket) override {
    auto at = flights_.find(ticket);
    if (at == flights_.end()) return failure();
    Flight flight = std::move(at->second);
    absl::Status status = control_.wait(flight.ticket);
    flights_.erase(at);
    for (const Copy& c : flight.copies) {
      if (status.ok() && c.to != nullptr) status = device_.write(c.to, c.output);
    }
    fail(status);
    return status;
  }

 private:
  // One buffer of an operation, on the host, and where its result goes.
  struct Copy {
    std::vector<std::byte> input, output;
    std::byte* to = nullptr;
  };
  struct Flight {
    std::deque<Copy> copies;
    Ticket ticket = 0;
  };

  // Fills `copy` and lets the buffer point there.
  void stage(const CollectiveOp& op, CollectiveBuffers& b, int64_t members, Copy& copy) {
    BufferCounts counts = buffer_counts(op.kind, b.count, members);
    const int64_t element = dtype_size(op.dtype);
    copy.to = static_cast<std::byte*>(b.output);
    const bool in_place = op.kind == CollectiveKind::kAllReduce && b.input == nullptr;
    const std::byte* from = static_cast<const std::byte*>(in_place ? b.output : b.input);
    if (op.kind == CollectiveKind::kBroadcast) from = copy.to, counts.input = b.count;
    if (op.kind == CollectiveKind::kPermute) {
      if (op.to == kNoPeer) counts.input = 0;
      if (op.from == kNoPeer) counts.output = 0, copy.to = nullptr;
    }
    if (from != nullptr) copy.input.resize(static_cast<size_t>(counts.input * element));
    copy.output.resize(static_cast<size_t>(counts.output * element));
    fail(device_.read(copy.input, from));
    if (op.kind == CollectiveKind::kBroadcast) copy.output = copy.input;
    b.input = b.input == nullptr && !in_place ? nullptr : copy.input.data();
    b.output = copy.output.empty() ? nullptr : copy.output.data();
  }

  std::map<GroupId, int64_t> sizes_;
  std::map<Ticket, Flight> flights_;
  Ticket last_ = 0;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Communicator>> open_staged(CudaDevice& device, Communicator& control) {
  return std::make_unique<StagedCommunicator>(device, control);
}

}  // namespace partita::runtime
