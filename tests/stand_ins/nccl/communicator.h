// One rank's end of a communicator of the NCCL stand-in (nccl.cc).
#pragma once

#include <cuda.h>
#include <cuda_runtime_api.h>
#include <nccl.h>

#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "tests/stand_ins/nccl/meeting.h"

namespace partita::stand_in {

// A call of the user's.
struct Call {
  Operation operation = Operation::kNone;
  const void* input = nullptr;
  void* output = nullptr;
  size_t count = 0;
  ncclDataType_t type = ncclFloat32;
  ncclRedOp_t reduction = ncclSum;
  int root = 0;  // broadcast
  int to = -1, from = -1;
  cudaStream_t stream = nullptr;
};

class StandInCommunicator : public std::enable_shared_from_this<StandInCommunicator> {
 public:
  StandInCommunicator(std::string name, int rank, int ranks, bool blocking);

  // Both as NCCL's calls: ncclInProgress at once where the communicator does not block.
  ncclResult_t start();
  ncclResult_t submit(std::vector<Call> calls);
  ncclResult_t state() const;
  std::string last_error() const;
  ncclResult_t finalize();
  void abort();
  void close();
  // Whether the thread that calls may ask: the one that issues, or, before anything was issued and after the end has
  // begun, any. NCCL allows no two calls at one time on a communicator.
  bool may_ask();

 private:
  ncclResult_t run(std::function<ncclResult_t()> task);
  void work();
  ncclResult_t fail(ncclResult_t code, const std::string& what);
  void check(cudaError_t code, const char* call);  // remembers what goes wrong
  ncclResult_t meet();
  ncclResult_t enqueue(const std::vector<Call>& calls);
  void enqueue_collective(const Call& call);
  void enqueue_message(const Call& call, cudaStream_t stream);
  void fork_messages(const std::vector<Call>& calls);

  // Each is queued on `stream`.
  void wait_for(std::atomic<uint64_t>& word, uint64_t value, cudaStream_t stream);
  void write(std::atomic<uint64_t>& word, uint64_t value, cudaStream_t stream);
  void copy(void* to, const void* from, size_t bytes, cudaStream_t stream);
  void put(int to, const void* from, size_t bytes, const Label& label, cudaStream_t stream);
  void expect(int from, const Label& label, cudaStream_t stream);
  void taken(int from, cudaStream_t stream);
  void reduce(const Call& call, char* output, size_t bytes);

  struct Question;
  static void CUDART_CB compare(void* question);
  char* piece(int from, int to) { return memories_[static_cast<size_t>(from)] + static_cast<size_t>(to) * kPiece; }
  cudaStream_t stream_for_message(int k);
  void release_streams();

  static constexpr size_t kPiece = 1 << 20;  // bytes of a message that travel at a time

  const std::string name_;
  const int rank_, ranks_, device_;
  const bool blocking_;
  Meeting meeting_;
  std::vector<char*> memories_;  // of every rank, a piece for each other
  cudaLibrary_t kernels_ = nullptr;
  cudaStream_t user_stream_ = nullptr;
  std::vector<cudaStream_t> streams_;  // for messages that go side by side
  cudaEvent_t fork_ = nullptr, last_ = nullptr;
  uint64_t posted_[kMostRanks] = {}, expected_[kMostRanks] = {};  // messages queued to and from each
  uint32_t operations_ = 0, messages_to_[kMostRanks] = {}, messages_from_[kMostRanks] = {};

  std::atomic<bool> aborted_ = false, ends_ = false, in_progress_ = false;
  std::atomic<ncclResult_t> failure_ = ncclSuccess;
  mutable std::mutex mutex_;
  std::string reason_;
  std::thread::id owner_;  // the thread that issues
  bool finalized_ = false;
  std::condition_variable changed_;
  std::deque<std::function<ncclResult_t()>> tasks_;
  std::thread worker_;
};

}  // namespace partita::stand_in
