// Everything that moves data is queued on streams, and nothing there needs the host to go on, as with NCCL itself: a
// rank's stream waits for a word of the meeting page, copies a piece into its own memory for the receiver (which has it
// open over CUDA IPC), and writes the word that the receiver's stream waits for. No operation ends before all that it
// sent was taken: a program that needs NCCL's buffering to go on hangs here.
#include "tests/stand_ins/nccl/communicator.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "tests/stand_ins/nccl/reduce.h"

extern "C" const unsigned char partita_kernels_reduce[];

namespace partita::stand_in {
namespace {

constexpr uint64_t kReleased = uint64_t{1} << 62;

size_t size_of(ncclDataType_t type) {
  constexpr size_t kSizes[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2};
  return kSizes[type];
}

using StreamWord = CUresult(CUstream, CUdeviceptr, cuuint64_t, unsigned);
StreamWord* driver_function(const char* name) {
  void* found = nullptr;
  cudaDriverEntryPointQueryResult result{};
  cudaGetDriverEntryPointByVersion(name, &found, 12000, cudaEnableDefault, &result);
  return reinterpret_cast<StreamWord*>(found);
}

}  // namespace

StandInCommunicator::StandInCommunicator(std::string name, int rank, int ranks, bool blocking)
    : name_(std::move(name)),
      rank_(rank),
      ranks_(ranks),
      device_([] {
        int device = 0;
        cudaGetDevice(&device);
        return device;
      }()),
      blocking_(blocking) {}

ncclResult_t StandInCommunicator::state() const {
  return failure_ != ncclSuccess ? failure_.load() : in_progress_ ? ncclInProgress : ncclSuccess;
}

std::string StandInCommunicator::last_error() const {
  std::lock_guard lock(mutex_);
  return reason_;
}

ncclResult_t StandInCommunicator::fail(ncclResult_t code, const std::string& what) {
  std::lock_guard lock(mutex_);
  if (failure_ == ncclSuccess) {
    reason_ = what;
    failure_ = code;
    std::fprintf(stderr, "NCCL stand-in: rank %d of %d: %s\n", rank_, ranks_, what.c_str());
  }
  return failure_;
}

void StandInCommunicator::check(cudaError_t code, const char* call) {
  if (code != cudaSuccess) fail(ncclUnhandledCudaError, std::string(call) + ": " + cudaGetErrorString(code));
}

// The worker does what may take long, one task after the other.
ncclResult_t StandInCommunicator::run(std::function<ncclResult_t()> task) {
  if (in_progress_) return fail(ncclInvalidUsage, "a call while the one before is still in progress");
  if (failure_ != ncclSuccess) return failure_;
  in_progress_ = true;
  {
    std::lock_guard lock(mutex_);
    tasks_.push_back(std::move(task));
  }
  changed_.notify_all();
  while (blocking_ && in_progress_) std::this_thread::sleep_for(std::chrono::microseconds(50));
  return state();
}

void StandInCommunicator::work() {
  check(cudaSetDevice(device_), "cudaSetDevice");
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return !tasks_.empty() || ends_; });
    if (ends_) return;
    std::function<ncclResult_t()> task = std::move(tasks_.front());
    tasks_.pop_front();
    lock.unlock();
    task();
    in_progress_ = false;
    lock.lock();
  }
}

ncclResult_t StandInCommunicator::start() {
  worker_ = std::thread([this] { work(); });
  return run([this] { return meet(); });
}

