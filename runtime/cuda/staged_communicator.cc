// Collectives of device memory through the host: an operation's input is copied out when it starts, the control plane's
// communicator does the rest, and its output is copied back when it is waited for. Slow, and right wherever the control
// plane is: for several ranks on one device, which NCCL refuses, and for machines without it.
#include <algorithm>
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
    BufferCounts counts = buffer_counts(op, size == sizes_.end() ? control_.size() : size->second);
    const int64_t element = dtype_size(op.dtype);
    flight.to = static_cast<std::byte*>(op.output);
    const bool in_place = op.kind == CollectiveKind::kAllReduce && op.input == nullptr;
    const std::byte* from = static_cast<const std::byte*>(in_place ? op.output : op.input);
    if (op.kind == CollectiveKind::kBroadcast) from = flight.to, counts.input = op.count;
    if (op.kind == CollectiveKind::kPermute) {
      if (op.to == kNoPeer) counts.input = 0;
      if (op.from == kNoPeer) counts.output = 0, flight.to = nullptr;
    }
    if (from != nullptr) flight.input.resize(static_cast<size_t>(counts.input * element));
    flight.output.resize(static_cast<size_t>(counts.output * element));
    fail(device_.read(flight.input, from));
    if (op.kind == CollectiveKind::kBroadcast) flight.output = flight.input;
    op.input = op.input == nullptr && !in_place ? nullptr : flight.input.data();
    op.output = flight.output.empty() ? nullptr : flight.output.data();
    flight.ticket = control_.start(std::move(op));
    return ticket;
  }

  absl::Status wait(Ticket ticket) override {
    auto at = flights_.find(ticket);
    if (at == flights_.end()) return failure();
    Flight flight = std::move(at->second);
    absl::Status status = control_.wait(flight.ticket);
    flights_.erase(at);
    if (status.ok() && flight.to != nullptr) status = device_.write(flight.to, flight.output);
    fail(status);
    return status;
  }

 private:
  struct Flight {
    std::vector<std::byte> input, output;
    std::byte* to = nullptr;
    Ticket ticket = 0;
  };
  std::map<GroupId, int64_t> sizes_;
  std::map<Ticket, Flight> flights_;
  Ticket last_ = 0;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Communicator>> open_staged(CudaDevice& device, Communicator& control) {
  return std::make_unique<StagedCommunicator>(device, control);
}

}  // namespace partita::runtime
