// cuBLASLt is column-major: a row-major product is that of the transposes in the other order, C' = B' A'.
//
// The algorithm is the first that its heuristics give for the shape and device, or, under --tune, the fastest of their
// candidates when a product was first met, which a file keeps (product_choices.h): runs repeat bit by bit.
#include "runtime/cuda/cuda_matmul.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "absl/functional/function_ref.h"
#include "base/cat.h"
#include "base/math/quantized.h"
#include "base/status.h"
#include "runtime/cuda/kernels.h"
#include "runtime/cuda/kernels_device.h"
#include "runtime/kernels/matmul_plan.h"

namespace partita::runtime {
namespace {

constexpr int64_t kWorkspace = 32 << 20;  // as NVIDIA advises for Hopper
constexpr size_t kCandidates = 8;         // to be timed

struct Types {
  cudaDataType_t data, scale;
  cublasComputeType_t compute;
};
// f32 in full precision but where tf32 is allowed.
bool types_of(DType dtype, bool tf32, Types& t) {
  switch (dtype) {
    case DType::kF32:
      t = {CUDA_R_32F, CUDA_R_32F, tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F};
      return true;
    case DType::kF64:
      t = {CUDA_R_64F, CUDA_R_64F, CUBLAS_COMPUTE_64F};
      return true;
    case DType::kBF16:
      t = {CUDA_R_16BF, CUDA_R_32F, CUBLAS_COMPUTE_32F};
      return true;
    case DType::kF16:
      t = {CUDA_R_16F, CUDA_R_32F, CUBLAS_COMPUTE_32F};
      return true;
    default:
      return false;
  }
}

// Of one of some runs of what `launch` queues; infinite where it cannot be.
absl::StatusOr<double> seconds_of(CudaDevice& device, absl::FunctionRef<bool()> launch) {
  constexpr int kRuns = 5;
  PARTITA_RETURN_IF_ERROR(device.take_stamps().status());
  for (int run = -1; run < kRuns; ++run) {  // the first one loads its code
    if (!launch()) return std::numeric_limits<double>::infinity();
    PARTITA_RETURN_IF_ERROR(device.stamp());
  }
  PARTITA_RETURN_IF_ERROR(device.synchronize());
  PARTITA_ASSIGN_OR_RETURN(const std::vector<double> stamps, device.take_stamps());
  return stamps.back() / kRuns;
}

}  // namespace

absl::Status CudaMatmul::check(cublasStatus_t status, const char* call) const {
  if (status == CUBLAS_STATUS_SUCCESS) return absl::OkStatus();
  const std::string text = cat(call, ": ", lt_.status_text(status));
  return status == CUBLAS_STATUS_NOT_SUPPORTED ? absl::UnimplementedError(text) : absl::InternalError(text);
}

absl::Status CudaMatmul::describe() {
  const CudaProduct& p = product_;
  Types in{}, out{};
  if (p.fp8) in = {CUDA_R_8F_E4M3, CUDA_R_32F, CUBLAS_COMPUTE_32F};
  if ((!p.fp8 && !types_of(p.dtype, p.tf32, in)) || !types_of(p.out, p.tf32, out))
    return absl::UnimplementedError(cat("cuBLASLt multiplies no ", dtype_name(p.dtype)));
  PARTITA_RETURN_IF_ERROR(check(lt_.desc_create(&desc_, in.compute, in.scale), "cublasLtMatmulDescCreate"));
  auto set = [&](cublasLtMatmulDescAttributes_t what, auto value) {
    return check(lt_.desc_set(desc_, what, &value, sizeof value), "cublasLtMatmulDescSetAttribute");
  };
  PARTITA_RETURN_IF_ERROR(set(CUBLASLT_MATMUL_DESC_TRANSA, p.transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N));
  PARTITA_RETURN_IF_ERROR(set(CUBLASLT_MATMUL_DESC_TRANSB, p.transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N));
  PARTITA_RETURN_IF_ERROR(set(CUBLASLT_MATMUL_DESC_EPILOGUE, epilogue()));
  if (p.aux || p.gelu_tanh_grad) PARTITA_RETURN_IF_ERROR(set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, p.n));
  if (p.fp8) {
    const auto mode = [](bool tiles) {
      return static_cast<int32_t>(tiles ? CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F
                                        : CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F);
    };
    PARTITA_RETURN_IF_ERROR(set(CUBLASLT_MATMUL_DESC_A_SCALE_MODE, mode(p.fp8->tiles_b)));
    PARTITA_RETURN_IF_ERROR(set(CUBLASLT_MATMUL_DESC_B_SCALE_MODE, mode(p.fp8->tiles_a)));
  }
  // To the heuristics addresses tell their alignment.
  auto* aligned = reinterpret_cast<std::byte*>(uintptr_t{kOperandAlignment});
  PARTITA_RETURN_IF_ERROR(set_others({aligned, aligned, aligned, aligned, aligned}));
  auto layout = [&](cublasLtMatrixLayout_t& made, cudaDataType_t type, int64_t rows, int64_t columns, int64_t stride) {
    PARTITA_RETURN_IF_ERROR(
        check(lt_.layout_create(&made, type, static_cast<uint64_t>(rows), static_cast<uint64_t>(columns), rows),
              "cublasLtMatrixLayoutCreate"));
    const int32_t batch = static_cast<int32_t>(p.batch);
    PARTITA_RETURN_IF_ERROR(check(lt_.layout_set(made, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &batch, sizeof batch),
                                  "cublasLtMatrixLayoutSetAttribute"));
    return check(lt_.layout_set(made, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &stride, sizeof stride),
                 "cublasLtMatrixLayoutSetAttribute");
  };
  const auto of_operand = [&](bool e5m2) { return e5m2 ? CUDA_R_8F_E5M2 : in.data; };
  const cudaDataType_t type_a = of_operand(p.fp8 && p.fp8->e5m2_a), type_b = of_operand(p.fp8 && p.fp8->e5m2_b);
  PARTITA_RETURN_IF_ERROR(layout(b_, type_b, p.transpose_b ? p.k : p.n, p.transpose_b ? p.n : p.k, p.stride_b));
  PARTITA_RETURN_IF_ERROR(layout(a_, type_a, p.transpose_a ? p.m : p.k, p.transpose_a ? p.k : p.m, p.stride_a));
  PARTITA_RETURN_IF_ERROR(layout(c_, out.data, p.n, p.m, p.stride_c));
  cublasLtMatmulPreference_t preference = nullptr;
  PARTITA_RETURN_IF_ERROR(check(lt_.preference_create(&preference), "cublasLtMatmulPreferenceCreate"));
  // Without more said, it takes addresses to be multiples of 256.
  auto prefer = [&](cublasLtMatmulPreferenceAttributes_t what, auto value) {
    return check(lt_.preference_set(preference, what, &value, sizeof value), "cublasLtMatmulPreferenceSetAttribute");
  };
  absl::Status preferred = prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, static_cast<uint64_t>(kWorkspace));
  preferred.Update(prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, p.align_b));
  preferred.Update(prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, p.align_a));
  preferred.Update(prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, p.align_c));
  preferred.Update(prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, p.align_c));
  if (preferred.ok()) preferred = choose(preference);
  lt_.preference_destroy(preference);
  return preferred;
}

