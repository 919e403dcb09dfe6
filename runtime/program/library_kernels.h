// Library steps by the names that a runtime knows them by; and the order N, H, W, C in memory of values [N, C, H, W] in
// which some of them take their operands.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

namespace partita {

// Dimension k of a value with its channels last is this one of the value.
inline constexpr std::array<int64_t, 4> kChannelsLast = {0, 2, 3, 1};

// Of four dimensions, one number for each: in the order of a value with its channels last, and back.
inline std::vector<int64_t> channels_last(const std::vector<int64_t>& of) { return {of[0], of[2], of[3], of[1]}; }
inline std::vector<int64_t> channels_second(const std::vector<int64_t>& of) { return {of[0], of[3], of[1], of[2]}; }

// Both orders of a shape of four dimensions are the same bytes.
inline bool is_in_both_orders(const std::vector<int64_t>& shape) { return shape[1] == 1 || shape[2] * shape[3] == 1; }

// Library kernels that take all operands and results with their channels last, by the parameter "channels_last".
inline constexpr std::array<std::string_view, 7> kChannelsLastKernels = {
    "conv", "conv_grad_data", "conv_grad_weight", "max_pool", "max_pool_grad", "avg_pool", "avg_pool_grad"};

}  // namespace partita

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
