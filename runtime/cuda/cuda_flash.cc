#include "runtime/cuda/cuda_flash.h"

#include <algorithm>
#include <limits>

#include "base/cat.h"
#include "base/status.h"

namespace partita::runtime {
namespace {

int64_t blocks_of(int64_t rows) { return (rows + kFlashRows - 1) / kFlashRows; }

// The kernels of one dtype and head size.
struct Flash {
  CudaDevice& device;
  FlashDevice f{};
  std::string suffix;  // of the kernels' names
  int size, head;

  static absl::StatusOr<Flash> make(CudaDevice& device, const KernelRequest& r, const AttentionShape& a, DType mask) {
    constexpr int64_t kMost = std::numeric_limits<int32_t>::max();
    const int64_t heads = a.batch * a.heads;
    if (heads * blocks_of(std::max(a.s, a.t)) > kMost || heads * std::max(a.s, a.t) > kMost) return r.unsupported();
    Flash made{device, {}, {}, static_cast<int>(dtype_size(r.dtype())), std::max(a.d, a.e) <= 64 ? 64 : 128};
    ScoresDevice& z = made.f.scores;
    z = {0, heads, a.heads, a.s, a.t, a.scale, a.causal, mask_kind(mask), {}};
    std::copy_n(a.mask_stride, 4, z.mask_stride);
    made.f.group = static_cast<int32_t>(a.group());
    made.f.d = static_cast<int32_t>(a.d), made.f.e = static_cast<int32_t>(a.e);
    const auto rows = [](const AttentionRows& x) { return RowsDevice{x.batch, x.head, x.row}; };
    made.f.q = rows(a.q), made.f.k = rows(a.k), made.f.v = rows(a.v), made.f.out = rows(a.out);
    made.f.g = rows(a.g), made.f.dq = rows(a.dq), made.f.dk = rows(a.dk), made.f.dv = rows(a.dv);
    made.suffix = cat("_", dtype_name(r.dtype()));
    return made;
  }

  absl::StatusOr<cudaKernel_t> kernel(const char* name, int shared_bytes) const {
    return device.own_kernel(cat(name, suffix, "_", head), shared_bytes);
  }
  std::byte* at(std::byte* operand, const AttentionRows& rows) const { return operand + rows.offset * size; }
  dim3 query_blocks() const { return dim3(static_cast<unsigned>(f.scores.count * blocks_of(f.scores.s))); }
  dim3 key_blocks() const { return dim3(static_cast<unsigned>(f.scores.count / f.group * blocks_of(f.scores.t))); }
};

}  // namespace

MaskKind mask_kind(DType mask) {
  switch (mask) {
    case DType::kBool:
      return kBoolMask;
    case DType::kF32:
      return kF32Mask;
    case DType::kF64:
      return kF64Mask;
    case DType::kBF16:
      return kBf16Mask;
    case DType::kF16:
      return kF16Mask;
    default:
      return kNoMask;
  }
}

bool flash_applies(DType dtype, const AttentionShape& shape) {
  return (dtype == DType::kBF16 || dtype == DType::kF16 || dtype == DType::kF32) && std::max(shape.d, shape.e) <= 128;
}

CudaKernel make_cuda_flash(CudaDevice& device, const KernelRequest& r, const AttentionShape& shape, DType mask) {
  PARTITA_ASSIGN_OR_RETURN(Flash flash, Flash::make(device, r, shape, mask));
  const int bytes = flash_shared_bytes(flash.size, flash.head, 1);
  PARTITA_ASSIGN_OR_RETURN(cudaKernel_t forward, flash.kernel("flash_forward", bytes));
  return make_kernel([=](std::span<std::byte* const> b) mutable {
    void *q = flash.at(b[0], shape.q), *k = flash.at(b[1], shape.k), *v = flash.at(b[2], shape.v),
         *m = b.size() == 6 ? b[3] : nullptr, *y = flash.at(b[b.size() - 2], shape.out), *lse = b.back();
    void* arguments[] = {&q, &k, &v, &m, &y, &lse, &flash.f};
    flash.device.launch(forward, flash.query_blocks(), kFlashThreads, arguments, bytes);
  });
}

CudaKernel make_cuda_flash_grad(CudaDevice& device, const KernelRequest& r, const AttentionShape& shape, DType mask) {
  PARTITA_ASSIGN_OR_RETURN(Flash flash, Flash::make(device, r, shape, mask));
  const int of_queries = flash_shared_bytes(flash.size, flash.head, 2),
            of_keys = flash_shared_bytes(flash.size, flash.head, 2, true);
  PARTITA_ASSIGN_OR_RETURN(cudaKernel_t sums, device.own_kernel(cat("flash_delta", flash.suffix)));
  PARTITA_ASSIGN_OR_RETURN(cudaKernel_t queries, flash.kernel("flash_query_grads", of_queries));
  PARTITA_ASSIGN_OR_RETURN(cudaKernel_t keys, flash.kernel("flash_key_grads", of_keys));
  const int64_t rows = flash.f.scores.count * shape.s;
  PARTITA_ASSIGN_OR_RETURN(std::shared_ptr<DeviceScratch> scratch, DeviceScratch::make(device, rows * 4));
  return make_kernel([=](std::span<std::byte* const> b) mutable {
    constexpr int kRowsOfBlock = kFlashThreads / 32;  // a warp has one
    void *g = flash.at(b[0], shape.g), *q = flash.at(b[1], shape.q), *k = flash.at(b[2], shape.k),
         *v = flash.at(b[3], shape.v), *m = b[4], *y = flash.at(b[5], shape.out), *lse = b[6], *delta = scratch->data();
    const bool together = b.size() == 8;  // all gradients in one operand
    void *dq = flash.at(b[7], shape.dq), *dk = flash.at(b[together ? 7 : 8], shape.dk),
         *dv = flash.at(b[together ? 7 : 9], shape.dv);
    void* first[] = {&g, &y, &delta, &flash.f};
    const dim3 blocks(static_cast<unsigned>((rows + kRowsOfBlock - 1) / kRowsOfBlock));
    flash.device.launch(sums, blocks, kFlashThreads, first);
    void* second[] = {&g, &q, &k, &v, &m, &lse, &delta, &dq, &flash.f};
    flash.device.launch(queries, flash.query_blocks(), kFlashThreads, second, of_queries);
    void* third[] = {&g, &q, &k, &v, &m, &lse, &delta, &dk, &dv, &flash.f};
    flash.device.launch(keys, flash.key_blocks(), kFlashThreads, third, of_keys);
  });
}

}  // namespace partita::runtime
