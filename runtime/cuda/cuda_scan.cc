// cumsum, argmax and topk (kernels/scan.cu).
#include "base/status.h"
#include "runtime/cuda/kernels.h"

namespace partita::runtime {
namespace {

struct Columns {
  int64_t outer = 1, n = 1, inner = 1;

  static absl::StatusOr<Columns> make(const KernelRequest& r) {
    const Shape& x = r.in(0).shape;
    const int64_t dim = resolve_dim(r.i("dim", 0), x.size());
    if (dim < 0) return r.error("a dim inside its input");
    const size_t d = static_cast<size_t>(dim);
    return Columns{product(x, 0, d), x[d], product(x, d + 1, x.size())};
  }
};

bool is_scanned(DType t) { return is_float(t) || t == DType::kI32 || t == DType::kI64; }

}  // namespace

CudaKernel make_cuda_cumsum(CudaDevice& device, const KernelRequest& r) {
  PARTITA_RETURN_IF_ERROR(r.expect_operands(1, 1, 1));
  if (r.in(0).shape != r.out(0).shape || r.dtype(0) != r.dtype(1)) return r.error("equal types");
  if (!is_scanned(r.dtype())) return r.unsupported();
  PARTITA_ASSIGN_OR_RETURN(Columns c, Columns::make(r));
  PARTITA_ASSIGN_OR_RETURN(cudaKernel_t kernel, device.own_kernel(cat("cumsum_", dtype_name(r.dtype()))));
  int exclusive = r.i("exclusive", 0) != 0, reverse = r.i("reverse", 0) != 0;
  return make_kernel([&device, kernel, c, exclusive, reverse](std::span<std::byte* const> b) mutable {
    void *x = b[0], *y = b[1];
    void* arguments[] = {&x, &y, &c.outer, &c.n, &c.inner, &exclusive, &reverse};
    device.launch_items(kernel, c.outer * c.inner, arguments);
  });
}

CudaKernel make_cuda_argmax(CudaDevice& device, const KernelRequest& r) {
  PARTITA_RETURN_IF_ERROR(r.expect_operands(1, 1, 1));
  PARTITA_ASSIGN_OR_RETURN(Columns c, Columns::make(r));
  if (c.n == 0 || r.out(0).dtype != DType::kI64 || product(r.out(0).shape) != c.outer * c.inner)
    return r.error("a dim with elements, and an i64 output without it");
  if (!is_scanned(r.dtype())) return r.unsupported();
  PARTITA_ASSIGN_OR_RETURN(cudaKernel_t kernel, device.own_kernel(cat("argmax_", dtype_name(r.dtype()))));
  int last = r.i("last", 0) != 0;
  return make_kernel([&device, kernel, c, last](std::span<std::byte* const> b) mutable {
    void *x = b[0], *y = b[1];
    void* arguments[] = {&x, &y, &c.outer, &c.n, &c.inner, &last};
    device.launch_items(kernel, c.outer * c.inner, arguments);
  });
}

CudaKernel make_cuda_topk(CudaDevice& device, const KernelRequest& r) {
  PARTITA_RETURN_IF_ERROR(r.expect_operands(1, 1, 2));
  PARTITA_ASSIGN_OR_RETURN(Columns c, Columns::make(r));
  int64_t k = r.i("k", 0);
  const int64_t count = c.outer * k * c.inner;
  if (k < 0 || k > c.n || r.out(0).dtype != r.dtype() || r.out(1).dtype != DType::kI64 ||
      product(r.out(0).shape) != count || product(r.out(1).shape) != count)
    return r.error("k <= the dim's size, values and i64 indices with k in its place");
  if (!is_scanned(r.dtype())) return r.unsupported();
  PARTITA_ASSIGN_OR_RETURN(cudaKernel_t kernel, device.own_kernel(cat("topk_", dtype_name(r.dtype()))));
  int largest = r.i("largest", 1) != 0;
  return make_kernel([&device, kernel, c, k, largest](std::span<std::byte* const> b) mutable {
    void *x = b[0], *values = b[1], *at = b[2];
    void* arguments[] = {&x, &values, &at, &c.outer, &c.n, &c.inner, &k, &largest};
    device.launch_items(kernel, c.outer * c.inner, arguments);
  });
}

}  // namespace partita::runtime
