// One communicator of NCCL's and the calls on it. All of them are such that do not block (ncclConfig_t::blocking = 0),
// so that a rank that never comes can be given up. NCCL allows calls at one time on different communicators only, the
// question for errors included: a link belongs to one thread, which may hand it on.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <vector>

#include "runtime/communicate/collective.h"
#include "runtime/cuda/library.h"
#include "runtime/cuda/ordered_sums.h"

namespace partita::runtime {

class NcclLink {
 public:
  // Rank `rank` of `ranks` that have the same `id`. `failure` is what ended the run, or Ok: asked while NCCL works.
  // Unavailable where a rank does not come in time, or NCCL fails.
  static absl::StatusOr<std::unique_ptr<NcclLink>> open(const Nccl& nccl, const ncclUniqueId& id, int rank, int ranks,
                                                        std::chrono::milliseconds timeout,
                                                        std::function<absl::Status()> failure);
  static absl::StatusOr<ncclUniqueId> new_id(const Nccl& nccl);
  ~NcclLink();
  NcclLink(const NcclLink&) = delete;
  NcclLink& operator=(const NcclLink&) = delete;

  // Queues an operation of any kind but barrier, peers and root as ranks of this communicator. Sums in order take
  // `sums`, which no other operation uses meanwhile; null: there are none.
  absl::Status issue(const CollectiveOp& op, cudaStream_t stream, const OrderedSums* sums = nullptr);
  // What NCCL has found to be wrong by now.
  absl::Status error() const;
  // The end where all is well, in two steps, since ranks end their links in any order: begin_end() on every link, then
  // end() on every one, which waits for the other ranks and aborts where one does not come. Nothing is issued
  // afterwards.
  void begin_end();
  void end();
  // Ends what runs. Nothing is issued afterwards.
  void abort();

 private:
  NcclLink(const Nccl& nccl, int rank, int ranks, std::chrono::milliseconds timeout,
           std::function<absl::Status()> failure)
      : nccl_(nccl), rank_(rank), ranks_(ranks), timeout_(timeout), failure_(std::move(failure)) {}
  absl::Status check(ncclResult_t result, const char* call) const;
  absl::Status settle(ncclResult_t result, const char* call) const;
  ncclResult_t reduce_or_gather(const CollectiveOp& op, const CollectiveBuffers& b, ncclDataType_t type,
                                cudaStream_t stream) const;
  // A message to a rank and one from there; nothing where a count is 0.
  struct Exchanged {
    int peer = 0;
    const std::byte* send = nullptr;
    int64_t send_count = 0;
    std::byte* receive = nullptr;
    int64_t receive_count = 0;
  };
  // All at once.
  absl::Status exchange(const std::vector<Exchanged>& messages, DType dtype, cudaStream_t stream,
                        const char* call) const;
  absl::Status sum_in_order(const CollectiveOp& op, cudaStream_t stream, const OrderedSums& sums) const;
  absl::Status sum_few_in_order(const CollectiveOp& op, cudaStream_t stream, const OrderedSums& sums) const;

  const Nccl& nccl_;
  int rank_, ranks_;
  std::chrono::milliseconds timeout_;
  std::function<absl::Status()> failure_;
  ncclComm_t comm_ = nullptr;
  ncclResult_t ending_ = ncclSuccess;  // what begin_end() was told
};

}  // namespace partita::runtime
