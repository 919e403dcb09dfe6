#include "runtime/cuda/launch_graphs.h"

#include <cstdio>
#include <string>
#include <utility>

#include "base/status.h"
#include "runtime/cuda/cuda_device.h"

namespace partita::runtime {

absl::Status LaunchGraphs::replay(size_t number, cudaStream_t stream, absl::FunctionRef<absl::Status()> issue,
                                  absl::Status& failure) {
  Entry& entry = entries_[number];
  if (entry.stage == Stage::kFirst) {
    entry.stage = Stage::kSecond;
    return issue();
  }
  if (entry.stage == Stage::kSecond) PARTITA_RETURN_IF_ERROR(capture(entry, stream, issue, failure));
  if (entry.stage == Stage::kIssued) return issue();
  const cudaError_t e = cudaGraphLaunch(entry.graph, stream);
  return e == cudaSuccess ? absl::OkStatus() : cuda_error("cudaGraphLaunch", e);
}

// Only this thread's calls are held to what may be captured: others work for the same device meanwhile. Nothing that is
// captured has run, so a fault of it is none yet.
absl::Status LaunchGraphs::capture(Entry& entry, cudaStream_t stream, absl::FunctionRef<absl::Status()> issue,
                                   absl::Status& failure) {
  entry.stage = Stage::kIssued;
  cudaError_t e = cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal);
  if (e != cudaSuccess) return cuda_error("cudaStreamBeginCapture", e);
  const absl::Status before = failure;
  absl::Status issued = issue();
  issued.Update(std::exchange(failure, before));
  cudaGraph_t graph = nullptr;
  e = cudaStreamEndCapture(stream, &graph);
  if (issued.ok() && e == cudaSuccess) e = cudaGraphInstantiate(&entry.graph, graph, 0);
  if (issued.ok() && e == cudaSuccess) entry.stage = Stage::kKept;
  if (entry.stage != Stage::kKept && !std::exchange(told_, true))
    std::fprintf(stderr, "note: kernels are launched one by one: the GPU's driver makes no graph of them (%s)\n",
                 issued.ok() ? cudaGetErrorString(e) : std::string(issued.message()).c_str());
  if (graph != nullptr) cudaGraphDestroy(graph);
  cudaGetLastError();
  return absl::OkStatus();
}

void LaunchGraphs::clear() {
  for (const Entry& entry : entries_) {
    if (entry.graph != nullptr) cudaGraphExecDestroy(entry.graph);
  }
  entries_.clear();
}

}  // namespace partita::runtime