// Its A is our B.
uint32_t CudaMatmul::epilogue() const {
  const CudaProduct& p = product_;
  if (p.sum_a || p.sum_b) return p.sum_a ? CUBLASLT_EPILOGUE_BGRADB : CUBLASLT_EPILOGUE_BGRADA;
  if (p.gelu_tanh_grad) return CUBLASLT_EPILOGUE_DGELU;
  if (p.gelu_tanh && p.aux) return p.bias ? CUBLASLT_EPILOGUE_GELU_AUX_BIAS : CUBLASLT_EPILOGUE_GELU_AUX;
  if (p.gelu_tanh) return p.bias ? CUBLASLT_EPILOGUE_GELU_BIAS : CUBLASLT_EPILOGUE_GELU;
  if (p.relu) return p.bias ? CUBLASLT_EPILOGUE_RELU_BIAS : CUBLASLT_EPILOGUE_RELU;
  return p.bias ? CUBLASLT_EPILOGUE_BIAS : CUBLASLT_EPILOGUE_DEFAULT;
}

absl::Status CudaMatmul::set_others(const ProductOperands& others) {
  const CudaProduct& p = product_;
  const auto set = [&](cublasLtMatmulDescAttributes_t what, const void* at) {
    return check(lt_.desc_set(desc_, what, &at, sizeof at), "cublasLtMatmulDescSetAttribute");
  };
  if (p.bias) PARTITA_RETURN_IF_ERROR(set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, others.bias));
  if (p.sum_a || p.sum_b) PARTITA_RETURN_IF_ERROR(set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, others.sums));
  if (p.aux || p.gelu_tanh_grad) PARTITA_RETURN_IF_ERROR(set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, others.aux));
  if (p.fp8) {
    PARTITA_RETURN_IF_ERROR(set(CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, others.scales_b));
    PARTITA_RETURN_IF_ERROR(set(CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, others.scales_a));
  }
  return absl::OkStatus();
}

