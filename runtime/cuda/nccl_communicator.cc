// Collectives over NCCL. Operations run on a stream of their own, in the order of start(): each one behind what the
// device was given before it, and what comes after wait() behind the operation. A watchdog looks at the control plane
// and at NCCL's own errors; when either fails, or an operation does not end in time, it aborts NCCL's communicators,
// which ends the kernels that wait for the lost.
#include <algorithm>
#include <atomic>
#include <deque>
#include <thread>
#include <vector>

#include "base/status.h"
#include "runtime/cuda/communicator_base.h"

namespace partita::runtime {
namespace {

using Clock = std::chrono::steady_clock;
constexpr std::chrono::milliseconds kLook{50};
constexpr std::chrono::seconds kTimeout{60};

absl::StatusOr<ncclDataType_t> type_of(DType t) {
  switch (t) {
    case DType::kF32:
      return ncclFloat32;
    case DType::kF64:
      return ncclFloat64;
    case DType::kF16:
      return ncclFloat16;
    case DType::kBF16:
      return ncclBfloat16;
    case DType::kI8:
      return ncclInt8;
    case DType::kU8:
    case DType::kBool:
      return ncclUint8;
    case DType::kI32:
      return ncclInt32;
    case DType::kU32:
      return ncclUint32;
    case DType::kI64:
      return ncclInt64;
    case DType::kU64:
      return ncclUint64;
    default:
      return absl::UnimplementedError(cat("NCCL has no ", dtype_name(t)));
  }
}

ncclRedOp_t reduction_of(ReduceOp op) {
  return op == ReduceOp::kSum ? ncclSum : op == ReduceOp::kMax ? ncclMax : ncclMin;
}

class NcclCommunicator final : public DeviceCommunicator {
 public:
  NcclCommunicator(CudaDevice& device, Communicator& control, const Nccl& nccl)
      : DeviceCommunicator(device, control), nccl_(nccl) {}
  ~NcclCommunicator() override {
    stop_ = true;
    if (watchdog_.joinable()) watchdog_.join();
    cudaSetDevice(device_.ordinal());
    if (failure().ok()) cudaStreamSynchronize(stream_);
    std::lock_guard lock(mutex_of_groups_);
    for (auto& [id, group] : groups_) {
      if (group.comm == nullptr) continue;
      failure().ok() ? nccl_.destroy(group.comm) : nccl_.abort(group.comm);
    }
    for (const Flight& f : flights_) free_.push_back(f.done);
    for (cudaEvent_t e : free_) cudaEventDestroy(e);
    if (stream_ != nullptr) cudaStreamDestroy(stream_);
  }

  absl::Status open() {
    if (cudaError_t e = cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking); e != cudaSuccess)
      return cuda_error("cudaStreamCreate", e);
    watchdog_ = std::thread([this] { watch(); });
    std::vector<int> all(static_cast<size_t>(size()));
    for (int r = 0; r < size(); ++r) all[static_cast<size_t>(r)] = r;
    PARTITA_ASSIGN_OR_RETURN(GroupId world, create_group(all));
    world_ = world;
    return absl::OkStatus();
  }

  std::string_view backend() const override { return "nccl"; }

  // The first of the group makes the id and tells the others over the control plane.
  absl::StatusOr<GroupId> create_group(const std::vector<int>& ranks) override {
    PARTITA_ASSIGN_OR_RETURN(GroupId id, control_.create_group(ranks));
    auto mine = std::find(ranks.begin(), ranks.end(), rank());
    if (mine == ranks.end()) return id;
    ncclUniqueId unique{};
    if (mine == ranks.begin()) PARTITA_RETURN_IF_ERROR(check(nccl_.unique_id(&unique), "ncclGetUniqueId"));
    PARTITA_RETURN_IF_ERROR(control_.run({.kind = CollectiveKind::kBroadcast,
                                          .group = id,
                                          .dtype = DType::kU8,
                                          .count = sizeof unique,
                                          .input = &unique,
                                          .output = &unique,
                                          .label = "id of a NCCL communicator"}));
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;  // so that a rank that never comes can be given up
    Group group{nullptr, static_cast<int64_t>(ranks.size())};
    ncclResult_t result = nccl_.init(&group.comm, static_cast<int>(ranks.size()), unique,
                                     static_cast<int>(mine - ranks.begin()), &config);
    const absl::Status status = settle(group.comm, result, "ncclCommInitRankConfig");
    if (!status.ok()) {
      if (group.comm != nullptr) nccl_.abort(group.comm);
      return status;
    }
    std::lock_guard lock(mutex_of_groups_);
    groups_[id] = group;
    return id;
  }

