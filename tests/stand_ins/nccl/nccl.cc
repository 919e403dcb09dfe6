// NCCL's interface, as far as Partita calls it, between processes or threads of one machine that share one GPU, which
// NCCL itself refuses. For tests: it checks that all members of a communicator issue the same operations in the same
// order with the same counts, types and reductions, that both ends of a message agree, that a communicator's operations
// are all on one stream, that nothing is asked of a communicator while it is in progress, that one thread alone issues
// and asks until another ends it, and that a communicator that does not block is finalized before it is destroyed.
#include <nccl.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "tests/stand_ins/nccl/communicator.h"

using namespace partita::stand_in;

namespace {

using Pointer = std::shared_ptr<StandInCommunicator>;
Pointer& of(ncclComm_t comm) { return *reinterpret_cast<Pointer*>(comm); }

struct Group {
  int depth = 0;
  std::vector<std::pair<ncclComm_t, Call>> calls;
};
thread_local Group group;

ncclResult_t end_group() {
  std::vector<std::pair<ncclComm_t, Call>> calls = std::exchange(group.calls, {});
  ncclResult_t result = ncclSuccess;
  while (!calls.empty()) {
    const ncclComm_t comm = calls.front().first;
    auto others = std::stable_partition(calls.begin(), calls.end(), [&](const auto& c) { return c.first == comm; });
    std::vector<Call> own;
    for (auto c = calls.begin(); c != others; ++c) own.push_back(c->second);
    calls.erase(calls.begin(), others);
    const ncclResult_t next = of(comm)->submit(std::move(own));
    if (result == ncclSuccess || (result == ncclInProgress && next != ncclSuccess)) result = next;
  }
  return result;
}

ncclResult_t add(ncclComm_t comm, Call call) {
  if (comm == nullptr) return ncclInvalidArgument;
  group.calls.emplace_back(comm, call);
  return group.depth > 0 ? of(comm)->state() : end_group();
}

}  // namespace

extern "C" {

// Several ranks of a communicator may have one GPU.
extern const int partita_nccl_shares_devices = 1;

ncclResult_t ncclGetVersion(int* version) { return *version = NCCL_VERSION_CODE, ncclSuccess; }
const char* ncclGetErrorString(ncclResult_t result) {
  constexpr const char* kTexts[] = {"no error",
                                    "unhandled cuda error",
                                    "unhandled system error",
                                    "internal error",
                                    "invalid argument",
                                    "invalid usage",
                                    "remote process exited or there was a network error",
                                    "operation in progress"};
  return result < ncclNumResults ? kTexts[result] : "unknown result code";
}
const char* ncclGetLastError(ncclComm_t comm) {
  static thread_local std::string text;
  if (comm == nullptr) return "";
  text = of(comm)->last_error();
  return text.c_str();
}
ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  *id = {};
  const std::string name = Meeting::new_name();
  std::memcpy(id->internal, name.c_str(), name.size());
  return ncclSuccess;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int ranks, ncclUniqueId id, int rank, ncclConfig_t* config) {
  if (comm == nullptr || ranks < 1 || ranks > kMostRanks || rank < 0 || rank >= ranks) return ncclInvalidArgument;
  if (config != nullptr && (config->size != sizeof(ncclConfig_t) || config->version != NCCL_VERSION_CODE))
    return ncclInvalidArgument;
  const bool blocking = config == nullptr || config->blocking != 0;
  auto* made = new Pointer(std::make_shared<StandInCommunicator>(id.internal, rank, ranks, blocking));
  *comm = reinterpret_cast<ncclComm_t>(made);
  return (*made)->start();
}
ncclResult_t ncclCommAbort(ncclComm_t comm) {
  if (comm == nullptr) return ncclInvalidArgument;
  of(comm)->abort();
  delete &of(comm);
  return ncclSuccess;
}
ncclResult_t ncclCommFinalize(ncclComm_t comm) { return comm == nullptr ? ncclInvalidArgument : of(comm)->finalize(); }
ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  if (comm == nullptr) return ncclInvalidArgument;
  of(comm)->close();
  delete &of(comm);
  return ncclSuccess;
}
ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* result) {
  if (comm == nullptr) return ncclInvalidArgument;
  if (!of(comm)->may_ask()) return ncclInvalidUsage;
  *result = of(comm)->state();
  return ncclSuccess;
}

ncclResult_t ncclGroupStart() { return ++group.depth, ncclSuccess; }
ncclResult_t ncclGroupEnd() {
  if (group.depth == 0) return ncclInvalidUsage;
  return --group.depth > 0 ? ncclSuccess : end_group();
}

ncclResult_t ncclAllReduce(const void* input, void* output, size_t count, ncclDataType_t type, ncclRedOp_t reduction,
                           ncclComm_t comm, cudaStream_t stream) {
  return add(comm, {Operation::kAllReduce, input, output, count, type, reduction, 0, -1, -1, stream});
}
ncclResult_t ncclReduceScatter(const void* input, void* output, size_t count, ncclDataType_t type,
                               ncclRedOp_t reduction, ncclComm_t comm, cudaStream_t stream) {
  return add(comm, {Operation::kReduceScatter, input, output, count, type, reduction, 0, -1, -1, stream});
}
ncclResult_t ncclAllGather(const void* input, void* output, size_t count, ncclDataType_t type, ncclComm_t comm,
                           cudaStream_t stream) {
  return add(comm, {Operation::kAllGather, input, output, count, type, ncclSum, 0, -1, -1, stream});
}
ncclResult_t ncclBroadcast(const void* input, void* output, size_t count, ncclDataType_t type, int root,
                           ncclComm_t comm, cudaStream_t stream) {
  return add(comm, {Operation::kBroadcast, input, output, count, type, ncclSum, root, -1, -1, stream});
}
ncclResult_t ncclSend(const void* input, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
  return add(comm, {Operation::kPointToPoint, input, nullptr, count, type, ncclSum, 0, peer, -1, stream});
}
ncclResult_t ncclRecv(void* output, size_t count, ncclDataType_t type, int peer, ncclComm_t comm, cudaStream_t stream) {
  return add(comm, {Operation::kPointToPoint, nullptr, output, count, type, ncclSum, 0, -1, peer, stream});
}

}  // extern "C"
