// Attention. In 16 bits by cuDNN, where it has a kernel for the shapes (cudnn_attention.h) and train.yaml does not say
// otherwise. Else, where cuda_flash.h applies, by its kernels; else (f64, heads of more than 128 elements in f32)
// products by cuBLASLt, and between them our own softmax over rows of scores (kernels/attention.cu). Scores of as many
// heads at a time as fit into kScores bytes; the query heads of a group are rows of one product with their key head.
#include <algorithm>
#include <cmath>

#include "base/cat.h"
#include "base/status.h"
#include "runtime/cuda/cuda_flash.h"
#include "runtime/cuda/cuda_matmul.h"
#include "runtime/cuda/kernels.h"
#include "runtime/cuda/kernels_device.h"

namespace partita::runtime {
namespace {

constexpr int64_t kScores = 256 << 20;

// Heads in chunks of whole groups.
class Attention {
 public:
  Attention(CudaDevice& device, const AttentionShape& a, DType dtype, DType mask)
      : device_(device), a_(a), dtype_(dtype), size_(dtype_size(dtype)) {
    z_.heads = a.heads, z_.s = a.s, z_.t = a.t, z_.scale = a.scale, z_.causal = a.causal;
    z_.mask = mask_kind(mask);
    std::copy_n(a.mask_stride, 4, z_.mask_stride);
    const int64_t of_group = a.group() * a.s * a.t * size_;
    groups_ = std::clamp<int64_t>(kScores / std::max<int64_t>(of_group, 1), 1, a.batch * a.kv_heads);
    while (a.batch * a.kv_heads % groups_ != 0) --groups_;
  }

  int64_t score_bytes() const { return groups_ * a_.group() * a_.s * a_.t * size_; }
  int64_t chunks() const { return a_.batch * a_.kv_heads / groups_; }

  // Products of a group's rows: scores = q k^T and the like.
  absl::StatusOr<std::shared_ptr<CudaMatmul>> product(int64_t m, int64_t n, int64_t k, bool ta, bool tb) {
    CudaProduct p{.dtype = dtype_,
                  .out = dtype_,
                  .m = m,
                  .n = n,
                  .k = k,
                  .transpose_a = ta,
                  .transpose_b = tb,
                  .batch = groups_,
                  .stride_a = m * k,
                  .stride_b = k * n,
                  .stride_c = m * n,
                  .align_a = alignment_at(groups_ * m * k * size_),
                  .align_b = alignment_at(groups_ * k * n * size_),
                  .align_c = alignment_at(groups_ * m * n * size_)};
    PARTITA_ASSIGN_OR_RETURN(std::shared_ptr<CudaMatmul> made, CudaMatmul::make(device_, p));
    return made;
  }
  absl::StatusOr<cudaKernel_t> kernel(const char* name) {
    return device_.own_kernel(cat(name, dtype_ == DType::kF64 ? "_f64" : "_f32"));
  }

  // A chunk's part of [heads, s, width] of queries, or [kv heads, t, width] of keys.
  std::byte* queries(std::byte* x, int64_t chunk, int64_t width) const {
    return x + chunk * groups_ * a_.group() * a_.s * width * size_;
  }
  std::byte* keys(std::byte* x, int64_t chunk, int64_t width) const {
    return x + chunk * groups_ * a_.t * width * size_;
  }
  ScoresDevice scores(int64_t chunk) const {
    ScoresDevice z = z_;
    z.count = groups_ * a_.group();
    z.first = chunk * z.count;
    return z;
  }
  dim3 rows() const { return dim3(static_cast<unsigned>(groups_ * a_.group() * a_.s)); }

