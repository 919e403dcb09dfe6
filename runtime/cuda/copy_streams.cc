#include "runtime/cuda/copy_streams.h"

#include <algorithm>

#include "base/status.h"
#include "runtime/cuda/cuda_device.h"

namespace partita::runtime {

absl::Status CopyStreams::open() {
  for (cudaStream_t* stream : {&up_, &down_}) {
    if (cudaError_t e = cudaStreamCreateWithFlags(stream, cudaStreamNonBlocking); e != cudaSuccess)
      return cuda_error("cudaStreamCreate", e);
  }
  PARTITA_ASSIGN_OR_RETURN(behind_, events_.take());
  return absl::OkStatus();
}

void CopyStreams::close() {
  reset();
  if (behind_ != nullptr) events_.give_back(behind_);
  events_.close();
  for (cudaStream_t stream : {up_, down_}) {
    if (stream != nullptr) cudaStreamDestroy(stream);
  }
}

absl::StatusOr<cudaEvent_t> CopyStreams::add_mark(cudaStream_t stream) {
  PARTITA_ASSIGN_OR_RETURN(cudaEvent_t made, events_.take());
  marks_.push_back({++last_, made});
  if (cudaError_t e = cudaEventRecord(made, stream); e != cudaSuccess) return cuda_error("cudaEventRecord", e);
  return made;
}

absl::StatusOr<int64_t> CopyStreams::copy(std::byte* to, const std::byte* from, int64_t bytes, bool up,
                                          cudaStream_t main) {
  Copy copy{{to, to + bytes}, {from, from + bytes}, up};
  cudaStream_t stream = up ? up_ : down_;
  cudaError_t e = cudaEventRecord(behind_, main);
  if (e == cudaSuccess) e = cudaStreamWaitEvent(stream, behind_, 0);
  for (const Copy& c : under_way_) {
    const bool meets = c.to.meets(copy.to) || c.to.meets(copy.from) || c.from.meets(copy.to);
    if (c.up != up && meets && e == cudaSuccess) e = cudaStreamWaitEvent(stream, c.done, 0);
  }
  if (e == cudaSuccess) e = cudaMemcpyAsync(to, from, static_cast<size_t>(bytes), cudaMemcpyDefault, stream);
  if (e != cudaSuccess) return cuda_error("cudaMemcpy", e);
  PARTITA_ASSIGN_OR_RETURN(copy.done, add_mark(stream));
  copy.number = last_;
  under_way_.push_back(copy);
  return last_;
}

absl::Status CopyStreams::join(cudaStream_t main) {
  return join_if(main, [](const Copy&) { return true; });
}

absl::Status CopyStreams::join(cudaStream_t main, const DeviceMemoryUse& use) {
  const auto meets = [](const std::vector<Range>& ranges, const Range& copied) {
    return std::any_of(ranges.begin(), ranges.end(), [&](const Range& r) { return r.meets(copied); });
  };
  return join_if(main, [&](const Copy& c) {
    return meets(use.writes, c.to) || meets(use.reads, c.to) || meets(use.writes, c.from);
  });
}

absl::Status CopyStreams::join_if(cudaStream_t main, absl::FunctionRef<bool(const Copy&)> is_needed) {
  const Copy* last[2] = {};  // of each direction
  for (const Copy& c : under_way_) {
    if (is_needed(c)) last[c.up] = &c;
  }
  int64_t passed[2] = {};  // the main stream is behind those of a direction up to this one
  for (size_t up = 0; up < 2; ++up) {
    if (last[up] == nullptr) continue;
    passed[up] = last[up]->number;
    if (cudaError_t e = cudaStreamWaitEvent(main, last[up]->done, 0); e != cudaSuccess)
      return cuda_error("cudaStreamWaitEvent", e);
  }
  std::erase_if(under_way_, [&](const Copy& c) { return c.number <= passed[c.up]; });
  return absl::OkStatus();
}

absl::StatusOr<int64_t> CopyStreams::mark(cudaStream_t main) {
  PARTITA_RETURN_IF_ERROR(add_mark(main).status());
  return last_;
}

cudaError_t CopyStreams::wait_for(int64_t number) {
  cudaError_t first = cudaSuccess;
  while (!marks_.empty() && marks_.front().number <= number) {
    const cudaError_t e = cudaEventSynchronize(marks_.front().event);
    if (first == cudaSuccess) first = e;
    events_.give_back(marks_.front().event);
    marks_.pop_front();
  }
  std::erase_if(under_way_, [&](const Copy& c) { return c.number <= number; });
  return first;
}

void CopyStreams::reset() {
  for (const Mark& mark : marks_) events_.give_back(mark.event);
  marks_.clear();
  under_way_.clear();
}

}  // namespace partita::runtime