std::string CudaMatmul::text() const {
  const CudaProduct& p = product_;
  const cudaDeviceProp& device = device_.properties();
  const auto of_operand = [](bool e5m2, bool tiles) { return cat(e5m2 ? "e5m2" : "e4m3", tiles ? " in tiles" : ""); };
  return cat(
      device.name, " sm_", device.major, device.minor, ", cuBLASLt ", lt_.version(), ", ", dtype_name(p.dtype), " -> ",
      dtype_name(p.out), p.tf32 ? " (tf32) " : " ", p.m, " x ", p.n, " x ", p.k, p.transpose_a ? ", A transposed" : "",
      p.transpose_b ? ", B transposed" : "",
      p.batch > 1 ? cat(", ", p.batch, " of them, ", p.stride_a, " ", p.stride_b, " ", p.stride_c, " apart") : "",
      p.accumulate ? ", added" : "", p.bias ? ", bias" : "",
      p.relu             ? ", relu"
      : p.gelu_tanh      ? ", gelu"
      : p.gelu_tanh_grad ? ", gradient of gelu"
                         : "",
      p.aux ? " of what it writes" : "",
      p.sum_a   ? ", sum of A"
      : p.sum_b ? ", sum of B"
                : "",
      p.fp8 ? cat(", fp8 ", of_operand(p.fp8->e5m2_a, p.fp8->tiles_a), " x ", of_operand(p.fp8->e5m2_b, p.fp8->tiles_b))
            : "",
      ", aligned to ", p.align_a, " ", p.align_b, " ", p.align_c);
}

absl::Status CudaMatmul::choose(cublasLtMatmulPreference_t preference) {
  ProductChoices* choices = device_.choices();
  if (choices != nullptr) {
    if (const auto known = choices->find(text())) {
      seconds_ = known->seconds;
      return take(known->algorithm);
    }
  }
  std::vector<cublasLtMatmulHeuristicResult_t> found(choices != nullptr ? kCandidates : 1);
  int count = 0;
  PARTITA_RETURN_IF_ERROR(check(
      lt_.heuristic(handle_, desc_, b_, a_, c_, c_, preference, static_cast<int>(found.size()), found.data(), &count),
      "cublasLtMatmulAlgoGetHeuristic"));
  found.resize(static_cast<size_t>(std::max(count, 0)));
  std::erase_if(found, [](const auto& f) { return f.state != CUBLAS_STATUS_SUCCESS; });
  if (found.empty()) return absl::UnimplementedError("cuBLASLt has no algorithm for this product");
  if (choices == nullptr) return take(found[0].algo);
  std::vector<double> seconds;
  PARTITA_ASSIGN_OR_RETURN(const size_t best, fastest(found, seconds));
  PARTITA_ASSIGN_OR_RETURN(const ProductChoices::Choice kept,
                           choices->add(text(), {found[best].algo, seconds[best], seconds[0]}));
  seconds_ = kept.seconds;
  return take(kept.algorithm);
}

