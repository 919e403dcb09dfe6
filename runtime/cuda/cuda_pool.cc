// max_pool, avg_pool and their gradients (kernels/pool.cu).
#include "base/status.h"
#include "runtime/cuda/kernels.h"
#include "runtime/cuda/kernels_device.h"
#include "runtime/kernels/window.h"

namespace partita::runtime {
namespace {

// x and y are operands' shapes; `name` is that of the kernel.
CudaKernel make_pool(CudaDevice& device, const KernelRequest& r, const char* name, const Shape& x, const Shape& y,
                     bool over_outputs) {
  if (x.size() < 3 || y.size() != x.size() || x[0] != y[0] || x[1] != y[1])
    return r.error("x and y with the same samples and channels");
  if (!is_float(r.dtype())) return r.unsupported();
  PARTITA_ASSIGN_OR_RETURN(Window w, Window::make(r, x, y, r.ints("kernel"), false));
  WindowDevice d{w.batch * w.channels, {}, {}, {}, {}, {}, {}, {}, static_cast<int32_t>(r.i("count_include_pad", 0))};
  for (int k = 0; k < 3; ++k) {
    const size_t s = static_cast<size_t>(k);
    d.in[k] = w.in[s], d.out[k] = w.out[s], d.kernel[k] = w.kernel[s], d.stride[k] = w.stride[s];
    d.low[k] = w.low[s], d.high[k] = w.high[s], d.dilation[k] = w.dilation[s];
  }
  const int64_t items = d.planes * (over_outputs ? w.out_plane() : w.in_plane());
  PARTITA_ASSIGN_OR_RETURN(cudaKernel_t kernel, device.own_kernel(cat(name, "_", dtype_name(r.dtype()))));
  return make_kernel([&device, kernel, d, items](std::span<std::byte* const> b) mutable {
    std::vector<std::byte*> addresses(b.begin(), b.end());
    std::vector<void*> arguments;
    for (std::byte*& a : addresses) arguments.push_back(&a);
    arguments.push_back(&d);
    device.launch_items(kernel, items, arguments.data());
  });
}

}  // namespace

CudaKernel make_cuda_max_pool(CudaDevice& device, const KernelRequest& r) {
  PARTITA_RETURN_IF_ERROR(r.expect_operands(1, 1, 2));
  if (r.out(1).shape != r.out(0).shape || r.out(1).dtype != DType::kI32) return r.error("indices of i32 beside y");
  return make_pool(device, r, "max_pool", r.in(0).shape, r.out(0).shape, true);
}
CudaKernel make_cuda_max_pool_grad(CudaDevice& device, const KernelRequest& r) {
  PARTITA_RETURN_IF_ERROR(r.expect_operands(2, 2, 1));
  if (r.in(1).shape != r.in(0).shape || r.dtype(1) != DType::kI32) return r.error("indices of i32 beside the gradient");
  return make_pool(device, r, "max_pool_grad", r.out(0).shape, r.in(0).shape, false);
}
CudaKernel make_cuda_avg_pool(CudaDevice& device, const KernelRequest& r) {
  PARTITA_RETURN_IF_ERROR(r.expect_operands(1, 1, 1));
  return make_pool(device, r, "avg_pool", r.in(0).shape, r.out(0).shape, true);
}
CudaKernel make_cuda_avg_pool_grad(CudaDevice& device, const KernelRequest& r) {
  PARTITA_RETURN_IF_ERROR(r.expect_operands(1, 1, 1));
  return make_pool(device, r, "avg_pool_grad", r.out(0).shape, r.in(0).shape, false);
}

}  // namespace partita::runtime
