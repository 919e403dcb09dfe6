// max_pool, avg_pool and their gradients (kernels/pool.cu).
#include "base/status.h"
#include "runtime/cuda/kernels.h"
#include "runtime/cuda/kernels_device.h"
#include "runtime/kernels/window.h"
#include "runtime/program/library_kernels.h"
#include "runtime/program/program_check.h"

namespace partita::runtime {
namespace {

// Fewer items of a launch than fit into 31 bits, and the threads of one more round.
constexpr int64_t kMostItems = int64_t{1} << 30;

// x and y are operands' shapes, perhaps with their channels last; `name` is that of the kernel. `items`: of a channel
// of a plane, from its window.
template <typename Items>
CudaKernel make_pool(CudaDevice& device, const KernelRequest& r, const char* name, Shape x, Shape y, Items items) {
  const bool channels_last = r.i("channels_last", 0) != 0;
  if (channels_last && x.size() == 4 && y.size() == 4) x = channels_second(x), y = channels_second(y);
  if (x.size() < 3 || y.size() != x.size() || x[0] != y[0] || x[1] != y[1])
    return r.error("x and y with the same samples and channels");
  if (!is_float(r.dtype())) return r.unsupported();
  PARTITA_ASSIGN_OR_RETURN(Window w, Window::make(r, x, y, r.ints("kernel"), false));
  const int64_t channels = channels_last ? w.channels : 1, planes = w.batch * w.channels / channels,
                largest = std::max(w.in_plane(), w.out_plane()) * channels;
  if (largest > kMostItems) return r.unsupported();
  WindowDevice d{0, {}, {}, {}, {}, {}, {}, {}, static_cast<int32_t>(r.i("count_include_pad", 0))};
  for (int k = 0; k < 3; ++k) {
    const auto at = [k](const Window::Dims& dims) { return static_cast<int32_t>(dims[static_cast<size_t>(k)]); };
    d.in[k] = at(w.in), d.out[k] = at(w.out), d.kernel[k] = at(w.kernel), d.stride[k] = at(w.stride);
    d.low[k] = at(w.low), d.high[k] = at(w.high), d.dilation[k] = at(w.dilation);
  }
  d.channels = static_cast<int32_t>(channels);
  d = d.ready();
  std::vector<int64_t> plane_bytes;
  for (const Operand& o : r.step().operands) plane_bytes.push_back(operand_bytes(o) / std::max<int64_t>(planes, 1));
  const int64_t of_plane = items(d) * channels,
                together = std::max<int64_t>(kMostItems / std::max({largest, of_plane, int64_t{1}}), 1);
  PARTITA_ASSIGN_OR_RETURN(cudaKernel_t kernel, device.own_kernel(cat(name, "_", dtype_name(r.dtype()))));
  return make_kernel([=, &device](std::span<std::byte* const> b) mutable {
    for (int64_t first = 0; first < planes; first += together) {
      std::vector<std::byte*> addresses;
      for (size_t k = 0; k < b.size(); ++k) addresses.push_back(b[k] + first * plane_bytes[k]);
      std::vector<void*> arguments;
      for (std::byte*& a : addresses) arguments.push_back(&a);
      arguments.push_back(&d);
      d.planes = static_cast<int32_t>(std::min(together, planes - first));
      device.launch_items(kernel, of_plane * d.planes, arguments.data());
    }
  });
}

int64_t outputs(const WindowDevice& w) { return int64_t{w.out[0]} * w.out[1] * w.out[2]; }
int64_t inputs(const WindowDevice& w) { return int64_t{w.in[0]} * w.in[1] * w.in[2]; }
int64_t spans(const WindowDevice& w) { return int64_t{w.in[0]} * w.in[1] * w.spans(); }

}  // namespace

CudaKernel make_cuda_max_pool(CudaDevice& device, const KernelRequest& r) {
  PARTITA_RETURN_IF_ERROR(r.expect_operands(1, 1, 2));
  if (r.out(1).shape != r.out(0).shape || r.out(1).dtype != DType::kI32) return r.error("indices of i32 beside y");
  return make_pool(device, r, "max_pool", r.in(0).shape, r.out(0).shape, outputs);
}
CudaKernel make_cuda_max_pool_grad(CudaDevice& device, const KernelRequest& r) {
  PARTITA_RETURN_IF_ERROR(r.expect_operands(2, 2, 1));
  if (r.in(1).shape != r.in(0).shape || r.dtype(1) != DType::kI32) return r.error("indices of i32 beside the gradient");
  return make_pool(device, r, "max_pool_grad", r.out(0).shape, r.in(0).shape, spans);
}
CudaKernel make_cuda_avg_pool(CudaDevice& device, const KernelRequest& r) {
  PARTITA_RETURN_IF_ERROR(r.expect_operands(1, 1, 1));
  return make_pool(device, r, "avg_pool", r.in(0).shape, r.out(0).shape, outputs);
}
CudaKernel make_cuda_avg_pool_grad(CudaDevice& device, const KernelRequest& r) {
  PARTITA_RETURN_IF_ERROR(r.expect_operands(1, 1, 1));
  return make_pool(device, r, "avg_pool_grad", r.out(0).shape, r.in(0).shape, inputs);
}

}  // namespace partita::runtime