// The check may ask for more workspace than the heuristic said; all of kWorkspace is there.
absl::Status CudaMatmul::take(const cublasLtMatmulAlgo_t& algorithm) {
  cublasLtMatmulHeuristicResult_t result{};
  const cublasStatus_t status = lt_.algorithm_check(handle_, desc_, b_, a_, c_, c_, &algorithm, &result);
  if (status != CUBLAS_STATUS_SUCCESS || result.workspaceSize > static_cast<size_t>(kWorkspace))
    return absl::FailedPreconditionError(cat("cuBLASLt has not the algorithm that was chosen for ", text(), ": ",
                                             lt_.status_text(status),
                                             "; remove the file of tuned products, and --tune makes it anew"));
  algorithm_ = algorithm;
  workspace_ = result.workspaceSize;
  device_.reserve_scratch(static_cast<int64_t>(workspace_));
  return absl::OkStatus();
}

// The candidate that took least time, the first of equals; `seconds` of each, infinite where one does not run.
absl::StatusOr<size_t> CudaMatmul::fastest(const std::vector<cublasLtMatmulHeuristicResult_t>& candidates,
                                           std::vector<double>& seconds) {
  const CudaProduct& p = product_;
  const int64_t last = p.batch - 1, in = dtype_size(p.dtype);
  const auto space = [](int64_t bytes) { return (bytes + 255) / 256 * 256; };
  const int64_t bytes_a = space((p.m * p.k + last * p.stride_a) * in),
                bytes_b = space((p.k * p.n + last * p.stride_b) * in),
                bytes_c = space((p.m * p.n + last * p.stride_c) * dtype_size(p.out)),
                bytes_others = p.has_epilogue() ? bytes_c + space(std::max(p.m, p.n) * dtype_size(p.out))
                               : p.fp8          ? space(std::max(p.m, p.n) * p.k / kFp8Block * 4)
                                                : 0,
                bytes = bytes_a + bytes_b + bytes_c + kWorkspace + bytes_others;
  void* memory = nullptr;
  if (cudaError_t e = cudaMalloc(&memory, static_cast<size_t>(bytes)); e != cudaSuccess) {
    cudaGetLastError();
    return absl::ResourceExhaustedError(cat("to tune ", text(), " takes ", bytes, " more bytes on ", device_.name(),
                                            "; tune a smaller batch, or run without --tune"));
  }
  const std::unique_ptr<void, decltype(&cudaFree)> owner(memory, cudaFree);
  constexpr int kPattern = 0x3c;  // numbers about 0.01 or 1 in every type
  if (cudaError_t e = cudaMemsetAsync(memory, kPattern, static_cast<size_t>(bytes), device_.stream()); e != cudaSuccess)
    return cuda_error("cudaMemset", e);
  auto* a = static_cast<std::byte*>(memory);
  std::byte* others = a + bytes_a + bytes_b + bytes_c + kWorkspace;
  PARTITA_RETURN_IF_ERROR(set_others({others + bytes_c, others, others + bytes_c, others, others}));
  seconds.clear();
  for (const auto& candidate : candidates) {
    PARTITA_ASSIGN_OR_RETURN(seconds.emplace_back(),
                             time(candidate, a, a + bytes_a, a + bytes_a + bytes_b, a + bytes_a + bytes_b + bytes_c));
  }
  const auto best = std::min_element(seconds.begin(), seconds.end());
  if (std::isinf(*best)) return absl::UnimplementedError(cat("none of cuBLASLt's algorithms runs for ", text()));
  return static_cast<size_t>(best - seconds.begin());
}

