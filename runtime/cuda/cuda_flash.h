// Attention by our own kernels, whose scores stay on the chip (kernels/flash.cu): no memory that grows with s * t.
#pragma once

#include "runtime/cuda/kernels.h"
#include "runtime/cuda/kernels_device.h"
#include "runtime/kernels/attention.h"

namespace partita::runtime {

MaskKind mask_kind(DType mask);  // kInvalid: there is none

// bf16, fp16 and f32 (inputs of one dtype, sums and softmax in f32), and heads of at most 128 elements.
bool flash_applies(DType dtype, const AttentionShape& shape);

// `request` as make_cuda_attention and make_cuda_attention_grad have checked it; nothing in it is empty.
CudaKernel make_cuda_flash(CudaDevice& device, const KernelRequest& request, const AttentionShape& shape, DType mask);
CudaKernel make_cuda_flash_grad(CudaDevice& device, const KernelRequest& request, const AttentionShape& shape,
                                DType mask);

}  // namespace partita::runtime
