#include "runtime/cuda/kernels.h"

#include <algorithm>
#include <iterator>

#include "base/quote.h"
#include "runtime/program/library_kernels.h"

namespace partita::runtime {
namespace {

struct Entry {
  std::string_view name;
  CudaKernel (*make)(CudaDevice&, const KernelRequest&);
};

constexpr Entry kTable[] = {
    {"accumulate_tree", make_cuda_accumulate_tree},
    {"argmax", make_cuda_argmax},
    {"attention", make_cuda_attention},
    {"attention_grad", make_cuda_attention_grad},
    {"avg_pool", make_cuda_avg_pool},
    {"avg_pool_grad", make_cuda_avg_pool_grad},
    {"block_squares", make_cuda_block_squares},
    {"conv", make_cuda_conv},
    {"conv_grad_data", make_cuda_conv_grad_data},
    {"conv_grad_weight", make_cuda_conv_grad_weight},
    {"cumsum", make_cuda_cumsum},
    {"gather", make_cuda_gather},
    {"gather_grad", make_cuda_gather_grad},
    {"gather_nd", make_cuda_gather_nd},
    {"gather_nd_grad", make_cuda_gather_nd_grad},
    {"grouped_matmul", make_cuda_grouped_matmul},
    {"grouped_matmul_grad", make_cuda_grouped_matmul_grad},
    {"matmul", make_cuda_matmul},
    {"max_pool", make_cuda_max_pool},
    {"max_pool_grad", make_cuda_max_pool_grad},
    {"multiply_fp8", make_cuda_multiply_fp8},
    {"quantize_fp8", make_cuda_quantize_fp8},
    {"scatter_elements", make_cuda_scatter_elements},
    {"scatter_nd", make_cuda_scatter_nd},
    {"shard_slice", make_cuda_shard_slice},
    {"take_along", make_cuda_take_along},
    {"take_along_grad", make_cuda_take_along_grad},
    {"topk", make_cuda_topk},
};
static_assert(std::equal(std::begin(kTable), std::end(kTable), std::begin(kDeviceKernels), std::end(kDeviceKernels),
                         [](const Entry& entry, std::string_view name) { return entry.name == name; }),
              "what the compiler takes to be there is not what is there");

}  // namespace

CudaKernel prepare_cuda_kernel(CudaDevice& device, const Step& step) {
  for (const Entry& entry : kTable) {
    if (entry.name == step.name) return entry.make(device, KernelRequest(step, ExecutionConfig{}));
  }
  return absl::UnimplementedError(cat("the CUDA module has no kernel ", quote(step.name)));
}

}  // namespace partita::runtime