ncclResult_t StandInCommunicator::meet() {
  std::string why;
  if (!meeting_.open(name_, rank_, ranks_, why)) return fail(ncclSystemError, why);
  const auto gives_up = [this] { return aborted_.load(); };
  if (!meeting_.wait_for_all(kHere, gives_up)) return ncclSuccess;
  if (rank_ == 0) meeting_.leave_name();
  void* own = nullptr;
  check(cudaMalloc(&own, kPiece * static_cast<size_t>(ranks_)), "cudaMalloc");
  check(cudaLibraryLoadData(&kernels_, partita_kernels_reduce, nullptr, nullptr, 0, nullptr, nullptr, 0), "kernels");
  check(cudaEventCreateWithFlags(&fork_, cudaEventDisableTiming), "cudaEventCreate");
  check(cudaEventCreateWithFlags(&last_, cudaEventDisableTiming), "cudaEventCreate");
  if (failure_ == ncclSuccess) check(cudaIpcGetMemHandle(&meeting_.member(rank_).memory, own), "cudaIpcGetMemHandle");
  if (failure_ != ncclSuccess) return failure_;
  meeting_.member(rank_).process = ::getpid();
  meeting_.member(rank_).address = own;
  meeting_.member(rank_).state = kReady;
  if (!meeting_.wait_for_all(kReady, gives_up)) return ncclSuccess;
  for (int r = 0; r < ranks_; ++r) {
    void* memory = meeting_.member(r).address;
    if (meeting_.member(r).process != ::getpid())
      check(cudaIpcOpenMemHandle(&memory, meeting_.member(r).memory, cudaIpcMemLazyEnablePeerAccess),
            "cudaIpcOpenMemHandle");
    memories_.push_back(static_cast<char*>(memory));
  }
  meeting_.member(rank_).state = kConnected;
  meeting_.wait_for_all(kConnected, gives_up);
  return failure_;
}

ncclResult_t StandInCommunicator::submit(std::vector<Call> calls) {
  if (!may_ask()) return ncclInvalidUsage;
  {
    std::lock_guard lock(mutex_);
    if (finalized_) return ncclInvalidUsage;
    owner_ = std::this_thread::get_id();
  }
  for (const Call& c : calls) {
    if (user_stream_ == nullptr) user_stream_ = c.stream;
    if (c.stream == nullptr || c.stream != user_stream_)
      return fail(ncclInvalidUsage, "the operations of a communicator on more than one stream, or on the default one");
    if (c.count >> 32 != 0 || c.type >= ncclFloat8e4m3 || c.reduction == ncclProd || c.reduction > ncclMin)
      return fail(ncclInvalidArgument, "a count, type or reduction that the stand-in does not know");
    if (c.root < 0 || c.root >= ranks_ || std::max(c.to, c.from) >= ranks_)
      return fail(ncclInvalidArgument, "a peer outside of the communicator");
    if (c.count > 0 && ((c.input == nullptr && c.from < 0) || (c.output == nullptr && c.to < 0)))
      return fail(ncclInvalidArgument, "no buffer");
  }
  return run([this, calls = std::move(calls)] { return enqueue(calls); });
}

ncclResult_t StandInCommunicator::enqueue(const std::vector<Call>& calls) {
  std::vector<Call> messages;
  for (const Call& c : calls) {
    if (c.operation == Operation::kPointToPoint)
      messages.push_back(c);
    else
      enqueue_collective(c);
  }
  if (!messages.empty()) fork_messages(messages);
  check(cudaEventRecord(last_, user_stream_), "cudaEventRecord");
  return failure_;
}

void StandInCommunicator::wait_for(std::atomic<uint64_t>& word, uint64_t value, cudaStream_t stream) {
  static StreamWord* const function = driver_function("cuStreamWaitValue64");
  if (function == nullptr ||
      function(stream, meeting_.on_device(word), value, CU_STREAM_WAIT_VALUE_GEQ) != CUDA_SUCCESS)
    fail(ncclUnhandledCudaError, "cuStreamWaitValue64");
}
void StandInCommunicator::write(std::atomic<uint64_t>& word, uint64_t value, cudaStream_t stream) {
  static StreamWord* const function = driver_function("cuStreamWriteValue64");
  if (function == nullptr ||
      function(stream, meeting_.on_device(word), value, CU_STREAM_WRITE_VALUE_DEFAULT) != CUDA_SUCCESS)
    fail(ncclUnhandledCudaError, "cuStreamWriteValue64");
}
void StandInCommunicator::copy(void* to, const void* from, size_t bytes, cudaStream_t stream) {
  if (bytes > 0 && to != from)
    check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, stream), "cudaMemcpyAsync");
}

void StandInCommunicator::put(int to, const void* from, size_t bytes, const Label& label, cudaStream_t stream) {
  Box& box = meeting_.box(rank_, to);
  wait_for(box.taken, posted_[to], stream);
  copy(piece(rank_, to), from, bytes, stream);
  write(box.label, label.packed(), stream);
  write(box.posted, ++posted_[to], stream);
}

