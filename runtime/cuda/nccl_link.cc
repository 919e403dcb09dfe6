#include "runtime/cuda/nccl_link.h"

#include <thread>
#include <utility>

#include "base/cat.h"
#include "base/status.h"

namespace partita::runtime {
namespace {

using Clock = std::chrono::steady_clock;

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

}  // namespace

// Ranks that do not do the same are a fault of the program; all else is worth another try.
absl::Status NcclLink::check(ncclResult_t result, const char* call) const {
  if (result == ncclSuccess) return absl::OkStatus();
  const std::string_view more = nccl_.last_error(comm_);
  const std::string text = cat(call, ": ", nccl_.error_text(result), more.empty() ? "" : ": ", more);
  return result == ncclInvalidUsage || result == ncclInvalidArgument ? absl::FailedPreconditionError(text)
                                                                     : absl::UnavailableError(text);
}

// Waits until a call that does not block has been done: most take microseconds, those that connect ranks longer.
absl::Status NcclLink::settle(ncclResult_t result, const char* call) const {
  const Clock::time_point begin = Clock::now();
  while (result == ncclInProgress) {
    PARTITA_RETURN_IF_ERROR(failure_());
    const auto passed = Clock::now() - begin;
    if (passed > timeout_)
      return absl::UnavailableError(
          cat(call, " has not ended after ", std::chrono::duration<double>(timeout_).count(), " s: a rank is missing"));
    if (passed > std::chrono::milliseconds(1))
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    else
      std::this_thread::yield();
    if (ncclResult_t asked = nccl_.async_error(comm_, &result); asked != ncclSuccess) result = asked;
  }
  return check(result, call);
}

absl::StatusOr<ncclUniqueId> NcclLink::new_id(const Nccl& nccl) {
  ncclUniqueId id{};
  const ncclResult_t result = nccl.unique_id(&id);
  if (result != ncclSuccess) return absl::UnavailableError(cat("ncclGetUniqueId: ", nccl.error_text(result)));
  return id;
}

absl::StatusOr<std::unique_ptr<NcclLink>> NcclLink::open(const Nccl& nccl, const ncclUniqueId& id, int rank, int ranks,
                                                         std::chrono::milliseconds timeout,
                                                         std::function<absl::Status()> failure) {
  std::unique_ptr<NcclLink> link(new NcclLink(nccl, ranks, timeout, std::move(failure)));
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  const ncclResult_t result = nccl.init(&link->comm_, ranks, id, rank, &config);
  const absl::Status status = link->settle(result, "ncclCommInitRankConfig");
  if (status.ok()) return link;
  link->abort();
  return status;
}

NcclLink::~NcclLink() { abort(); }

void NcclLink::begin_end() {
  if (comm_ != nullptr) ending_ = nccl_.finalize(comm_);
}

void NcclLink::end() {
  if (comm_ == nullptr) return;
  if (!settle(ending_, "ncclCommFinalize").ok()) return abort();
  nccl_.destroy(std::exchange(comm_, nullptr));
}

absl::Status NcclLink::error() const {
  ncclResult_t result = ncclSuccess;
  const ncclResult_t asked = nccl_.async_error(comm_, &result);
  if (asked == ncclSuccess && result == ncclInProgress) return absl::OkStatus();
  return check(asked == ncclSuccess ? result : asked, "NCCL");
}

void NcclLink::abort() {
  if (ncclComm_t comm = std::exchange(comm_, nullptr); comm != nullptr) nccl_.abort(comm);
}

absl::Status NcclLink::issue(const CollectiveOp& op, cudaStream_t stream) {
  PARTITA_ASSIGN_OR_RETURN(ncclDataType_t type, type_of(op.dtype));
  const size_t count = static_cast<size_t>(op.count);
  ncclResult_t result = nccl_.group_start();
  auto also = [&](ncclResult_t next) { result = result == ncclSuccess || result == ncclInProgress ? next : result; };
  switch (op.kind) {
    case CollectiveKind::kAllReduce:
    case CollectiveKind::kReduceScatter:
    case CollectiveKind::kAllGather:
      // One group call: they go as one message train.
      for (const CollectiveBuffers& b : buffers_of(op)) also(reduce_or_gather(op, b, type, stream));
      break;
    case CollectiveKind::kBroadcast:
      also(nccl_.broadcast(op.output, op.output, count, type, op.root, comm_, stream));
      break;
    case CollectiveKind::kAllToAll:
      for (const CollectiveBuffers& b : buffers_of(op)) {
        const size_t chunk = static_cast<size_t>(b.count);
        const int64_t bytes = b.count * dtype_size(op.dtype);
        for (int peer = 0; peer < ranks_; ++peer) {
          also(nccl_.send(static_cast<const std::byte*>(b.input) + peer * bytes, chunk, type, peer, comm_, stream));
          also(nccl_.recv(static_cast<std::byte*>(b.output) + peer * bytes, chunk, type, peer, comm_, stream));
        }
      }
      break;
    case CollectiveKind::kSend:
    case CollectiveKind::kRecv:
    case CollectiveKind::kPermute:
      if (op.to != kNoPeer) also(nccl_.send(op.input, count, type, op.to, comm_, stream));
      if (op.from != kNoPeer) also(nccl_.recv(op.output, count, type, op.from, comm_, stream));
      break;
    case CollectiveKind::kBarrier:
      break;
  }
  also(nccl_.group_end());
  return settle(result, collective_name(op.kind).data());
}

ncclResult_t NcclLink::reduce_or_gather(const CollectiveOp& op, const CollectiveBuffers& b, ncclDataType_t type,
                                        cudaStream_t stream) const {
  const size_t count = static_cast<size_t>(b.count);
  const void* input = b.input == nullptr ? b.output : b.input;
  if (op.kind == CollectiveKind::kAllGather) return nccl_.all_gather(input, b.output, count, type, comm_, stream);
  auto* reduce = op.kind == CollectiveKind::kAllReduce ? nccl_.all_reduce : nccl_.reduce_scatter;
  return reduce(input, b.output, count, type, reduction_of(op.reduce), comm_, stream);
}

}  // namespace partita::runtime