absl::StatusOr<double> CudaMatmul::time(const cublasLtMatmulHeuristicResult_t& candidate, const std::byte* a,
                                        const std::byte* b, std::byte* c, std::byte* workspace) {
  return seconds_of(device_, [&] {
    return launch(candidate.algo, a, b, c, workspace, candidate.workspaceSize) == CUBLAS_STATUS_SUCCESS;
  });
}

absl::StatusOr<std::unique_ptr<CudaMatmul>> CudaMatmul::make(CudaDevice& device, const CudaProduct& product) {
  PARTITA_ASSIGN_OR_RETURN(const CublasLt* lt, CublasLt::load());
  std::unique_ptr<CudaMatmul> made(new CudaMatmul(device, *lt, product));
  PARTITA_ASSIGN_OR_RETURN(made->handle_, device.cublas());
  PARTITA_RETURN_IF_ERROR(made->describe());
  return made;
}

CudaMatmul::~CudaMatmul() {
  for (cublasLtMatrixLayout_t layout : {a_, b_, c_}) {
    if (layout != nullptr) lt_.layout_destroy(layout);
  }
  if (desc_ != nullptr) lt_.desc_destroy(desc_);
}

void CudaMatmul::run(const std::byte* a, const std::byte* b, std::byte* c, const ProductOperands& others) {
  device_.note(set_others(others));
  device_.note(check(launch(algorithm_, a, b, c, device_.scratch(), workspace_), "cublasLtMatmul"));
}

cublasStatus_t CudaMatmul::launch(const cublasLtMatmulAlgo_t& algorithm, const std::byte* a, const std::byte* b,
                                  std::byte* c, std::byte* workspace, size_t workspace_bytes) {
  const double scale64 = product_.scale, beta64 = product_.accumulate ? 1 : 0;
  const float scale32 = static_cast<float>(scale64), beta32 = static_cast<float>(beta64);
  const bool wide = product_.dtype == DType::kF64;
  const void *alpha = wide ? static_cast<const void*>(&scale64) : &scale32,
             *beta = wide ? static_cast<const void*>(&beta64) : &beta32;
  return lt_.matmul(handle_, desc_, alpha, b, b_, a, a_, beta, c, c_, c, c_, &algorithm, workspace, workspace_bytes,
                    device_.stream());
}

namespace {

// The product, and what follows it by kernels of our own: where cuBLASLt has no algorithm for both, or, under --tune,
// one that takes longer.
class ProductAndKernels {
 public:
  static absl::StatusOr<ProductAndKernels> make(CudaDevice& device, const CudaProduct& p) {
    CudaProduct plain = p;
    plain.bias = plain.relu = plain.gelu_tanh = plain.gelu_tanh_grad = plain.aux = plain.sum_a = plain.sum_b = false;
    PARTITA_ASSIGN_OR_RETURN(std::shared_ptr<CudaMatmul> matmul, CudaMatmul::make(device, plain));
    ProductAndKernels made(device, p, std::move(matmul));
    const std::string type(dtype_name(p.dtype));
    PARTITA_ASSIGN_OR_RETURN(made.finish_, device.own_kernel(cat("finish_product_", type)));
    PARTITA_ASSIGN_OR_RETURN(made.sum_, device.own_kernel(cat("sum_rows_", type)));
    return made;
  }

  void run(const std::byte* a, const std::byte* b, std::byte* c, const ProductOperands& others) {
    matmul_->run(a, b, c);
    finish(a, b, c, others);
  }

