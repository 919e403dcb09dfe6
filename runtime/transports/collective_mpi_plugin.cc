// libpartita_comm_mpi.so: the MPI back end, loaded at run time so that nothing else needs MPI.
//
// Every MPI call, MPI_Init_thread and MPI_Finalize included, is made by the progress thread: MPI_THREAD_FUNNELED is
// enough. MPI cannot sleep until something happens, so waiting is a loop of tests with growing pauses (to 0.2 ms amid a
// transfer, 2 ms at rest) that wake() cuts short. Aborts travel on a communicator of their own. After a failure
// MPI_Finalize is left out (it could wait for the dead); mpirun then ends the job, as it does when a process dies.
// A rank that leaves early waits in MPI_Finalize for the others.
#define OMPI_SKIP_MPICXX 1
#define MPICH_SKIP_MPICXX 1
#include <mpi.h>

#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

#include "base/cat.h"
#include "runtime/communicate/lost_ranks.h"
#include "runtime/communicate/transport.h"

namespace partita::runtime {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::microseconds;

constexpr int kAbortTag = 1;
constexpr size_t kMaxAbortBytes = 4096;

std::string mpi_error(int code) {
  char text[MPI_MAX_ERROR_STRING] = {};
  int length = 0;
  MPI_Error_string(code, text, &length);
  return std::string(text, static_cast<size_t>(std::max(length, 0)));
}

class MpiTransport final : public Transport {
 public:
  ~MpiTransport() override;
  // "" or what went wrong.
  std::string open();

  std::string_view name() const override { return "mpi"; }
  int rank() const override { return rank_; }
  int size() const override { return size_; }
  void post_send(Transfer& transfer) override { post(transfer, true); }
  void post_recv(Transfer& transfer) override { post(transfer, false); }
  absl::Status progress(SteadyTime until) override;
  void wake() override;
  std::string diagnose(int peer) override;
  void abort(std::string_view reason) override;
  void close() override {}

 private:
  void post(Transfer& transfer, bool is_send);
  void note(int code, const char* call) {
    if (code != MPI_SUCCESS && failure_.ok()) failure_ = absl::UnavailableError(cat(call, ": ", mpi_error(code)));
  }
  bool test_transfers();
  void complete(size_t index, const MPI_Status& status);
  void test_abort();
  bool pause(microseconds length);  // true when woken

  MPI_Comm data_ = MPI_COMM_NULL, control_ = MPI_COMM_NULL;
  bool initialized_here_ = false, aborted_ = false;
  int rank_ = 0, size_ = 0, max_tag_ = 32767;
  std::vector<Transfer*> transfers_;  // beside requests_
  std::vector<MPI_Request> requests_;
  std::vector<int> indices_;
  std::vector<MPI_Status> statuses_;
  std::vector<char> abort_text_ = std::vector<char>(kMaxAbortBytes);
  MPI_Request abort_request_ = MPI_REQUEST_NULL;
  absl::Status failure_;

