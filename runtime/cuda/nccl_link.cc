#include "runtime/cuda/nccl_link.h"

#include <algorithm>
#include <thread>
#include <utility>

#include "base/cat.h"
#include "base/status.h"
#include "runtime/communicate/reduce_rounds.h"

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
  std::unique_ptr<NcclLink> link(new NcclLink(nccl, rank, ranks, timeout, std::move(failure)));
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

absl::Status NcclLink::issue(const CollectiveOp& op, cudaStream_t stream, const OrderedSums* sums) {
  PARTITA_ASSIGN_OR_RETURN(ncclDataType_t type, type_of(op.dtype));
  if (OrderedSums::has(op)) {
    if (sums == nullptr) return absl::InternalError("a sum in order that nobody made room for");
    return sum_in_order(op, stream, *sums);
  }
  const size_t count = static_cast<size_t>(op.count);
  if (op.kind == CollectiveKind::kAllToAll) {
    std::vector<Exchanged> messages;
    for (const CollectiveBuffers& b : buffers_of(op)) {
      const int64_t bytes = b.count * dtype_size(op.dtype);
      for (int peer = 0; peer < ranks_; ++peer)
        messages.push_back({peer, static_cast<const std::byte*>(b.input) + peer * bytes, b.count,
                            static_cast<std::byte*>(b.output) + peer * bytes, b.count});
    }
    return exchange(messages, op.dtype, stream, "all_to_all");
  }
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
    case CollectiveKind::kSend:
    case CollectiveKind::kRecv:
    case CollectiveKind::kPermute:
      if (op.to != kNoPeer) also(nccl_.send(op.input, count, type, op.to, comm_, stream));
      if (op.from != kNoPeer) also(nccl_.recv(op.output, count, type, op.from, comm_, stream));
      break;
    case CollectiveKind::kAllToAll:
    case CollectiveKind::kBarrier:
      break;
  }
  also(nccl_.group_end());
  return settle(result, collective_name(op.kind).data());
}

absl::Status NcclLink::exchange(const std::vector<Exchanged>& messages, DType dtype, cudaStream_t stream,
                                const char* call) const {
  PARTITA_ASSIGN_OR_RETURN(ncclDataType_t type, type_of(dtype));
  ncclResult_t result = nccl_.group_start();
  auto also = [&](ncclResult_t next) { result = result == ncclSuccess || result == ncclInProgress ? next : result; };
  for (const Exchanged& m : messages) {
    if (m.send_count > 0) also(nccl_.send(m.send, static_cast<size_t>(m.send_count), type, m.peer, comm_, stream));
    if (m.receive_count > 0)
      also(nccl_.recv(m.receive, static_cast<size_t>(m.receive_count), type, m.peer, comm_, stream));
  }
  also(nccl_.group_end());
  return settle(result, call);
}

// As hosts do it (runtime/communicate/collective_algorithms.cc): the parts of a slice go to the rank that adds them up,
// and of an all-reduce its sum comes back from there.
absl::Status NcclLink::sum_in_order(const CollectiveOp& op, cudaStream_t stream, const OrderedSums& sums) const {
  const int64_t element = dtype_size(op.dtype), piece = sums.piece(op.dtype, ranks_);
  int64_t bytes = 0;
  for (const CollectiveBuffers& b : buffers_of(op)) bytes += b.count * element;
  const bool all = op.kind == CollectiveKind::kAllReduce;
  if (all && bytes <= std::min(kSmallReduceBytes, piece * element)) return sum_few_in_order(op, stream, sums);
  const std::vector<Reduction> reductions = reductions_of(op, ranks_, rank_);
  std::vector<Exchanged> messages;
  for (const Round& round : rounds_of(reductions, piece)) {
    messages.clear();
    for (const Run& run : round) {
      const Reduction& r = reductions[run.buffer];
      for (int peer = 0; peer < ranks_; ++peer)
        messages.push_back({peer, r.input + (r.of(peer).begin + run.begin) * element, run.length_of(r.of(peer)),
                            sums.rows() + (peer * piece + run.at) * element, run.length_of(r.of(rank_))});
    }
    PARTITA_RETURN_IF_ERROR(exchange(messages, op.dtype, stream, "the scatter of a sum"));
    for (const Run& run : round) {
      const Reduction& r = reductions[run.buffer];
      PARTITA_RETURN_IF_ERROR(sums.add(op.dtype, sums.rows() + run.at * element, piece, ranks_,
                                       r.output + run.begin * element, run.length_of(r.of(rank_)), stream));
    }
  }
  if (!all) return absl::OkStatus();
  messages.clear();
  for (const Reduction& r : reductions) {
    std::byte* const whole = r.output - r.of(rank_).begin * element;
    for (int peer = 0; peer < ranks_; ++peer) {
      if (peer != rank_)
        messages.push_back({peer, r.output, r.of(rank_).length, whole + r.of(peer).begin * element, r.of(peer).length});
    }
  }
  return exchange(messages, op.dtype, stream, "the gather of a sum");
}

// Every rank gets all terms.
absl::Status NcclLink::sum_few_in_order(const CollectiveOp& op, cudaStream_t stream, const OrderedSums& sums) const {
  const int64_t element = dtype_size(op.dtype), piece = sums.piece(op.dtype, ranks_);
  const std::vector<CollectiveBuffers> buffers = buffers_of(op);
  std::vector<Exchanged> messages;
  int64_t at = 0;
  for (const CollectiveBuffers& b : buffers) {
    const auto* input = static_cast<const std::byte*>(b.input == nullptr ? b.output : b.input);
    for (int peer = 0; peer < ranks_; ++peer)
      messages.push_back({peer, input, b.count, sums.rows() + (peer * piece + at) * element, b.count});
    at += b.count;
  }
  PARTITA_RETURN_IF_ERROR(exchange(messages, op.dtype, stream, "the gather of a sum's terms"));
  at = 0;
  for (const CollectiveBuffers& b : buffers) {
    PARTITA_RETURN_IF_ERROR(sums.add(op.dtype, sums.rows() + at * element, piece, ranks_,
                                     static_cast<std::byte*>(b.output), b.count, stream));
    at += b.count;
  }
  return absl::OkStatus();
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