struct StandInCommunicator::Question {
  std::shared_ptr<StandInCommunicator> self;
  int from;
  Label expected;
};
void StandInCommunicator::compare(void* data) {
  std::unique_ptr<Question> q(static_cast<Question*>(data));
  if (q->self->aborted_) return;
  const uint64_t found = q->self->meeting_.box(q->from, q->self->rank_).label;
  if (found != q->expected.packed())
    q->self->fail(ncclInvalidUsage, "expected from rank " + std::to_string(q->from) + ": " + q->expected.text() +
                                        "; found: " + Label::of(found).text());
}

void StandInCommunicator::expect(int from, const Label& label, cudaStream_t stream) {
  wait_for(meeting_.box(from, rank_).posted, ++expected_[from], stream);
  check(cudaLaunchHostFunc(stream, compare, new Question{shared_from_this(), from, label}), "cudaLaunchHostFunc");
}
void StandInCommunicator::taken(int from, cudaStream_t stream) {
  write(meeting_.box(from, rank_).taken, expected_[from], stream);
}

void StandInCommunicator::reduce(const Call& call, char* output, size_t bytes) {
  ReduceArguments z{};
  for (int r = 0; r < ranks_; ++r) z.sources[r] = piece(r, rank_);
  z.output = output;
  z.count = static_cast<int64_t>(bytes / size_of(call.type));
  z.ranks = ranks_, z.reduction = call.reduction;
  cudaKernel_t kernel = nullptr;
  check(cudaLibraryGetKernel(&kernel, kernels_, ("reduce_" + std::to_string(call.type)).c_str()), "reduction");
  void* arguments[] = {&z};
  constexpr int64_t kThreads = 256, kMostBlocks = 1024;
  const auto blocks = static_cast<unsigned>(std::min((z.count + kThreads - 1) / kThreads, kMostBlocks));
  if (kernel != nullptr && blocks > 0)
    check(cudaLaunchKernel(reinterpret_cast<const void*>(kernel), dim3(blocks), dim3(kThreads), arguments, 0,
                           user_stream_),
          "cudaLaunchKernel");
}

// Everybody tells everybody what comes; then pieces go from all to all, or from the root.
void StandInCommunicator::enqueue_collective(const Call& call) {
  const Label label{call.operation,
                    static_cast<uint8_t>(call.type),
                    static_cast<uint8_t>(call.reduction),
                    static_cast<uint8_t>(call.root),
                    operations_++,
                    call.count};
  const size_t size = size_of(call.type), total = call.count * size;
  const bool scatters = call.operation == Operation::kReduceScatter, gathers = call.operation == Operation::kAllGather;
  auto each_peer = [&](auto body) {
    for (int r = 0; r < ranks_; ++r) {
      if (r != rank_) body(r);
    }
  };
  each_peer([&](int r) { put(r, nullptr, 0, label, user_stream_); });
  each_peer([&](int r) { expect(r, label, user_stream_); });
  each_peer([&](int r) { taken(r, user_stream_); });
  const auto* input = static_cast<const char*>(call.input);
  auto* output = static_cast<char*>(call.output);
  const size_t step = kPiece / size * size;
  for (size_t at = 0; at < total; at += step) {
    const size_t bytes = std::min(step, total - at);
    if (call.operation == Operation::kBroadcast) {
      if (rank_ == call.root) {
        each_peer([&](int r) { put(r, input + at, bytes, label, user_stream_); });
        copy(output + at, input + at, bytes, user_stream_);
      } else {
        expect(call.root, label, user_stream_);
        copy(output + at, piece(call.root, rank_), bytes, user_stream_);
        taken(call.root, user_stream_);
      }
      continue;
    }
    auto part = [&](int r) { return input + at + (scatters ? static_cast<size_t>(r) * total : 0); };
    copy(piece(rank_, rank_), part(rank_), bytes, user_stream_);
    each_peer([&](int r) { put(r, part(r), bytes, label, user_stream_); });
    each_peer([&](int r) { expect(r, label, user_stream_); });
    if (gathers) {
      for (int r = 0; r < ranks_; ++r)
        copy(output + static_cast<size_t>(r) * total + at, piece(r, rank_), bytes, user_stream_);
    } else {
      reduce(call, output + at, bytes);
    }
    each_peer([&](int r) { taken(r, user_stream_); });
  }
  each_peer([&](int r) { wait_for(meeting_.box(rank_, r).taken, posted_[r], user_stream_); });
}

