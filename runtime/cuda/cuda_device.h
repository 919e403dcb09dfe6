// A CUDA device as an executor's device (runtime/device/device.h).
#pragma once

#include <cuda_runtime_api.h>

#include <chrono>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "runtime/cuda/copy_streams.h"
#include "runtime/cuda/cudnn_attention.h"
#include "runtime/cuda/cudnn_conv.h"
#include "runtime/cuda/event_pool.h"
#include "runtime/cuda/launch_graphs.h"
#include "runtime/cuda/library.h"
#include "runtime/cuda/product_choices.h"
#include "runtime/cuda/staging.h"
#include "runtime/cuda/upload_memory.h"
#include "runtime/device/device.h"
#include "runtime/kernels/kernel_request.h"

namespace partita::runtime {

// "cudaMalloc: out of memory". Internal, or ResourceExhausted where memory is short.
absl::Status cuda_error(const char* call, cudaError_t code);

// A GPU: its memory, its streams, and the first error that CUDA has reported (failure()).
class CudaDevice final : public Device {
 public:
  // FailedPrecondition where the driver, the device or the program's architecture do not fit.
  static absl::StatusOr<std::unique_ptr<CudaDevice>> open(const Program& program, int ordinal);
  ~CudaDevice() override;

  std::string name() const override { return name_; }
  absl::Status tune(const std::string& file) override;
  absl::StatusOr<std::byte*> allocate(int64_t bytes) override;
  absl::StatusOr<std::byte*> allocate_on_host(int64_t bytes) override;
  absl::StatusOr<std::unique_ptr<LibraryKernel>> prepare(const Program& program, const Step& step) override;
  absl::StatusOr<std::unique_ptr<LibraryKernel>> prepare_batched(const Program& program,
                                                                 std::span<const Step* const> steps,
                                                                 std::span<std::byte* const> addresses) override;
  absl::StatusOr<int64_t> allocate_scratch() override;
  size_t replays(size_t count) override { return graphs_.add(count); }
  absl::Status replay(size_t number, absl::FunctionRef<absl::Status()> issue) override;
  absl::Status copy(std::byte* to, const std::byte* from, int64_t bytes) override;
  absl::Status beside_copies(const DeviceMemoryUse& use, absl::FunctionRef<absl::Status()> issue) override;
  absl::Status write(std::byte* to, std::span<const std::byte> from) override;
  absl::Status read(std::span<std::byte> to, const std::byte* from) override;
  absl::StatusOr<bool> reserve_uploads(std::span<const int64_t> parts) override;
  absl::StatusOr<int64_t> upload(std::span<const std::span<const std::byte>> parts) override;
  int64_t uploaded() const override { return uploads_.number(); }
  absl::Status copy_uploaded(std::span<std::byte* const> to) override;
  absl::StatusOr<int64_t> mark() override;
  absl::Status wait_for(int64_t mark) override;
  absl::Status stamp() override;
  absl::StatusOr<std::vector<double>> take_stamps() override;
  std::vector<std::pair<std::string, double>> readings() override;
  absl::Status failure() const override { return failure_; }
  absl::Status synchronize() override;
  absl::StatusOr<std::unique_ptr<Communicator>> communicator(Communicator& control) override;

  // For the makers of kernels. The stream is behind all copies to and from the host that its next work may meet.
  cudaStream_t stream() { return beside_copies_ ? stream_ : joined_stream(); }
  const cudaDeviceProp& properties() const { return properties_; }
  int ordinal() const { return ordinal_; }
  // Remembers the first thing that goes wrong while kernels run.
  void note(const char* call, cudaError_t code) {
    if (code != cudaSuccess) note(cuda_error(call, code));
  }
  void note(absl::Status status) {
    if (failure_.ok() && !status.ok()) failure_ = std::move(status);
  }
  // Memory that the kernels of a device share, each while it runs: there once all are prepared.
  void reserve_scratch(int64_t bytes) { scratch_needed_ = std::max(scratch_needed_, bytes); }
  std::byte* scratch() const { return scratch_; }

