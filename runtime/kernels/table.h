// The factories of all library kernels; each checks its request.
#pragma once

#include "runtime/kernels/kernel_request.h"

namespace partita::runtime {

Kernel make_matmul(const KernelRequest& request);
Kernel make_ordered_matmul(const KernelRequest& request);  // of matmul, with param "block"
Kernel make_conv(const KernelRequest& request);
Kernel make_conv_grad_data(const KernelRequest& request);
Kernel make_conv_grad_weight(const KernelRequest& request);
Kernel make_max_pool(const KernelRequest& request);
Kernel make_max_pool_grad(const KernelRequest& request);
Kernel make_avg_pool(const KernelRequest& request);
Kernel make_avg_pool_grad(const KernelRequest& request);
Kernel make_cumsum(const KernelRequest& request);
Kernel make_topk(const KernelRequest& request);
Kernel make_argmax(const KernelRequest& request);
Kernel make_gather(const KernelRequest& request);
Kernel make_gather_grad(const KernelRequest& request);
Kernel make_grouped_matmul(const KernelRequest& request);
Kernel make_grouped_matmul_grad(const KernelRequest& request);
Kernel make_shard_slice(const KernelRequest& request);
Kernel make_take_along(const KernelRequest& request);
Kernel make_take_along_grad(const KernelRequest& request);
Kernel make_gather_nd(const KernelRequest& request);
Kernel make_gather_nd_grad(const KernelRequest& request);
Kernel make_scatter_nd(const KernelRequest& request);
Kernel make_scatter_elements(const KernelRequest& request);
Kernel make_accumulate_tree(const KernelRequest& request);
Kernel make_block_squares(const KernelRequest& request);
Kernel make_attention(const KernelRequest& request);
Kernel make_attention_grad(const KernelRequest& request);

}  // namespace partita::runtime