void StandInCommunicator::enqueue_message(const Call& call, cudaStream_t stream) {
  const size_t size = size_of(call.type), total = call.count * size, step = kPiece / size * size;
  const bool sends = call.to >= 0;
  const Label label{Operation::kPointToPoint,
                    static_cast<uint8_t>(call.type),
                    0,
                    0,
                    sends ? messages_to_[call.to]++ : messages_from_[call.from]++,
                    call.count};
  size_t at = 0;
  do {  // an empty one is told too
    const size_t bytes = std::min(step, total - at);
    if (sends) {
      put(call.to, static_cast<const char*>(call.input) + at, bytes, label, stream);
    } else {
      expect(call.from, label, stream);
      copy(static_cast<char*>(call.output) + at, piece(call.from, rank_), bytes, stream);
      taken(call.from, stream);
    }
    at += step;
  } while (at < total);
  if (sends) wait_for(meeting_.box(rank_, call.to).taken, posted_[call.to], stream);
}

// The messages of a group go side by side, those between the same two ranks one after the other.
void StandInCommunicator::fork_messages(const std::vector<Call>& calls) {
  check(cudaEventRecord(fork_, user_stream_), "cudaEventRecord");
  std::vector<cudaStream_t> used;
  for (const Call& c : calls) {
    cudaStream_t stream = stream_for_message(c.to >= 0 ? c.to : ranks_ + c.from);
    if (stream == nullptr) return;
    if (std::find(used.begin(), used.end(), stream) == used.end()) {
      check(cudaStreamWaitEvent(stream, fork_, 0), "cudaStreamWaitEvent");
      used.push_back(stream);
    }
    enqueue_message(c, stream);
  }
  for (cudaStream_t stream : used) {
    check(cudaEventRecord(fork_, stream), "cudaEventRecord");
    check(cudaStreamWaitEvent(user_stream_, fork_, 0), "cudaStreamWaitEvent");
  }
}

cudaStream_t StandInCommunicator::stream_for_message(int k) {
  streams_.resize(2 * static_cast<size_t>(ranks_));
  cudaStream_t& stream = streams_[static_cast<size_t>(k)];
  if (stream == nullptr) check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreate");
  return stream;
}

// Streams that wait for the others wait no longer. A peer that is still alive may write a word again.
void StandInCommunicator::release_streams() {
  cudaSetDevice(device_);
  while (last_ != nullptr && cudaEventQuery(last_) == cudaErrorNotReady) {
    for (int r = 0; r < ranks_; ++r) {
      meeting_.box(r, rank_).posted = kReleased;
      meeting_.box(rank_, r).taken = kReleased;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

bool StandInCommunicator::may_ask() {
  {
    std::lock_guard lock(mutex_);
    if (finalized_ || owner_ == std::thread::id() || owner_ == std::this_thread::get_id()) return true;
  }
  fail(ncclInvalidUsage, "asked by another thread than the one that issues");
  return false;
}

ncclResult_t StandInCommunicator::finalize() {
  {
    std::lock_guard lock(mutex_);
    finalized_ = true;
  }
  return run([this] {
    if (last_ != nullptr) check(cudaEventSynchronize(last_), "cudaEventSynchronize");
    return failure_.load();
  });
}

// Memory stays until the process ends, here and in close(): a peer may have it open.
void StandInCommunicator::abort() {
  aborted_ = true;
  {
    std::lock_guard lock(mutex_);
    ends_ = true;
  }
  changed_.notify_all();
  worker_.join();
  std::thread([self = shared_from_this()] { self->release_streams(); }).detach();
}

void StandInCommunicator::close() {
  if (!blocking_ && (!finalized_ || in_progress_)) {
    fail(ncclInvalidUsage, "destroyed before it was finalized");
    std::abort();
  }
  abort();
}

}  // namespace partita::stand_in
