#include "runtime/cuda/cuda_device.h"

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "base/cat.h"
#include "base/quote.h"
#include "base/status.h"
#include "runtime/cuda/kernels.h"
#include "runtime/cuda/named_kernel.h"
#include "runtime/device/cuda_environment.h"
#include "runtime/device/gpu_monitor.h"
#include "runtime/program/batched_launches.h"
#include "runtime/program/params.h"
#include "runtime/program/placement.h"

namespace partita::runtime {
namespace {

std::string version_text(int v) { return cat(v / 1000, ".", v % 1000 / 10); }

// The number in "cuda:sm_90": 90.
int architecture_of(const std::string& target) {
  size_t at = target.find("sm_");
  return at == std::string::npos ? 0 : std::atoi(target.c_str() + at + 3);
}

// The code that was compiled ahead runs on its own generation from its number on; PTX on all that are newer.
absl::Status check_architecture(const Program& program, const cudaDeviceProp& p) {
  const int needed = architecture_of(program.target), found = p.major * 10 + p.minor;
  if (found >= needed && needed > 0) return absl::OkStatus();
  return absl::FailedPreconditionError(cat("it needs a GPU of sm_", needed, " or newer, found sm_", found, " (", p.name,
                                           "); compile with --target cuda:sm_", found));
}

// Generated code: launched over all its blocks.
class GeneratedKernel final : public LibraryKernel {
 public:
  GeneratedKernel(CudaDevice& device, cudaKernel_t kernel, int64_t blocks, int threads, size_t operands)
      : device_(device),
        kernel_(kernel),
        blocks_(blocks),
        threads_(threads),
        addresses_(operands),
        arguments_(operands) {
    for (size_t k = 0; k < operands; ++k) arguments_[k] = &addresses_[k];
  }
  void run(std::span<std::byte* const> buffers) override {
    std::copy(buffers.begin(), buffers.end(), addresses_.begin());
    if (blocks_ > 0) device_.launch(kernel_, dim3(static_cast<unsigned>(blocks_)), threads_, arguments_.data());
  }

 private:
  CudaDevice& device_;
  cudaKernel_t kernel_;
  int64_t blocks_;
  int threads_;
  std::vector<std::byte*> addresses_;
  std::vector<void*> arguments_;
};

// For several steps at once.
class BatchedKernel final : public LibraryKernel {
 public:
  BatchedKernel(std::unique_ptr<LibraryKernel> kernel, std::byte* table) : kernel_(std::move(kernel)), table_(table) {}
  void run(std::span<std::byte* const>) override { kernel_->run({&table_, 1}); }