  // Of both, as they were timed when the product was first met.
  absl::StatusOr<double> seconds(const CudaMatmul& joined) const {
    const std::string text = cat(joined.text(), ": what follows it");
    ProductChoices& choices = *device_->choices();
    std::optional<ProductChoices::Choice> known = choices.find(text);
    if (!known) {
      PARTITA_ASSIGN_OR_RETURN(const double seconds, time());
      PARTITA_ASSIGN_OR_RETURN(known, choices.add(text, {{}, seconds, seconds}));
    }
    return matmul_->seconds() + known->seconds;
  }

 private:
  void finish(const std::byte* a, const std::byte* b, std::byte* c, const ProductOperands& others) const {
    const CudaProduct& p = product_;
    if (p.sum_a || p.sum_b) {
      const std::byte* rows = p.sum_a ? a : b;
      int64_t count = p.k, columns = p.sum_a ? p.m : p.n;
      std::byte* sums = others.sums;
      void* arguments[] = {&rows, &sums, &count, &columns};
      device_->launch_items(sum_, columns, arguments);
      return;
    }
    const std::byte *bias = p.bias ? others.bias : nullptr, *of = p.gelu_tanh_grad ? others.aux : nullptr;
    std::byte* aux = p.aux ? others.aux : nullptr;
    int64_t count = p.m * p.n, columns = p.n;
    int kind = p.relu ? kReluEpilogue : p.gelu_tanh ? kGeluEpilogue : kNoEpilogue;
    void* arguments[] = {&c, &bias, &of, &aux, &count, &columns, &kind};
    device_->launch_items(finish_, count, arguments);
  }

  absl::StatusOr<double> time() const {
    const CudaProduct& p = product_;
    const int64_t each = (std::max({p.m * p.n, p.k * p.n, p.k * p.m}) * dtype_size(p.dtype) + 255) / 256 * 256;
    void* memory = nullptr;
    if (cudaError_t e = cudaMalloc(&memory, static_cast<size_t>(3 * each)); e != cudaSuccess) {
      cudaGetLastError();
      return absl::ResourceExhaustedError(cat("to tune what follows a product takes ", 3 * each, " more bytes on ",
                                              device_->name(), "; tune a smaller batch, or run without --tune"));
    }
    const std::unique_ptr<void, decltype(&cudaFree)> owner(memory, cudaFree);
    if (cudaError_t e = cudaMemsetAsync(memory, 0, static_cast<size_t>(3 * each), device_->stream()); e != cudaSuccess)
      return cuda_error("cudaMemset", e);
    auto* at = static_cast<std::byte*>(memory);
    return seconds_of(*device_, [&] {
      finish(at, at, at, {at + each, at + 2 * each, at + each});
      return true;
    });
  }

  ProductAndKernels(CudaDevice& device, const CudaProduct& product, std::shared_ptr<CudaMatmul> matmul)
      : device_(&device), product_(product), matmul_(std::move(matmul)) {}
  CudaDevice* device_;
  CudaProduct product_;
  std::shared_ptr<CudaMatmul> matmul_;
  cudaKernel_t finish_ = nullptr, sum_ = nullptr;
};

}  // namespace

