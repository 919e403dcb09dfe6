// Library steps by the names that a runtime knows them by.
#pragma once

#include <algorithm>
#include <string_view>

namespace partita::runtime {

// Those that the CUDA module has kernels for, in order; runtime/cuda/kernels.cc is held to it when it is compiled. Code
// for a GPU that needs another is refused (codegen/emit_program.cc).
inline constexpr std::string_view kDeviceKernels[] = {"accumulate_tree",
                                                      "argmax",
                                                      "attention",
                                                      "attention_grad",
                                                      "avg_pool",
                                                      "avg_pool_grad",
                                                      "block_squares",
                                                      "conv",
                                                      "conv_grad_data",
                                                      "conv_grad_weight",
                                                      "cumsum",
                                                      "gather",
                                                      "gather_grad",
                                                      "gather_nd",
                                                      "gather_nd_grad",
                                                      "grouped_matmul",
                                                      "grouped_matmul_grad",
                                                      "matmul",
                                                      "max_pool",
                                                      "max_pool_grad",
                                                      "multiply_fp8",
                                                      "quantize_fp8",
                                                      "scatter_elements",
                                                      "scatter_nd",
                                                      "shard_slice",
                                                      "take_along",
                                                      "take_along_grad",
                                                      "topk"};

constexpr bool has_device_kernel(std::string_view name) {
  return std::find(std::begin(kDeviceKernels), std::end(kDeviceKernels), name) != std::end(kDeviceKernels);
}

}  // namespace partita::runtime