  // A kernel of the module's own (runtime/cuda/kernels/).
  absl::StatusOr<cudaKernel_t> own_kernel(const std::string& name);
  // With leave to use so much shared memory, which its launches name.
  absl::StatusOr<cudaKernel_t> own_kernel(const std::string& name, int shared_bytes);
  void launch(cudaKernel_t kernel, dim3 blocks, int threads, void** arguments, int shared_bytes = 0);
  // One thread for each of `items`, or as many blocks as keep the device busy.
  void launch_items(cudaKernel_t kernel, int64_t items, void** arguments);

  absl::StatusOr<cublasLtHandle_t> cublas();
  ProductChoices* choices() { return choices_ ? &*choices_ : nullptr; }  // null where nothing is tuned
  absl::StatusOr<cudnnHandle_t> cudnn();
  CudnnAttentions& attentions() { return attentions_; }
  CudnnConvs& convolutions() { return convolutions_; }
  // That cuDNN's graph API has an attention or a convolution, or why something else computes it: for the start and for
  // metrics.
  void count_attention(const absl::Status& graph) { attentions_taken_.count(graph); }
  void count_convolution(const absl::Status& graph) { convolutions_taken_.count(graph); }

 private:
  CudaDevice() = default;
  // Launched with so many blocks and addresses.
  absl::StatusOr<std::unique_ptr<LibraryKernel>> prepare_generated(const Program& program, const Step& step,
                                                                   int64_t blocks, size_t addresses);
  bool is_on_host(const std::byte* at) const;
  // Behind all copies.
  cudaStream_t joined_stream() {
    if (!copies_.is_joined()) note(copies_.join(stream_));
    return stream_;
  }
  absl::StatusOr<cudaKernel_t> generated_kernel(const Program& program, const std::string& name);

  int ordinal_ = 0;
  std::string name_;
  cudaDeviceProp properties_{};
  cudaStream_t stream_ = nullptr;
  std::vector<std::byte*> blocks_;
  std::map<std::byte*, int64_t> host_blocks_;  // page-locked, with their bytes
  std::byte* scratch_ = nullptr;
  int64_t scratch_needed_ = 0, scratch_bytes_ = 0, table_bytes_ = 0, allocated_ = 0;
  std::map<const Program*, cudaLibrary_t> libraries_;
  std::vector<cudaLibrary_t> own_;
  cublasLtHandle_t cublas_ = nullptr;
  cudnnHandle_t cudnn_ = nullptr;
  CudnnAttentions attentions_;
  CudnnConvs convolutions_;
  struct Taken {
    int64_t taken = 0, left = 0;
    std::string why;  // of the first that is left
    void count(const absl::Status& status) {
      ++(status.ok() ? taken : left);
      if (!status.ok() && why.empty()) why = std::string(status.message());
    }
  };
  Taken attentions_taken_, convolutions_taken_;
  std::optional<ProductChoices> choices_;
  LaunchGraphs graphs_;
  CopyStreams copies_;
  bool beside_copies_ = false;  // what is queued now is behind the copies that it meets
  std::vector<cudaEvent_t> stamps_;
  EventPool timed_events_{cudaEventDefault};
  Staging staging_;
  UploadMemory uploads_;
  absl::Status failure_;
  std::vector<std::pair<std::string, double>> readings_;
  std::chrono::steady_clock::time_point read_at_{};
};

// Collectives over NCCL: one rank of `control` on each device.
absl::StatusOr<std::unique_ptr<Communicator>> open_nccl(CudaDevice& device, Communicator& control);
// Collectives through the host's memory and `control`: several ranks on one device, or no NCCL.
absl::StatusOr<std::unique_ptr<Communicator>> open_staged(CudaDevice& device, Communicator& control);

}  // namespace partita::runtime