// Batches that no single stride describes go one by one over the outer dimensions.
CudaKernel make_cuda_matmul(CudaDevice& device, const KernelRequest& r) {
  PARTITA_ASSIGN_OR_RETURN(const MatmulPlan plan, MatmulPlan::make(r));
  if (plan.ordered) return r.error("no param 'block': the order of cuBLASLt's sums follows from all sizes");
  if (plan.activation == Activation::kGeluErf) return r.unsupported();
  const DType dtype = r.dtype(), out = r.out(0).dtype;
  if (plan.bias && r.dtype(2) != out) return r.error("a bias of the result's dtype");
  if (r.dtype(1) != dtype || (out != dtype && out != DType::kF32)) return r.error("operands of one dtype");
  const int64_t bytes = *element_count(r.out(0).shape) * dtype_size(out);
  if (bytes == 0) return make_kernel([](std::span<std::byte* const>) {});
  if (plan.k == 0) {
    if (plan.bias || plan.activation != Activation::kNone) return r.unsupported();
    return make_kernel([&device, bytes, keep = plan.accumulate](std::span<std::byte* const> b) {
      if (!keep) device.note("cudaMemset", cudaMemsetAsync(b.back(), 0, static_cast<size_t>(bytes), device.stream()));
    });
  }
  CudaProduct p{.dtype = dtype,
                .out = out,
                .m = plan.m,
                .n = plan.n,
                .k = plan.k,
                .transpose_a = plan.transpose_a,
                .transpose_b = plan.transpose_b,
                .accumulate = plan.accumulate,
                .bias = plan.bias,
                .relu = plan.activation == Activation::kRelu,
                .gelu_tanh = plan.activation == Activation::kGeluTanh,
                .gelu_tanh_grad = plan.activation == Activation::kGeluTanhGrad,
                .aux = plan.aux,
                .sum_a = plan.sum_a,
                .sum_b = plan.sum_b,
                .tf32 = r.i("tf32", 0) != 0};
  int64_t outer = plan.batches();
  if (!plan.batch.empty()) {
    const MatmulPlan::Batch& last = plan.batch.back();
    p.batch = last.size, p.stride_a = last.a, p.stride_b = last.b, p.stride_c = last.c;
    outer /= last.size;
    for (size_t d = 0; d + 1 < plan.batch.size(); ++d) {
      p.align_a = std::min(p.align_a, alignment_at(plan.batch[d].a * dtype_size(dtype)));
      p.align_b = std::min(p.align_b, alignment_at(plan.batch[d].b * dtype_size(dtype)));
      p.align_c = std::min(p.align_c, alignment_at(plan.batch[d].c * dtype_size(out)));
    }
  }
  const size_t inputs = r.inputs();
  const auto others = [p, inputs](std::span<std::byte* const> b) {
    return ProductOperands{p.bias ? b[2] : nullptr,
                           p.aux              ? b[inputs + 1]
                           : p.gelu_tanh_grad ? b[inputs - 1]
                                              : nullptr,
                           p.sum_a || p.sum_b ? b.back() : nullptr};
  };
  const auto kernel_of = [others, inputs](ProductAndKernels apart) -> CudaKernel {
    return make_kernel([apart, others, inputs](std::span<std::byte* const> b) mutable {
      apart.run(b[0], b[1], b[inputs], others(b));
    });
  };
  absl::StatusOr<std::shared_ptr<CudaMatmul>> matmul = CudaMatmul::make(device, p);
  if (absl::IsUnimplemented(matmul.status()) && p.has_epilogue() && outer * p.batch == 1) {
    PARTITA_ASSIGN_OR_RETURN(ProductAndKernels apart, ProductAndKernels::make(device, p));
    return kernel_of(apart);
  }
  PARTITA_RETURN_IF_ERROR(matmul.status());
  if (device.choices() != nullptr && p.has_epilogue() && outer * p.batch == 1) {
    PARTITA_ASSIGN_OR_RETURN(ProductAndKernels apart, ProductAndKernels::make(device, p));
    PARTITA_ASSIGN_OR_RETURN(const double seconds, apart.seconds(**matmul));
    if (seconds < (*matmul)->seconds()) return kernel_of(apart);
  }
  return make_kernel([matmul = *std::move(matmul), others, inputs, plan, outer, batch = p.batch, in = dtype_size(dtype),
                      size = dtype_size(out)](std::span<std::byte* const> b) {
    for (int64_t o = 0; o < outer; ++o) {
      const MatmulPlan::Batch at = plan.offsets(o * batch);
      matmul->run(b[0] + at.a * in, b[1] + at.b * in, b[inputs] + at.c * size, others(b));
    }
  });
}

}  // namespace partita::runtime