  Ticket start(CollectiveOp op) override {
    std::lock_guard lock(mutex_of_groups_);
    const Ticket ticket = ++last_;
    absl::Status status = failure();
    if (status.ok()) status = launch(op, ticket);
    if (!status.ok()) fail(with_context(status, describe(op)));
    return ticket;
  }

  absl::Status wait(Ticket ticket) override {
    PARTITA_RETURN_IF_ERROR(failure());
    std::lock_guard lock(mutex_of_groups_);
    for (const Flight& f : flights_) {
      if (f.ticket == ticket) {
        const cudaError_t e = cudaStreamWaitEvent(device_.stream(), f.done, 0);
        return e == cudaSuccess ? absl::OkStatus() : cuda_error("cudaStreamWaitEvent", e);
      }
    }
    return absl::OkStatus();  // over already
  }

 private:
  struct Group {
    ncclComm_t comm = nullptr;
    int64_t size = 1;
  };
  struct Flight {
    Ticket ticket = 0;
    cudaEvent_t done = nullptr;
    Clock::time_point begin;
    CollectiveOp op;
  };

  absl::Status check(ncclResult_t result, const char* call) const {
    if (result == ncclSuccess) return absl::OkStatus();
    return absl::UnavailableError(cat(call, ": ", nccl_.error_text(result)));
  }

  // Waits until a call that does not block has been done.
  absl::Status settle(ncclComm_t comm, ncclResult_t result, const char* call) {
    const Clock::time_point until = Clock::now() + kTimeout;
    while (result == ncclInProgress) {
      PARTITA_RETURN_IF_ERROR(failure());
      if (Clock::now() > until)
        return absl::UnavailableError(cat(call, " has not ended after ", kTimeout.count(), " s: a rank is missing"));
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      if (ncclResult_t asked = nccl_.async_error(comm, &result); asked != ncclSuccess) result = asked;
    }
    return check(result, call);
  }

  absl::StatusOr<cudaEvent_t> event() {
    // What is over gives its event back.
    while (!flights_.empty() && cudaEventQuery(flights_.front().done) == cudaSuccess) {
      free_.push_back(flights_.front().done);
      flights_.pop_front();
    }
    cudaGetLastError();
    if (!free_.empty()) {
      cudaEvent_t e = free_.back();
      free_.pop_back();
      return e;
    }
    cudaEvent_t made = nullptr;
    if (cudaError_t e = cudaEventCreateWithFlags(&made, cudaEventDisableTiming); e != cudaSuccess)
      return cuda_error("cudaEventCreate", e);
    return made;
  }

  absl::Status launch(const CollectiveOp& op, Ticket ticket) {
    auto at = groups_.find(op.group == kWorldGroup ? world_ : op.group);
    if (at == groups_.end()) return absl::InvalidArgumentError("a group that this rank is no member of");
    PARTITA_ASSIGN_OR_RETURN(cudaEvent_t done, event());
    // Behind what the device was given so far; the event is used for that first.
    cudaError_t e = cudaEventRecord(done, device_.stream());
    if (e == cudaSuccess) e = cudaStreamWaitEvent(stream_, done, 0);
    if (e != cudaSuccess) return cuda_error("cudaStreamWaitEvent", e);
    PARTITA_RETURN_IF_ERROR(issue(op, at->second));
    if (e = cudaEventRecord(done, stream_); e != cudaSuccess) return cuda_error("cudaEventRecord", e);
    flights_.push_back({ticket, done, Clock::now(), op});
    return absl::OkStatus();
  }