  CudaDevice& device_;
  AttentionShape a_;
  DType dtype_;
  int64_t size_, groups_ = 1;
  ScoresDevice z_{};
};

constexpr int kRowThreads = 128;  // as in kernels/attention.cu

// What is left for the products of this file: f64, and f32 heads that are too large for cuda_flash.h. The code
// generator makes no views for them.
absl::Status check_products(const KernelRequest& r, const AttentionShape& shape, const absl::Status& cudnn) {
  const DType dtype = r.dtype();
  if (dtype == DType::kF32 || dtype == DType::kF64) return r.has_param("sizes") ? r.unsupported() : absl::OkStatus();
  return absl::UnimplementedError(cat("attention on ", dtype_name(dtype),
                                      ": expected heads of at most 128 elements, found ", std::max(shape.d, shape.e),
                                      "; compile with kernels: {attention: math} in train.yaml", cudnn.ok() ? "" : "; ",
                                      cudnn.message()));
}

// By cuDNN; null where the attention is left to our own kernels: train.yaml wants them (the step's "kernel"), or leaves
// it to us and cuDNN has nothing, which `why` tells.
CudaKernel make_by_cudnn(CudaDevice& device, const KernelRequest& r, const AttentionShape& shape, bool gradient,
                         absl::Status& why) {
  const std::string kernel = r.s("kernel", "auto");
  if (kernel == "own" || (kernel == "auto" && dtype_size(r.dtype()) != 2)) return nullptr;
  const absl::StatusOr<cudnnHandle_t> handle = device.cudnn();
  const absl::StatusOr<std::shared_ptr<const CudnnAttention>> plan =
      handle.ok() ? device.attentions().plan(*handle, shape, r.dtype(), gradient) : handle.status();
  why = plan.status();
  if (!plan.ok() && kernel == "cudnn")
    return with_context(why, "kernels: {attention: cudnn} in train.yaml, where `auto` would take another");
  device.count_attention(why);
  if (!plan.ok()) return nullptr;
  device.reserve_scratch((*plan)->workspace_bytes());
  return make_kernel([&device, plan = *plan](std::span<std::byte* const> b) {
    device.stream();  // which cuDNN was given: behind the copies from now on
    device.note(plan->run(b, device.scratch()));
  });
}

}  // namespace

CudaKernel make_cuda_attention(CudaDevice& device, const KernelRequest& r) {
  PARTITA_RETURN_IF_ERROR(r.expect_operands(3, 4, 2));
  const Operand* mask = r.has_input(3) ? &r.in(3) : nullptr;
  PARTITA_ASSIGN_OR_RETURN(AttentionShape shape, AttentionShape::make(r, r.in(0), r.in(1), r.in(2), mask));
  if (r.out(1).dtype != DType::kF32) return r.unsupported();
  if (product(r.out(0).shape) == 0 || shape.t == 0 || shape.d == 0) return r.unsupported();
  const DType mask_type = mask == nullptr ? DType::kInvalid : mask->dtype;
  absl::Status why;
  PARTITA_ASSIGN_OR_RETURN(std::unique_ptr<LibraryKernel> by_cudnn, make_by_cudnn(device, r, shape, false, why));
  if (by_cudnn != nullptr) return by_cudnn;
  if (flash_applies(r.dtype(), shape)) return make_cuda_flash(device, r, shape, mask_type);
  PARTITA_RETURN_IF_ERROR(check_products(r, shape, why));
  Attention a(device, shape, r.dtype(), mask_type);
  const int64_t rows = shape.group() * shape.s;
  PARTITA_ASSIGN_OR_RETURN(auto qk, a.product(rows, shape.t, shape.d, false, true));
  PARTITA_ASSIGN_OR_RETURN(auto pv, a.product(rows, shape.e, shape.t, false, false));
  PARTITA_ASSIGN_OR_RETURN(cudaKernel_t softmax, a.kernel("softmax_rows"));
  PARTITA_ASSIGN_OR_RETURN(std::shared_ptr<DeviceScratch> scores, DeviceScratch::make(device, a.score_bytes()));
  return make_kernel([=](std::span<std::byte* const> b) {
    const bool masked = b.size() == 6;
    std::byte *out = b[b.size() - 2], *p = scores->data();
    void *mask_data = masked ? b[3] : nullptr, *lse = b.back();
    for (int64_t c = 0; c < a.chunks(); ++c) {
      ScoresDevice z = a.scores(c);
      qk->run(a.queries(b[0], c, a.a_.d), a.keys(b[1], c, a.a_.d), p);
      void* arguments[] = {&p, &mask_data, &lse, &z};
      a.device_.launch(softmax, a.rows(), kRowThreads, arguments);
      pv->run(p, a.keys(b[2], c, a.a_.e), a.queries(out, c, a.a_.e));
    }
  });
}

CudaKernel make_cuda_attention_grad(CudaDevice& device, const KernelRequest& r) {
  PARTITA_RETURN_IF_ERROR(r.expect_operands(6, 7, r.has_param("together") ? 1 : 3, 4));
  if (r.inputs() != 7) return r.error("seven inputs, the mask absent where there is none");
  const Operand* mask = r.has_input(4) ? &r.in(4) : nullptr;
  PARTITA_ASSIGN_OR_RETURN(AttentionShape shape, AttentionShape::make(r, r.in(1), r.in(2), r.in(3), mask));
  if (r.dtype(6) != DType::kF32) return r.unsupported();
  if (product(r.in(0).shape) == 0 || shape.t == 0 || shape.d == 0) return r.unsupported();
  const DType mask_type = mask == nullptr ? DType::kInvalid : mask->dtype;
  absl::Status why;
  PARTITA_ASSIGN_OR_RETURN(std::unique_ptr<LibraryKernel> by_cudnn, make_by_cudnn(device, r, shape, true, why));
  if (by_cudnn != nullptr) return by_cudnn;
  if (flash_applies(r.dtype(), shape)) return make_cuda_flash_grad(device, r, shape, mask_type);
  PARTITA_RETURN_IF_ERROR(check_products(r, shape, why));
  Attention a(device, shape, r.dtype(), mask_type);
  const int64_t rows = shape.group() * shape.s, t = shape.t, d = shape.d, e = shape.e;
  PARTITA_ASSIGN_OR_RETURN(auto qk, a.product(rows, t, d, false, true));
  PARTITA_ASSIGN_OR_RETURN(auto gv, a.product(rows, t, e, false, true));
  PARTITA_ASSIGN_OR_RETURN(auto pg, a.product(t, e, rows, true, false));
  PARTITA_ASSIGN_OR_RETURN(auto dq, a.product(rows, d, t, false, false));
  PARTITA_ASSIGN_OR_RETURN(auto dk, a.product(t, d, rows, true, false));
  PARTITA_ASSIGN_OR_RETURN(cudaKernel_t again, a.kernel("probabilities"));
  PARTITA_ASSIGN_OR_RETURN(cudaKernel_t gradients, a.kernel("score_gradients"));
  PARTITA_ASSIGN_OR_RETURN(std::shared_ptr<DeviceScratch> scores, DeviceScratch::make(device, 2 * a.score_bytes()));
  return make_kernel([=](std::span<std::byte* const> b) {
    void *mask_data = b[4], *lse = b[6];
    std::byte *p = scores->data(), *dp = p + a.score_bytes();
    for (int64_t c = 0; c < a.chunks(); ++c) {
      ScoresDevice z = a.scores(c);
      int64_t width = e;
      void *g = b[0], *y = b[5];
      qk->run(a.queries(b[1], c, d), a.keys(b[2], c, d), p);
      void* first[] = {&p, &mask_data, &lse, &z};
      a.device_.launch(again, a.rows(), kRowThreads, first);
      pg->run(p, a.queries(b[0], c, e), a.keys(b[9], c, e));
      gv->run(a.queries(b[0], c, e), a.keys(b[3], c, e), dp);
      void* second[] = {&p, &dp, &g, &y, &width, &z};
      a.device_.launch(gradients, a.rows(), kRowThreads, second);
      dq->run(dp, a.keys(b[2], c, d), a.queries(b[7], c, d));
      dk->run(dp, a.queries(b[1], c, d), a.keys(b[8], c, d));
    }
  });
}

}  // namespace partita::runtime
