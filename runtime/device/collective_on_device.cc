#include "runtime/device/collective_on_device.h"

#include <algorithm>
#include <bit>
#include <map>
#include <utility>

#include "base/status.h"

namespace partita::runtime {
namespace {

class OnDevice final : public Communicator {
 public:
  OnDevice(Device& device, std::unique_ptr<Communicator> inner) : device_(device), inner_(std::move(inner)) {}

  int rank() const override { return inner_->rank(); }
  int size() const override { return inner_->size(); }
  std::string_view backend() const override { return inner_->backend(); }
  std::chrono::milliseconds timeout() const override { return inner_->timeout(); }
  void set_timeout(std::chrono::milliseconds timeout) override { inner_->set_timeout(timeout); }
  absl::StatusOr<GroupId> create_group(const std::vector<int>& ranks) override {
    PARTITA_ASSIGN_OR_RETURN(GroupId id, inner_->create_group(ranks));
    sizes_[id] = static_cast<int64_t>(ranks.size());
    return id;
  }
  absl::Status connect(std::span<const CollectiveOp> operations) override { return inner_->connect(operations); }
  void abort(std::string_view reason) override { inner_->abort(reason); }
  absl::Status failure() const override { return inner_->failure(); }

  Ticket start(CollectiveOp op) override {
    auto size = sizes_.find(op.group);
    const int64_t members = size == sizes_.end() ? this->size() : size->second, element = dtype_size(op.dtype);
    std::vector<CollectiveBuffers> buffers = buffers_of(op);
    Flight flight;
    for (CollectiveBuffers& b : buffers) {
      const BufferCounts counts = buffer_counts(op.kind, b.count, members);
      b.input = copy_in(b.input, counts.input * element, flight);
      // Outputs too: a broadcast and a reduction in place read them, a permute may leave them alone.
      std::byte* output = static_cast<std::byte*>(b.output);
      b.output = copy_in(output, counts.output * element, flight);
      if (output != nullptr)
        flight.outputs.push_back(
            {{output, static_cast<size_t>(counts.output * element)}, static_cast<const std::byte*>(b.output)});
    }
    op.input = buffers[0].input;
    op.output = buffers[0].output;
    op.more.assign(buffers.begin() + 1, buffers.end());
    const Ticket ticket = inner_->start(std::move(op));
    flights_[ticket] = std::move(flight);
    return ticket;
  }

  absl::Status wait(Ticket ticket) override {
    absl::Status status = inner_->wait(ticket);
    auto at = flights_.find(ticket);
    if (at == flights_.end()) return status;
    Flight flight = std::move(at->second);
    flights_.erase(at);
    for (const auto& [to, from] : flight.outputs) {
      if (status.ok()) status = device_.read(to, from);
    }
    if (status.ok() && flight.outputs.empty()) status = device_.synchronize();
    if (status.ok()) status = inner_->failure();
    for (const auto& [bytes, block] : flight.blocks) free_.emplace(bytes, block);
    return status;
  }

 private:
  struct Flight {
    std::vector<std::pair<std::span<std::byte>, const std::byte*>> outputs;
    std::vector<std::pair<int64_t, std::byte*>> blocks;
  };

  // What goes wrong shows at the operation.
  std::byte* copy_in(const void* from, int64_t bytes, Flight& flight) {
    if (from == nullptr || bytes == 0) return nullptr;
    const int64_t size = static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(std::max<int64_t>(bytes, 256))));
    std::byte* block = nullptr;
    if (auto spare = free_.find(size); spare != free_.end()) {
      block = spare->second;
      free_.erase(spare);
    } else if (auto made = device_.allocate(size); made.ok()) {
      block = *made;
    } else {
      inner_->abort(made.status().ToString());
      return nullptr;
    }
    flight.blocks.emplace_back(size, block);
    const absl::Status written =
        device_.write(block, {static_cast<const std::byte*>(from), static_cast<size_t>(bytes)});
    if (!written.ok()) inner_->abort(written.ToString());
    return block;
  }

  Device& device_;
  std::unique_ptr<Communicator> inner_;
  std::map<GroupId, int64_t> sizes_;
  std::map<Ticket, Flight> flights_;
  std::multimap<int64_t, std::byte*> free_;  // blocks of the device, by size
};

}  // namespace

absl::StatusOr<std::unique_ptr<Communicator>> open_on_device(Device& device, Communicator& control) {
  PARTITA_ASSIGN_OR_RETURN(std::unique_ptr<Communicator> inner, device.communicator(control));
  return std::make_unique<OnDevice>(device, std::move(inner));
}

}  // namespace partita::runtime
