// Kernels of the GPU that is this machine: an image is PTX, or kImageMark and the text under which somebody has
// registered a set of them.
#pragma once

#include <cuda_runtime_api.h>

#include <chrono>
#include <cstring>
#include <functional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "tests/ptx/launch.h"
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

// Counts what is asked of the GPU, which is not done then: kernels that are PTX, and what is set and copied within its
// memory; what libraries queue is left out. Copies from the host and to it are done. Its memory is zero and takes none
// of this machine's before it is written.
class Watcher {
 public:
  virtual ~Watcher() = default;
  virtual void launch(const ptx::Module& module, const ptx::Program& program, const ptx::Grid& grid,
                      std::vector<std::byte> parameters) = 0;
  virtual void set(std::byte* to, size_t bytes) = 0;
  virtual void copy(std::byte* to, const std::byte* from, size_t bytes) = 0;
};
// From now on, before anything is allocated; null: no more.
void watch(Watcher* watcher);

// From now on: how long a copy from the host to the GPU takes at least, so that a wait for it that is missing shows;
// and the bytes of the GPU's memory.
void slow_down_copies(std::chrono::microseconds least);
void limit_memory(size_t bytes = size_t{8} << 30);

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