  absl::Status issue(const CollectiveOp& op, const Group& group) {
    PARTITA_ASSIGN_OR_RETURN(ncclDataType_t type, type_of(op.dtype));
    const size_t count = static_cast<size_t>(op.count);
    ncclComm_t comm = group.comm;
    ncclResult_t result = nccl_.group_start();
    auto also = [&](ncclResult_t next) { result = result == ncclSuccess || result == ncclInProgress ? next : result; };
    switch (op.kind) {
      case CollectiveKind::kAllReduce:
      case CollectiveKind::kReduceScatter:
      case CollectiveKind::kAllGather:
        // One group call: they go as one message train.
        for (const CollectiveBuffers& b : buffers_of(op)) also(issue_one(op, b, type, comm));
        break;
      case CollectiveKind::kBroadcast:
        also(nccl_.broadcast(op.output, op.output, count, type, op.root, comm, stream_));
        break;
      case CollectiveKind::kAllToAll:
        for (const CollectiveBuffers& b : buffers_of(op)) {
          const size_t chunk = static_cast<size_t>(b.count);
          const int64_t bytes = b.count * dtype_size(op.dtype);
          for (int64_t peer = 0; peer < group.size; ++peer) {
            also(nccl_.send(static_cast<const std::byte*>(b.input) + peer * bytes, chunk, type, static_cast<int>(peer),
                            comm, stream_));
            also(nccl_.recv(static_cast<std::byte*>(b.output) + peer * bytes, chunk, type, static_cast<int>(peer), comm,
                            stream_));
          }
        }
        break;
      case CollectiveKind::kSend:
      case CollectiveKind::kRecv:
      case CollectiveKind::kPermute:
        if (op.to != kNoPeer) also(nccl_.send(op.input, count, type, op.to, comm, stream_));
        if (op.from != kNoPeer) also(nccl_.recv(op.output, count, type, op.from, comm, stream_));
        break;
      case CollectiveKind::kBarrier:
        break;
    }
    also(nccl_.group_end());
    return settle(comm, result, collective_name(op.kind).data());
  }

  ncclResult_t issue_one(const CollectiveOp& op, const CollectiveBuffers& b, ncclDataType_t type, ncclComm_t comm) {
    const size_t count = static_cast<size_t>(b.count);
    const void* input = b.input == nullptr ? b.output : b.input;
    if (op.kind == CollectiveKind::kAllGather) return nccl_.all_gather(input, b.output, count, type, comm, stream_);
    auto* reduce = op.kind == CollectiveKind::kAllReduce ? nccl_.all_reduce : nccl_.reduce_scatter;
    return reduce(input, b.output, count, type, reduction_of(op.reduce), comm, stream_);
  }

  void watch() {
    cudaSetDevice(device_.ordinal());
    while (!stop_) {
      std::this_thread::sleep_for(kLook);
      absl::Status status = failure();
      {
        std::lock_guard lock(mutex_of_groups_);
        for (auto& [id, group] : groups_) {
          ncclResult_t result = ncclSuccess;
          if (status.ok() && nccl_.async_error(group.comm, &result) == ncclSuccess && result != ncclInProgress)
            status = check(result, "NCCL");
        }
        auto late = [&](const Flight& f) {
          return cudaEventQuery(f.done) == cudaErrorNotReady && Clock::now() - f.begin > kTimeout;
        };
        if (status.ok() && !flights_.empty() && late(flights_.front()))
          status = absl::UnavailableError(cat(describe(flights_.front().op), " has not ended after ", kTimeout.count(),
                                              " s: a rank is missing or hangs"));
        if (status.ok()) continue;
        fail(status);
        for (auto& [id, group] : groups_) nccl_.abort(group.comm);
        groups_.clear();
      }
      control_.abort(std::string(status.message()));
      return;
    }
  }

  const Nccl& nccl_;
  cudaStream_t stream_ = nullptr;
  GroupId world_ = kWorldGroup;
  std::mutex mutex_of_groups_;  // of what follows
  std::map<GroupId, Group> groups_;
  std::deque<Flight> flights_;  // in the order of their tickets
  std::vector<cudaEvent_t> free_;
  Ticket last_ = 0;
  std::atomic<bool> stop_ = false;
  std::thread watchdog_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Communicator>> open_nccl(CudaDevice& device, Communicator& control) {
  PARTITA_ASSIGN_OR_RETURN(const Nccl* nccl, Nccl::load());
  auto made = std::make_unique<NcclCommunicator>(device, control, *nccl);
  PARTITA_RETURN_IF_ERROR(made->open());
  return made;
}

}  // namespace partita::runtime
