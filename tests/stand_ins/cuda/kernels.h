// Kernels of the GPU that is this machine: an image is PTX, or kImageMark and the text under which somebody has
// registered a set of them.
#pragma once

#include <cuda_runtime_api.h>

#include <cstring>
#include <functional>
#include <string>
#include <tuple>
#include <utility>

#include "tests/stand_ins/cuda/streams.h"

namespace partita::stand_in {

inline constexpr char kImageMark[] = "stand-in kernels: ";

struct Launch {
  dim3 blocks, threads;
  size_t shared_bytes = 0;
};
// Takes the arguments' values now, and gives what runs the kernel later.
using KernelMaker = std::function<Work(const Launch&, void* const* arguments)>;

void register_kernel(const std::string& image, const std::string& name, KernelMaker maker);

// How many graphs were launched in this process.
int64_t graph_launches();

// What a library queues.
cudaError_t queue_work(cudaStream_t stream, Work work);

// A maker for a kernel that is a function of the host: `grid(launch, body)` runs body() for every thread.
template <typename Grid, typename... A>
KernelMaker kernel_maker(Grid grid, void (*kernel)(A...)) {
  return [=](const Launch& launch, void* const* arguments) -> Work {
    std::tuple<A...> values;
    size_t k = 0;
    std::apply([&](auto&... value) { (std::memcpy(&value, arguments[k++], sizeof value), ...); }, values);
    return [=] { grid(launch, [&] { std::apply(kernel, values); }); };
  };
}

}  // namespace partita::stand_in