 private:
  std::unique_ptr<LibraryKernel> kernel_;
  std::byte* table_;
};

}  // namespace

absl::Status cuda_error(const char* call, cudaError_t code) {
  const std::string text = cat(call, ": ", cudaGetErrorString(code));
  return code == cudaErrorMemoryAllocation ? absl::ResourceExhaustedError(text) : absl::InternalError(text);
}

absl::StatusOr<std::unique_ptr<CudaDevice>> CudaDevice::open(const Program& program, int ordinal) {
  int driver = 0, runtime = 0, count = 0;
  prepare_cuda_environment(mesh_size(program.mesh) > 1);
  cudaDriverGetVersion(&driver);
  cudaRuntimeGetVersion(&runtime);
  if (driver == 0) return absl::FailedPreconditionError("it needs an NVIDIA driver, and none was found (libcuda.so.1)");
  if (driver / 1000 < runtime / 1000)
    return absl::FailedPreconditionError(cat("it needs a driver for CUDA ", version_text(runtime),
                                             ", found one for CUDA ", version_text(driver),
                                             "; install a newer driver"));
  const cudaError_t code = cudaGetDeviceCount(&count);
  if (code != cudaSuccess || count == 0)
    return absl::FailedPreconditionError(
        cat("it needs a GPU, and the driver (CUDA ", version_text(driver), ") shows none: ", cudaGetErrorString(code)));
  std::unique_ptr<CudaDevice> d(new CudaDevice);
  d->ordinal_ = ordinal % count;
  if (cudaError_t e = cudaSetDevice(d->ordinal_); e != cudaSuccess) return cuda_error("cudaSetDevice", e);
  if (cudaError_t e = cudaGetDeviceProperties(&d->properties_, d->ordinal_); e != cudaSuccess)
    return cuda_error("cudaGetDeviceProperties", e);
  d->name_ = cat("cuda:", d->ordinal_, " (", d->properties_.name, ")");
  PARTITA_RETURN_IF_ERROR(check_architecture(program, d->properties_));
  if (cudaError_t e = cudaStreamCreateWithFlags(&d->stream_, cudaStreamNonBlocking); e != cudaSuccess)
    return cuda_error("cudaStreamCreate", e);
  PARTITA_RETURN_IF_ERROR(d->copies_.open());
  PARTITA_RETURN_IF_ERROR(d->uploads_.open());
  PARTITA_RETURN_IF_ERROR(d->staging_.open());
  return d;
}

CudaDevice::~CudaDevice() {
  cudaSetDevice(ordinal_);
  if (stream_ != nullptr) cudaStreamSynchronize(stream());
  copies_.close();
  uploads_.close();
  graphs_.clear();
  if (cublas_ != nullptr) (*CublasLt::load())->destroy(cublas_);
  attentions_.clear();
  convolutions_.clear();
  if (cudnn_ != nullptr) (*Cudnn::load())->destroy(cudnn_);
  for (auto& [program, library] : libraries_) cudaLibraryUnload(library);
  for (cudaLibrary_t library : own_) cudaLibraryUnload(library);
  for (std::byte* block : blocks_) cudaFree(block);
  for (const auto& [block, bytes] : host_blocks_) cudaFreeHost(block);
  for (cudaEvent_t event : stamps_) timed_events_.give_back(event);
  timed_events_.close();
  staging_.close();
  if (stream_ != nullptr) cudaStreamDestroy(stream_);
}

absl::Status CudaDevice::tune(const std::string& file) {
  PARTITA_ASSIGN_OR_RETURN(choices_, ProductChoices::open(file));
  return absl::OkStatus();
}

absl::StatusOr<std::byte*> CudaDevice::allocate(int64_t bytes) {
  if (bytes == 0) return nullptr;
  size_t free = 0, total = 0;
  cudaMemGetInfo(&free, &total);
  void* block = nullptr;
  if (static_cast<size_t>(bytes) > free || cudaMalloc(&block, static_cast<size_t>(bytes)) != cudaSuccess) {
    cudaGetLastError();
    return absl::ResourceExhaustedError(
        cat("this rank needs ", bytes, " bytes of memory on ", name_, "; ", free, " of ", total, " are free"));
  }
  blocks_.push_back(static_cast<std::byte*>(block));
  allocated_ += bytes;
  if (cudaError_t e = cudaMemsetAsync(block, 0, static_cast<size_t>(bytes), stream()); e != cudaSuccess)
    return cuda_error("cudaMemset", e);
  return blocks_.back();
}

absl::StatusOr<std::byte*> CudaDevice::allocate_on_host(int64_t bytes) {
  if (bytes == 0) return nullptr;
  void* block = nullptr;
  if (cudaError_t e = cudaHostAlloc(&block, static_cast<size_t>(bytes), cudaHostAllocDefault); e != cudaSuccess) {
    cudaGetLastError();
    return absl::ResourceExhaustedError(cat("this rank needs ", bytes, " bytes of the host's memory, page-locked for ",
                                            name_, ": ", cudaGetErrorString(e)));
  }
  std::memset(block, 0, static_cast<size_t>(bytes));
  host_blocks_[static_cast<std::byte*>(block)] = bytes;
  return static_cast<std::byte*>(block);
}

absl::StatusOr<int64_t> CudaDevice::allocate_scratch() {
  static std::atomic<bool> said_attention = false, said_convolution = false;
  const auto tell = [](const Taken& t, const char* what, std::atomic<bool>& said) {
    if (t.left == 0 || said.exchange(true)) return;
    std::fprintf(stderr, "note: %s of %s %s; the first: %s\n", cat(t.left).c_str(), cat(t.left + t.taken).c_str(), what,
                 t.why.c_str());
  };
  tell(attentions_taken_, "attention kernels are our own, not cuDNN's", said_attention);
  tell(convolutions_taken_, "convolutions are by cuDNN's older interface, not by its graph API", said_convolution);
  if (scratch_needed_ > scratch_bytes_) {
    PARTITA_ASSIGN_OR_RETURN(scratch_, allocate(scratch_needed_));
    scratch_bytes_ = scratch_needed_;
  }
  return scratch_bytes_ + table_bytes_;
}

absl::Status CudaDevice::replay(size_t number, absl::FunctionRef<absl::Status()> issue) {
  return graphs_.replay(number, stream(), issue, failure_);
}

bool CudaDevice::is_on_host(const std::byte* at) const {
  return std::any_of(host_blocks_.begin(), host_blocks_.end(),
                     [&](const auto& b) { return at >= b.first && at < b.first + b.second; });
}

absl::Status CudaDevice::copy(std::byte* to, const std::byte* from, int64_t bytes) {
  const bool up = is_on_host(from);
  if (up != is_on_host(to)) return copies_.copy(to, from, bytes, up, stream_).status();
  const cudaError_t e = cudaMemcpyAsync(to, from, static_cast<size_t>(bytes), cudaMemcpyDefault, stream());
  return e == cudaSuccess ? absl::OkStatus() : cuda_error("cudaMemcpy", e);
}

absl::Status CudaDevice::beside_copies(const DeviceMemoryUse& use, absl::FunctionRef<absl::Status()> issue) {
  PARTITA_RETURN_IF_ERROR(copies_.join(stream_, use));
  beside_copies_ = true;
  const absl::Status issued = issue();
  beside_copies_ = false;
  return issued;
}

absl::Status CudaDevice::write(std::byte* to, std::span<const std::byte> from) {
  return staging_.write(to, from, stream());
}

absl::StatusOr<bool> CudaDevice::reserve_uploads(std::span<const int64_t> parts) { return uploads_.reserve(parts); }

absl::StatusOr<int64_t> CudaDevice::upload(std::span<const std::span<const std::byte>> parts) {
  return uploads_.upload(parts, staging_);
}

absl::Status CudaDevice::copy_uploaded(std::span<std::byte* const> to) { return uploads_.copy(to, stream()); }

absl::Status CudaDevice::read(std::span<std::byte> to, const std::byte* from) {
  for (size_t at = 0; at < to.size(); at += Staging::kBytes) {
    const size_t bytes = std::min(Staging::kBytes, to.size() - at);
    PARTITA_ASSIGN_OR_RETURN(Staging::Piece * piece, staging_.next());
    const cudaError_t e = cudaMemcpyAsync(piece->memory, from + at, bytes, cudaMemcpyDeviceToHost, stream());
    if (e != cudaSuccess) return cuda_error("cudaMemcpy", e);
    PARTITA_RETURN_IF_ERROR(synchronize());
    std::memcpy(to.data() + at, piece->memory, bytes);
  }
  return absl::OkStatus();
}

// Right after a copy it is that copy's.
absl::StatusOr<int64_t> CudaDevice::mark() { return copies_.is_joined() ? copies_.mark(stream_) : copies_.last(); }

absl::Status CudaDevice::wait_for(int64_t mark) {
  note("the GPU", copies_.wait_for(mark));
  return failure_;
}

absl::Status CudaDevice::stamp() {
  PARTITA_ASSIGN_OR_RETURN(cudaEvent_t event, timed_events_.take());
  stamps_.push_back(event);
  const cudaError_t e = cudaEventRecord(event, stream());
  return e == cudaSuccess ? absl::OkStatus() : cuda_error("cudaEventRecord", e);
}

absl::StatusOr<std::vector<double>> CudaDevice::take_stamps() {
  std::vector<double> seconds;
  for (cudaEvent_t event : stamps_) {
    float milliseconds = 0;
    if (cudaError_t e = cudaEventElapsedTime(&milliseconds, stamps_.front(), event); e != cudaSuccess)
      return cuda_error("cudaEventElapsedTime", e);
    seconds.push_back(milliseconds * 1e-3);
  }
  for (cudaEvent_t event : stamps_) timed_events_.give_back(event);
  stamps_.clear();
  return seconds;
}

// At most once a second: sensors are slower than short steps.
std::vector<std::pair<std::string, double>> CudaDevice::readings() {
  const auto now = std::chrono::steady_clock::now();
  if (now - read_at_ < std::chrono::seconds(1)) return readings_;
  read_at_ = now;
  const auto monitor = GpuMonitor::open();
  auto reading = monitor.ok() ? (*monitor)->read(properties_.uuid.bytes) : absl::StatusOr<GpuReading>(monitor.status());
  // The program's regions, and what kernels share beside them.
  const int64_t scratch = scratch_bytes_ + table_bytes_;
  readings_ = {{"gpu_allocated_bytes", static_cast<double>(allocated_ - scratch)},
               {"gpu_scratch_bytes", static_cast<double>(scratch)}};
  if (uploads_.bytes() > 0) readings_.emplace_back("gpu_upload_bytes", static_cast<double>(uploads_.bytes()));
  const auto add_counts = [&](const Taken& t, const char* taken, const char* left) {
    if (t.taken + t.left == 0) return;
    readings_.emplace_back(taken, static_cast<double>(t.taken));
    readings_.emplace_back(left, static_cast<double>(t.left));
  };
  add_counts(attentions_taken_, "gpu_attention_cudnn", "gpu_attention_own");
  add_counts(convolutions_taken_, "gpu_convolutions_graph", "gpu_convolutions_older");
  if (reading.ok()) {
    for (auto& metric : reading->metrics()) readings_.push_back(std::move(metric));
  } else if (static std::atomic<bool> said = false; !said.exchange(true)) {
    std::fprintf(stderr, "warning: no clocks and no used memory of %s in the metrics: %s\n", name_.c_str(),
                 std::string(reading.status().message()).c_str());
  }
  return readings_;
}

absl::Status CudaDevice::synchronize() {
  note("the GPU", cudaStreamSynchronize(joined_stream()));
  copies_.reset();
  return failure_;
}

absl::StatusOr<cudaKernel_t> CudaDevice::generated_kernel(const Program& program, const std::string& name) {
  auto [at, fresh] = libraries_.try_emplace(&program, nullptr);
  if (fresh) {
    // The cubin runs on its own generation; PTX is compiled by the driver for newer ones.
    const bool own = !program.kernels.empty() && architecture_of(program.target) / 10 == properties_.major;
    std::string text(program.portable_kernels.begin(), program.portable_kernels.end());  // with a 0 at its end
    const void* code = own ? static_cast<const void*>(program.kernels.data()) : text.c_str();
    const cudaError_t e = cudaLibraryLoadData(&at->second, code, nullptr, nullptr, 0, nullptr, nullptr, 0);
    if (e != cudaSuccess) {
      libraries_.erase(at);
      return absl::FailedPreconditionError(
          cat("the generated code for ", program.target, " cannot be loaded on ", name_, ": ", cudaGetErrorString(e)));
    }
  }
  cudaKernel_t kernel = nullptr;
  if (cudaError_t e = cudaLibraryGetKernel(&kernel, at->second, name.c_str()); e != cudaSuccess)
    return cuda_error(cat("generated kernel ", name).c_str(), e);
  return kernel;
}

absl::StatusOr<cudaKernel_t> CudaDevice::own_kernel(const std::string& name) {
  if (own_.empty()) {
    for (const unsigned char* code :
         {partita_kernels_attention, partita_kernels_epilogue, partita_kernels_flash, partita_kernels_fp8,
          partita_kernels_grouped, partita_kernels_indexing, partita_kernels_pool, partita_kernels_scan,
          partita_kernels_sums, partita_kernels_turn}) {
      cudaLibrary_t library = nullptr;
      const cudaError_t e = cudaLibraryLoadData(&library, code, nullptr, nullptr, 0, nullptr, nullptr, 0);
      if (e != cudaSuccess)
        return absl::FailedPreconditionError(
            cat("the CUDA module's kernels cannot be loaded on ", name_, ": ", cudaGetErrorString(e)));
      own_.push_back(library);
    }
  }
  cudaKernel_t kernel = nullptr;
  for (cudaLibrary_t library : own_) {
    if (cudaLibraryGetKernel(&kernel, library, name.c_str()) == cudaSuccess) return kernel;
  }
  cudaGetLastError();
  return absl::UnimplementedError(cat("the CUDA module has no kernel ", quote(name)));
}

absl::StatusOr<cudaKernel_t> CudaDevice::own_kernel(const std::string& name, int shared_bytes) {
  PARTITA_ASSIGN_OR_RETURN(cudaKernel_t made, own_kernel(name));
  const cudaError_t e =
      cudaKernelSetAttributeForDevice(made, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes, ordinal_);
  if (e != cudaSuccess) return cuda_error(cat(shared_bytes, " bytes of shared memory for ", name).c_str(), e);
  return made;
}

void CudaDevice::launch(cudaKernel_t kernel, dim3 blocks, int threads, void** arguments, int shared_bytes) {
  note("a kernel's launch",
       cudaLaunchKernel(reinterpret_cast<const void*>(kernel), blocks, dim3(static_cast<unsigned>(threads)), arguments,
                        static_cast<size_t>(shared_bytes), stream()));
}

void CudaDevice::launch_items(cudaKernel_t kernel, int64_t items, void** arguments) {
  constexpr int kThreads = 256;
  if (items <= 0) return;
  const int64_t most = int64_t{properties_.multiProcessorCount} * 32;
  launch(kernel, dim3(static_cast<unsigned>(std::min((items + kThreads - 1) / kThreads, most))), kThreads, arguments);
}

absl::StatusOr<cublasLtHandle_t> CudaDevice::cublas() {
  if (cublas_ != nullptr) return cublas_;
  PARTITA_ASSIGN_OR_RETURN(const CublasLt* lt, CublasLt::load());
  if (lt->create(&cublas_) != CUBLAS_STATUS_SUCCESS)
    return absl::InternalError(cat("cuBLASLt does not start on ", name_));
  return cublas_;
}

absl::StatusOr<cudnnHandle_t> CudaDevice::cudnn() {
  if (cudnn_ != nullptr) return cudnn_;
  PARTITA_ASSIGN_OR_RETURN(const Cudnn* dnn, Cudnn::load());
  cudnnStatus_t s = dnn->create(&cudnn_);
  if (s == CUDNN_STATUS_SUCCESS) s = dnn->set_stream(cudnn_, stream_);
  if (s != CUDNN_STATUS_SUCCESS)
    return absl::FailedPreconditionError(cat("cuDNN does not start on ", name_, ": ", dnn->error_text(s)));
  return cudnn_;
}

absl::StatusOr<std::unique_ptr<LibraryKernel>> CudaDevice::prepare(const Program& program, const Step& step) {
  PARTITA_ASSIGN_OR_RETURN(std::unique_ptr<LibraryKernel> kernel,
                           step.kind == StepKind::kLibrary
                               ? prepare_cuda_kernel(*this, step)
                               : prepare_generated(program, step, step.units, step.operands.size()));
  const std::string origin = step.origin < 0 ? "" : cat(" ", program.origins[static_cast<size_t>(step.origin)]);
  return std::make_unique<NamedKernel>(cat(step.name, origin), std::move(kernel));
}

absl::StatusOr<std::unique_ptr<LibraryKernel>> CudaDevice::prepare_generated(const Program& program, const Step& step,
                                                                             int64_t blocks, size_t addresses) {
  PARTITA_ASSIGN_OR_RETURN(cudaKernel_t kernel, generated_kernel(program, step.name));
  const int64_t threads = int_param(step.params, "threads", 0);
  if (threads <= 0 || threads > properties_.maxThreadsPerBlock || blocks > properties_.maxGridSize[0])
    return absl::InvalidArgumentError(cat("a launch of ", blocks, " blocks of ", threads, " threads"));
  return std::make_unique<GeneratedKernel>(*this, kernel, blocks, static_cast<int>(threads), addresses);
}

absl::StatusOr<std::unique_ptr<LibraryKernel>> CudaDevice::prepare_batched(const Program& program,
                                                                           std::span<const Step* const> steps,
                                                                           std::span<std::byte* const> addresses) {
  const std::vector<int64_t> table = launch_table(steps, addresses);
  const std::span<const std::byte> bytes = std::as_bytes(std::span(table));
  PARTITA_ASSIGN_OR_RETURN(std::byte * at, allocate(static_cast<int64_t>(bytes.size())));
  PARTITA_RETURN_IF_ERROR(write(at, bytes));
  table_bytes_ += static_cast<int64_t>(bytes.size());
  int64_t blocks = 0;
  for (const Step* step : steps) blocks += step->units;
  PARTITA_ASSIGN_OR_RETURN(std::unique_ptr<LibraryKernel> kernel, prepare_generated(program, *steps[0], blocks, 1));
  return std::make_unique<NamedKernel>(cat(steps.size(), " of ", steps[0]->name),
                                       std::make_unique<BatchedKernel>(std::move(kernel), at));
}

absl::StatusOr<std::unique_ptr<Communicator>> CudaDevice::communicator(Communicator& control) {
  // Every rank says which device it has; NCCL takes them where all have the library and all devices differ, or the
  // library does not mind.
  struct Card {
    char uuid[16];
    int64_t nccl, shares;
    uint64_t choices;
  };
  std::vector<Card> cards(static_cast<size_t>(control.size()));
  Card own{};
  std::memcpy(own.uuid, properties_.uuid.bytes, sizeof own.uuid);
  const absl::StatusOr<const Nccl*> nccl = Nccl::load();
  own.nccl = nccl.ok();
  own.shares = nccl.ok() && (*nccl)->shares_devices;
  own.choices = choices_ ? choices_->digest() : 0;
  PARTITA_RETURN_IF_ERROR(control.run({.kind = CollectiveKind::kAllGather,
                                       .dtype = DType::kU8,
                                       .count = sizeof own,
                                       .input = &own,
                                       .output = cards.data(),
                                       .label = "devices of the ranks"}));
  for (size_t rank = 1; rank < cards.size(); ++rank) {
    if (cards[rank].choices == cards[0].choices) continue;
    return absl::FailedPreconditionError(cat("--tune: rank ", rank, " and rank 0 begin with different choices; ",
                                             "give all ranks the same file, or copies of it"));
  }
  bool apart = true;
  for (size_t a = 0; a < cards.size(); ++a) {
    apart = apart && cards[a].nccl;
    for (size_t b = 0; b < a; ++b)
      apart = apart && (cards[a].shares || std::memcmp(cards[a].uuid, cards[b].uuid, sizeof own.uuid) != 0);
  }
  return apart ? open_nccl(*this, control) : open_staged(*this, control);
}

}  // namespace partita::runtime