  std::mutex mutex_;
  std::condition_variable wakeups_;
  bool woken_ = false;
};

std::string MpiTransport::open() {
  int initialized = 0, finalized = 0, provided = 0;
  MPI_Initialized(&initialized);
  MPI_Finalized(&finalized);
  if (finalized) return "MPI was used and finalized in this process already; it cannot start again";
  if (initialized) {
    MPI_Query_thread(&provided);
    if (provided < MPI_THREAD_SERIALIZED) return "MPI was initialized for the main thread only";
  } else {
    if (const int code = MPI_Init_thread(nullptr, nullptr, MPI_THREAD_FUNNELED, &provided); code != MPI_SUCCESS)
      return mpi_error(code);
    initialized_here_ = true;
    if (provided < MPI_THREAD_FUNNELED) return "this MPI does not support threads";
  }
  if (int code = MPI_Comm_dup(MPI_COMM_WORLD, &data_); code != MPI_SUCCESS) return mpi_error(code);
  if (int code = MPI_Comm_dup(MPI_COMM_WORLD, &control_); code != MPI_SUCCESS) return mpi_error(code);
  MPI_Comm_set_errhandler(data_, MPI_ERRORS_RETURN);
  MPI_Comm_set_errhandler(control_, MPI_ERRORS_RETURN);
  MPI_Comm_rank(data_, &rank_);
  MPI_Comm_size(data_, &size_);
  void* limit = nullptr;
  int known = 0;
  MPI_Comm_get_attr(data_, MPI_TAG_UB, &limit, &known);
  if (known) max_tag_ = *static_cast<int*>(limit);
  const int code = MPI_Irecv(abort_text_.data(), static_cast<int>(abort_text_.size()), MPI_CHAR, MPI_ANY_SOURCE,
                             kAbortTag, control_, &abort_request_);
  return code == MPI_SUCCESS ? "" : mpi_error(code);
}

MpiTransport::~MpiTransport() {
  if (aborted_ || !failure_.ok() || data_ == MPI_COMM_NULL) return;
  if (abort_request_ != MPI_REQUEST_NULL) {
    MPI_Cancel(&abort_request_);
    MPI_Wait(&abort_request_, MPI_STATUS_IGNORE);
  }
  MPI_Comm_free(&data_);
  MPI_Comm_free(&control_);
  if (initialized_here_) MPI_Finalize();
}

void MpiTransport::post(Transfer& transfer, bool is_send) {
  // Two messages whose tags collide are still told apart: MPI keeps the order of messages with equal tags.
  const int tag = static_cast<int>(envelope_hash(transfer.envelope) % static_cast<uint64_t>(max_tag_));
  MPI_Request request = MPI_REQUEST_NULL;
  const int bytes = static_cast<int>(transfer.size);
  const int code = is_send ? MPI_Isend(transfer.data, bytes, MPI_BYTE, transfer.peer, tag, data_, &request)
                           : MPI_Irecv(transfer.data, bytes, MPI_BYTE, transfer.peer, tag, data_, &request);
  note(code, is_send ? "MPI_Isend" : "MPI_Irecv");
  if (code != MPI_SUCCESS) return;
  transfer.moved = is_send ? 1 : 0;  // which way, for complete()
  transfers_.push_back(&transfer);
  requests_.push_back(request);
}

void MpiTransport::complete(size_t index, const MPI_Status& status) {
  Transfer& transfer = *transfers_[index];
  transfers_[index] = nullptr;
  int bytes = static_cast<int>(transfer.size);
  if (transfer.moved == 0) MPI_Get_count(&status, MPI_BYTE, &bytes);
  if (static_cast<size_t>(bytes) != transfer.size && failure_.ok()) {
    failure_ = absl::FailedPreconditionError(cat("the ranks' operations do not match: rank ", transfer.peer, " sent ",
                                                 bytes, " bytes where ", transfer.size, " are expected"));
    return;
  }
  transfer.done.store(true, std::memory_order_release);
}

bool MpiTransport::test_transfers() {
  if (requests_.empty()) return false;
  int count = 0;
  indices_.resize(requests_.size());
  statuses_.resize(requests_.size());
  const int code =
      MPI_Testsome(static_cast<int>(requests_.size()), requests_.data(), &count, indices_.data(), statuses_.data());
  if (code == MPI_ERR_IN_STATUS) {
    for (int i = 0; i < count; ++i) {
      if (const int error = statuses_[static_cast<size_t>(i)].MPI_ERROR;
          error != MPI_SUCCESS && error != MPI_ERR_PENDING) {
        const int peer = transfers_[static_cast<size_t>(indices_[static_cast<size_t>(i)])]->peer;
        int error_class = error;
        MPI_Error_class(error, &error_class);
        const std::string text = cat("message with rank ", peer, ": ", mpi_error(error));
        if (failure_.ok())
          failure_ = error_class == MPI_ERR_TRUNCATE
                         ? absl::FailedPreconditionError(cat("the ranks' operations do not match: ", text))
                         : absl::UnavailableError(text);
      }
    }
    return true;
  }
  note(code, "MPI_Testsome");
  if (code != MPI_SUCCESS || count <= 0) return !failure_.ok();
  for (int i = 0; i < count; ++i)
    complete(static_cast<size_t>(indices_[static_cast<size_t>(i)]), statuses_[static_cast<size_t>(i)]);
  std::erase(transfers_, nullptr);
  std::erase(requests_, MPI_REQUEST_NULL);
  return true;
}

void MpiTransport::test_abort() {
  int flag = 0;
  MPI_Status status;
  note(MPI_Test(&abort_request_, &flag, &status), "MPI_Test");
  if (!flag || !failure_.ok()) return;
  int length = 0;
  MPI_Get_count(&status, MPI_CHAR, &length);
  failure_ = gave_up_error({abort_text_.data(), static_cast<size_t>(std::clamp<int>(length, 0, kMaxAbortBytes))});
  aborted_ = true;  // everybody has been told
}

bool MpiTransport::pause(microseconds length) {
  std::unique_lock lock(mutex_);
  if (length.count() > 0) wakeups_.wait_for(lock, length, [&] { return woken_; });
  return std::exchange(woken_, false);
}

absl::Status MpiTransport::progress(SteadyTime until) {
  for (int64_t round = 0;; ++round) {
    const bool moved = test_transfers();
    test_abort();
    if (!failure_.ok()) return failure_;
    if (moved || Clock::now() >= until) return absl::OkStatus();
    const int64_t longest = requests_.empty() ? 2000 : 200;
    const microseconds rest(round < 20 ? 0 : std::min(longest, (round - 20) * 10));
    if (pause(rest)) return absl::OkStatus();
    if (rest.count() == 0) std::this_thread::yield();
  }
}

void MpiTransport::wake() {
  std::lock_guard lock(mutex_);
  woken_ = true;
  wakeups_.notify_all();
}

std::string MpiTransport::diagnose(int peer) {
  int flag = 0;
  MPI_Status status;
  if (MPI_Iprobe(peer, MPI_ANY_TAG, data_, &flag, &status) != MPI_SUCCESS || !flag) return "";
  return cat("rank ", peer, " has sent a message of another operation: the ranks' operations do not match");
}

void MpiTransport::abort(std::string_view reason) {
  if (std::exchange(aborted_, true)) return;
  reason = reason.substr(0, kMaxAbortBytes);
  std::vector<MPI_Request> sends(static_cast<size_t>(size_), MPI_REQUEST_NULL);
  for (int peer = 0; peer < size_; ++peer) {
    if (peer == rank_) continue;
    MPI_Isend(reason.data(), static_cast<int>(reason.size()), MPI_CHAR, peer, kAbortTag, control_,
              &sends[static_cast<size_t>(peer)]);
  }
  int all = 0;
  for (const SteadyTime until = Clock::now() + std::chrono::seconds(1); !all && Clock::now() < until;) {
    if (MPI_Testall(size_, sends.data(), &all, MPI_STATUSES_IGNORE) != MPI_SUCCESS) break;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

}  // namespace
}  // namespace partita::runtime

extern "C" __attribute__((visibility("default"))) partita::runtime::Transport* partita_open_transport(
    uint32_t version, int64_t /*timeout_milliseconds*/, std::string* error) {
  using namespace partita::runtime;
  if (version != kTransportPluginVersion) {
    *error = "this module belongs to another version of Partita";
    return nullptr;
  }
  auto transport = std::make_unique<MpiTransport>();
  *error = transport->open();
  return error->empty() ? transport.release() : nullptr;
}
