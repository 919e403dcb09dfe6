// The CUDA back end's library steps: names, operands and params as runtime/kernel/kernel.h has them.
#pragma once

#include "runtime/cuda/cuda_device.h"

namespace partita::runtime {

// The machine code of runtime/cuda/kernels/*.cu, put here by the build.
extern "C" const unsigned char partita_kernels_attention[], partita_kernels_epilogue[], partita_kernels_flash[],
    partita_kernels_fp8[], partita_kernels_grouped[], partita_kernels_indexing[], partita_kernels_pool[],
    partita_kernels_scan[], partita_kernels_sums[], partita_kernels_turn[];

using CudaKernel = absl::StatusOr<std::unique_ptr<LibraryKernel>>;
CudaKernel prepare_cuda_kernel(CudaDevice& device, const Step& step);

CudaKernel make_cuda_accumulate_tree(CudaDevice& device, const KernelRequest& request);
CudaKernel make_cuda_block_squares(CudaDevice& device, const KernelRequest& request);
CudaKernel make_cuda_matmul(CudaDevice& device, const KernelRequest& request);
CudaKernel make_cuda_multiply_fp8(CudaDevice& device, const KernelRequest& request);
CudaKernel make_cuda_quantize_fp8(CudaDevice& device, const KernelRequest& request);
CudaKernel make_cuda_attention(CudaDevice& device, const KernelRequest& request);
CudaKernel make_cuda_attention_grad(CudaDevice& device, const KernelRequest& request);
CudaKernel make_cuda_conv(CudaDevice& device, const KernelRequest& request);
CudaKernel make_cuda_conv_grad_data(CudaDevice& device, const KernelRequest& request);
CudaKernel make_cuda_conv_grad_weight(CudaDevice& device, const KernelRequest& request);
CudaKernel make_cuda_gather(CudaDevice& device, const KernelRequest& request);
CudaKernel make_cuda_gather_grad(CudaDevice& device, const KernelRequest& request);
CudaKernel make_cuda_grouped_matmul(CudaDevice& device, const KernelRequest& request);
CudaKernel make_cuda_grouped_matmul_grad(CudaDevice& device, const KernelRequest& request);
CudaKernel make_cuda_cumsum(CudaDevice& device, const KernelRequest& request);
CudaKernel make_cuda_argmax(CudaDevice& device, const KernelRequest& request);
CudaKernel make_cuda_topk(CudaDevice& device, const KernelRequest& request);
CudaKernel make_cuda_gather_nd(CudaDevice& device, const KernelRequest& request);
CudaKernel make_cuda_gather_nd_grad(CudaDevice& device, const KernelRequest& request);
CudaKernel make_cuda_take_along(CudaDevice& device, const KernelRequest& request);
CudaKernel make_cuda_take_along_grad(CudaDevice& device, const KernelRequest& request);
CudaKernel make_cuda_scatter_elements(CudaDevice& device, const KernelRequest& request);
CudaKernel make_cuda_scatter_nd(CudaDevice& device, const KernelRequest& request);
CudaKernel make_cuda_shard_slice(CudaDevice& device, const KernelRequest& request);
CudaKernel make_cuda_max_pool(CudaDevice& device, const KernelRequest& request);
CudaKernel make_cuda_max_pool_grad(CudaDevice& device, const KernelRequest& request);
CudaKernel make_cuda_avg_pool(CudaDevice& device, const KernelRequest& request);
CudaKernel make_cuda_avg_pool_grad(CudaDevice& device, const KernelRequest& request);

}  // namespace partita::runtime
