// The CUDA runtime's entry points that Partita calls, on this machine: so that the real CUDA module runs in tests where
// there is no GPU. Strict where a GPU is lenient: every stream is one that was made, every address of a copy lies in
// memory of the device or page-locked memory, limits are those of sm_80.
#include <cuda.h>
#include <cuda_runtime_api.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <set>
#include <string>

#include "tests/ptx/launch.h"
#include "tests/stand_ins/cuda/kernels.h"
#include "tests/stand_ins/cuda/memory.h"
#include "tests/stand_ins/cuda/streams.h"

namespace partita::stand_in {
namespace {

constexpr size_t kTotalWatched = size_t{1} << 40;
constexpr int kProcessors = 4, kProcessorsWatched = 132;
constexpr size_t kSharedWithoutLeave = 48 << 10, kSharedWithLeave = 163 << 10;

struct Kernel {
  std::string name;
  KernelMaker maker;
  size_t shared_limit = kSharedWithoutLeave;
};
struct Library {
  std::map<std::string, Kernel> kernels;
  std::shared_ptr<ptx::Module> module;  // of PTX: its kernels are found when they are asked for
};
struct Graph {
  std::vector<Work> work;
};

template <typename T>
class Handles {
 public:
  T* add(T* made) {
    std::lock_guard lock(mutex_);
    all_.insert(made);
    return made;
  }
  bool has(const void* handle) const {
    std::lock_guard lock(mutex_);
    return all_.count(const_cast<T*>(static_cast<const T*>(handle))) > 0;
  }
  bool remove(const void* handle) {
    std::lock_guard lock(mutex_);
    return all_.erase(const_cast<T*>(static_cast<const T*>(handle))) > 0;
  }

 private:
  mutable std::mutex mutex_;
  std::set<T*> all_;
};

struct Runtime {
  static Runtime& instance() {
    static auto* runtime = new Runtime;
    return *runtime;
  }
  Handles<Stream> streams;
  Handles<Event> events;
  Handles<Library> libraries;
  Handles<Kernel> kernels;
  Handles<Graph> graphs, runnable_graphs;
  std::mutex mutex;
  std::map<std::string, std::map<std::string, KernelMaker>> images;
  std::atomic<int64_t> graph_launches = 0;
  Watcher* watcher = nullptr;
  std::atomic<size_t> memory = size_t{8} << 30;
  std::atomic<std::chrono::microseconds> copies_take{};
  size_t total() const { return watcher == nullptr ? memory.load() : kTotalWatched; }
};
Runtime& runtime() { return Runtime::instance(); }

thread_local cudaError_t last_error = cudaSuccess;
cudaError_t result(cudaError_t code) {
  if (code != cudaSuccess && code != cudaErrorNotReady) last_error = code;
  return code;
}
cudaError_t misuse(const char* call, const std::string& what) {
  std::fprintf(stderr, "CUDA stand-in: %s: %s\n", call, what.c_str());
  return result(cudaErrorInvalidValue);
}

Stream* stream_of(cudaStream_t handle) {
  return runtime().streams.has(handle) ? reinterpret_cast<Stream*>(handle) : nullptr;
}
Event* event_of(cudaEvent_t handle) {
  return runtime().events.has(handle) ? reinterpret_cast<Event*>(handle) : nullptr;
}

cudaError_t queue(const char* call, cudaStream_t handle, Work work) {
  Stream* stream = stream_of(handle);
  if (stream == nullptr) return misuse(call, "no stream of this process (the default one is not ours)");
  stream->push(std::move(work));
  return result(cudaSuccess);
}

// Each text is taken apart once in a process.
absl::StatusOr<std::shared_ptr<ptx::Module>> module_of(std::string text) {
  static auto* known = new std::map<std::pair<size_t, size_t>, std::shared_ptr<ptx::Module>>;
  std::lock_guard lock(runtime().mutex);
  std::shared_ptr<ptx::Module>& module = (*known)[{std::hash<std::string>()(text), text.size()}];
  if (module == nullptr) {
    auto made = ptx::Module::load(std::move(text));
    if (!made.ok()) return made.status();
    module = *std::move(made);
  }
  return module;
}

// Runs on all memory there is when it begins. What the interpreter refuses is no error code that somebody could
// overlook.
KernelMaker ptx_kernel_maker(const ptx::Module& module, const ptx::Program& program) {
  return [&](const Launch& launch, void* const* arguments) -> Work {
    const auto three = [](const dim3& d) { return ptx::Index3{d.x, d.y, d.z}; };
    const ptx::Grid grid{three(launch.blocks), three(launch.threads), static_cast<int64_t>(launch.shared_bytes)};
    if (runtime().watcher != nullptr) {
      runtime().watcher->launch(module, program, grid, ptx::pack_arguments(program, arguments));
      return [] {};
    }
    return [&module, &program, grid, parameters = ptx::pack_arguments(program, arguments)] {
      std::vector<ptx::GlobalMemory::Range> memory;
      for (const auto& [begin, bytes] : Memory::instance().blocks())
        memory.push_back({reinterpret_cast<uint64_t>(begin), bytes});
      const absl::Status status =
          ptx::launch(module, program, grid, parameters, std::move(memory), {.order = ptx::Order::kShuffled});
      if (status.ok()) return;
      std::fprintf(stderr, "CUDA stand-in: %s\n", std::string(status.message()).c_str());
      std::abort();
    };
  };
}

// Of the driver: a stream waits for a word of memory, or writes one.
std::atomic<uint64_t>* word_at(CUdeviceptr address) {
  const bool known = Memory::instance().place_of(reinterpret_cast<void*>(address), 8) != Place::kUnknown;
  return known && address % 8 == 0 ? reinterpret_cast<std::atomic<uint64_t>*>(address) : nullptr;
}
CUresult wait_for_value(CUstream stream, CUdeviceptr address, cuuint64_t value, unsigned flags) {
  std::atomic<uint64_t>* word = word_at(address);
  if (word == nullptr || flags != CU_STREAM_WAIT_VALUE_GEQ) return CUDA_ERROR_INVALID_VALUE;
  const auto wait = [=] {
    for (int64_t looks = 0; static_cast<int64_t>(word->load() - value) < 0; ++looks)
      std::this_thread::sleep_for(std::chrono::microseconds(looks < 100 ? 5 : 200));
  };
  return queue("cuStreamWaitValue64", stream, wait) == cudaSuccess ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
CUresult write_value(CUstream stream, CUdeviceptr address, cuuint64_t value, unsigned) {
  std::atomic<uint64_t>* word = word_at(address);
  if (word == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const cudaError_t code = queue("cuStreamWriteValue64", stream, [=] { word->store(value); });
  return code == cudaSuccess ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

}  // namespace

void register_kernel(const std::string& image, const std::string& name, KernelMaker maker) {
  std::lock_guard lock(runtime().mutex);
  runtime().images[image][name] = std::move(maker);
}

void slow_down_copies(std::chrono::microseconds least) { runtime().copies_take = least; }
void limit_memory(size_t bytes) { runtime().memory = bytes; }

int64_t graph_launches() { return runtime().graph_launches; }

cudaError_t queue_work(cudaStream_t stream, Work work) {
  return runtime().watcher != nullptr ? result(cudaSuccess) : queue("a library", stream, std::move(work));
}

void watch(Watcher* watcher) {
  runtime().watcher = watcher;
  Memory::instance().be_lazy(watcher != nullptr);
}

}  // namespace partita::stand_in

using namespace partita::stand_in;

extern "C" {

cudaError_t cudaDriverGetVersion(int* version) { return *version = CUDART_VERSION, cudaSuccess; }
cudaError_t cudaRuntimeGetVersion(int* version) { return *version = CUDART_VERSION, cudaSuccess; }
cudaError_t cudaGetDeviceCount(int* count) { return *count = 1, cudaSuccess; }
cudaError_t cudaSetDevice(int device) { return result(device == 0 ? cudaSuccess : cudaErrorInvalidDevice); }
cudaError_t cudaGetDevice(int* device) { return *device = 0, cudaSuccess; }
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* p, int device) {
  if (device != 0) return result(cudaErrorInvalidDevice);
  *p = {};
  std::snprintf(p->name, sizeof p->name, "this machine");
  std::memcpy(p->uuid.bytes, "one of a machine", sizeof p->uuid.bytes);
  // A newer generation than a bundle's is given its PTX, which is what can be run here.
  const char* capability = std::getenv("STAND_IN_GPU_CAPABILITY");
  const int number = capability == nullptr ? 90 : std::atoi(capability);
  p->major = number / 10, p->minor = number % 10;
  p->multiProcessorCount = runtime().watcher == nullptr ? kProcessors : kProcessorsWatched;
  p->maxThreadsPerBlock = 1024;
  p->maxGridSize[0] = 0x7fffffff, p->maxGridSize[1] = p->maxGridSize[2] = 65535;
  p->totalGlobalMem = runtime().total();
  return cudaSuccess;
}
const char* cudaGetErrorString(cudaError_t code) {
  switch (code) {
    case cudaSuccess:
      return "no error";
    case cudaErrorMemoryAllocation:
      return "out of memory";
    case cudaErrorNotReady:
      return "device not ready";
    case cudaErrorSymbolNotFound:
      return "named symbol not found";
    default:
      return "invalid argument";
  }
}
cudaError_t cudaGetLastError() { return std::exchange(last_error, cudaSuccess); }

cudaError_t cudaGetDriverEntryPointByVersion(const char* symbol, void** function, unsigned, unsigned long long,
                                             cudaDriverEntryPointQueryResult* outcome) {
  const std::string name = symbol;
  *function = name == "cuStreamWaitValue64"    ? reinterpret_cast<void*>(wait_for_value)
              : name == "cuStreamWriteValue64" ? reinterpret_cast<void*>(write_value)
                                               : nullptr;
  *outcome = *function == nullptr ? cudaDriverEntryPointSymbolNotFound : cudaDriverEntryPointSuccess;
  return cudaSuccess;
}

cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
  *total = runtime().total();
  *free = *total - std::min(*total, Memory::instance().used());
  return cudaSuccess;
}
cudaError_t cudaMalloc(void** memory, size_t bytes) {
  if (Memory::instance().used() + bytes > runtime().total()) return result(cudaErrorMemoryAllocation);
  *memory = Memory::instance().allocate(bytes, Place::kDevice);
  return result(*memory == nullptr ? cudaErrorMemoryAllocation : cudaSuccess);
}
cudaError_t cudaHostAlloc(void** memory, size_t bytes, unsigned) {
  *memory = Memory::instance().allocate(bytes, Place::kPinned);
  return result(*memory == nullptr ? cudaErrorMemoryAllocation : cudaSuccess);
}
cudaError_t cudaMallocHost(void** memory, size_t bytes) { return cudaHostAlloc(memory, bytes, 0); }
cudaError_t cudaFree(void* memory) {
  return memory == nullptr || Memory::instance().release(memory) ? cudaSuccess : misuse("cudaFree", "not allocated");
}
cudaError_t cudaFreeHost(void* memory) { return cudaFree(memory); }

cudaError_t cudaHostRegister(void* memory, size_t bytes, unsigned) {
  Memory::instance().know(memory, bytes);
  return cudaSuccess;
}
cudaError_t cudaHostGetDevicePointer(void** device, void* memory, unsigned) {
  if (Memory::instance().place_of(memory, 1) != Place::kPinned)
    return misuse("cudaHostGetDevicePointer", "memory that is not page-locked");
  return *device = memory, cudaSuccess;
}

cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t* handle, void* memory) {
  auto name = Memory::instance().name_of(memory);
  if (!name) return misuse("cudaIpcGetMemHandle", "not the beginning of an allocation");
  static_assert(sizeof(MemoryName) <= sizeof handle->reserved);
  std::memcpy(handle->reserved, &*name, sizeof *name);
  return cudaSuccess;
}
cudaError_t cudaIpcOpenMemHandle(void** memory, cudaIpcMemHandle_t handle, unsigned) {
  MemoryName name;
  std::memcpy(&name, handle.reserved, sizeof name);
  if (name.process == ::getpid()) return misuse("cudaIpcOpenMemHandle", "a handle of the same process");
  *memory = Memory::instance().open(name);
  return result(*memory == nullptr ? cudaErrorInvalidValue : cudaSuccess);
}
cudaError_t cudaIpcCloseMemHandle(void* memory) {
  return Memory::instance().close(memory) ? cudaSuccess : misuse("cudaIpcCloseMemHandle", "not open");
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind, cudaStream_t stream) {
  if (bytes == 0) return cudaSuccess;
  const Place a = Memory::instance().place_of(from, bytes), b = Memory::instance().place_of(to, bytes);
  const bool known = a != Place::kUnknown && b != Place::kUnknown;
  const bool fits = kind == cudaMemcpyDefault ||
                    ((kind == cudaMemcpyHostToDevice || kind == cudaMemcpyHostToHost) == (a == Place::kPinned) &&
                     (kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyHostToHost) == (b == Place::kPinned));
  if (!known || !fits) return misuse("cudaMemcpyAsync", "an address outside of the memory that the kind of copy names");
  if (runtime().watcher != nullptr && a == Place::kDevice && b == Place::kDevice) {
    runtime().watcher->copy(static_cast<std::byte*>(to), static_cast<const std::byte*>(from), bytes);
    return result(cudaSuccess);
  }
  const bool up = a == Place::kPinned && b == Place::kDevice;
  return queue("cudaMemcpyAsync", stream,
               [=, least = up ? runtime().copies_take.load() : std::chrono::microseconds(0)] {
                 if (least.count() > 0) std::this_thread::sleep_for(least);
                 std::memmove(to, from, bytes);
               });
}
// Boxes of bytes between pitched memories of the device.
cudaError_t cudaMemcpy3DAsync(const cudaMemcpy3DParms* p, cudaStream_t stream) {
  const cudaMemcpy3DParms c = *p;
  const size_t bytes = c.extent.width * c.extent.height * c.extent.depth;
  if (bytes == 0) return cudaSuccess;
  const auto row = [](const cudaPitchedPtr& at, const cudaPos& first, size_t y, size_t z) {
    return static_cast<std::byte*>(at.ptr) + ((first.z + z) * at.ysize + first.y + y) * at.pitch + first.x;
  };
  for (const auto& [at, first] : {std::pair(c.srcPtr, c.srcPos), std::pair(c.dstPtr, c.dstPos)}) {
    const std::byte *begin = row(at, first, 0, 0), *last = row(at, first, c.extent.height - 1, c.extent.depth - 1);
    const bool inside = first.x + c.extent.width <= at.pitch && first.y + c.extent.height <= at.ysize;
    if (!inside || c.kind != cudaMemcpyDeviceToDevice ||
        Memory::instance().place_of(begin, static_cast<size_t>(last - begin) + c.extent.width) != Place::kDevice)
      return misuse("cudaMemcpy3DAsync", "a box outside of its memory, or memory that is not the device's");
  }
  return queue("cudaMemcpy3DAsync", stream, [=] {
    for (size_t z = 0; z < c.extent.depth; ++z) {
      for (size_t y = 0; y < c.extent.height; ++y)
        std::memmove(row(c.dstPtr, c.dstPos, y, z), row(c.srcPtr, c.srcPos, y, z), c.extent.width);
    }
  });
}
cudaError_t cudaMemsetAsync(void* to, int value, size_t bytes, cudaStream_t stream) {
  if (bytes == 0) return cudaSuccess;
  if (Memory::instance().place_of(to, bytes) != Place::kDevice)
    return misuse("cudaMemsetAsync", "memory that is not the device's");
  if (runtime().watcher != nullptr) return runtime().watcher->set(static_cast<std::byte*>(to), bytes), cudaSuccess;
  return queue("cudaMemsetAsync", stream, [=] { std::memset(to, value, bytes); });
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) {
  if (flags != cudaStreamNonBlocking) return misuse("cudaStreamCreateWithFlags", "one that the default stream blocks");
  *stream = reinterpret_cast<cudaStream_t>(runtime().streams.add(new Stream));
  return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  if (!runtime().streams.remove(stream)) return misuse("cudaStreamDestroy", "no stream");
  delete reinterpret_cast<Stream*>(stream);
  return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  Stream* s = stream_of(stream);
  if (s == nullptr || s->is_capturing()) return misuse("cudaStreamSynchronize", "no stream, or one that captures");
  return s->wait(), cudaSuccess;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  Event* e = event_of(event);
  if (e == nullptr) return misuse("cudaStreamWaitEvent", "no event");
  return queue("cudaStreamWaitEvent", stream, [last = *e] {
    if (last != nullptr) last->wait();
  });
}
cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void* data) {
  return queue("cudaLaunchHostFunc", stream, [=] { function(data); });
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  *event = reinterpret_cast<cudaEvent_t>(runtime().events.add(new Event));
  return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  if (!runtime().events.remove(event)) return misuse("cudaEventDestroy", "no event");
  delete reinterpret_cast<Event*>(event);
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  Event* e = event_of(event);
  if (e == nullptr) return misuse("cudaEventRecord", "no event");
  *e = std::make_shared<Recording>();
  return queue("cudaEventRecord", stream, [now = *e] { now->reach(); });
}
cudaError_t cudaEventQuery(cudaEvent_t event) {
  Event* e = event_of(event);
  if (e == nullptr) return misuse("cudaEventQuery", "no event");
  return *e == nullptr || (*e)->is_over() ? cudaSuccess : cudaErrorNotReady;
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  Event* e = event_of(event);
  if (e == nullptr) return misuse("cudaEventSynchronize", "no event");
  if (const Event last = *e) last->wait();
  return cudaSuccess;
}
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t begin, cudaEvent_t end) {
  Event *a = event_of(begin), *b = event_of(end);
  if (a == nullptr || b == nullptr || *a == nullptr || *b == nullptr)
    return misuse("cudaEventElapsedTime", "no event, or one that was never recorded");
  if (!(*a)->is_over() || !(*b)->is_over()) return cudaErrorNotReady;
  *milliseconds = std::chrono::duration<float, std::milli>((*b)->when() - (*a)->when()).count();
  return cudaSuccess;
}

cudaError_t cudaLibraryLoadData(cudaLibrary_t* library, const void* code, cudaJitOption*, void**, unsigned,
                                cudaLibraryOption*, void**, unsigned) {
  const char* text = static_cast<const char*>(code);
  const size_t mark = sizeof kImageMark - 1;
  if (std::strncmp(text, kImageMark, mark) != 0) {
    auto module = module_of(text);
    if (!module.ok()) return misuse("cudaLibraryLoadData", std::string(module.status().message()));
    *library = reinterpret_cast<cudaLibrary_t>(runtime().libraries.add(new Library{{}, *std::move(module)}));
    return result(cudaSuccess);
  }
  std::lock_guard lock(runtime().mutex);
  auto image = runtime().images.find(text + mark);
  if (image == runtime().images.end())
    return misuse("cudaLibraryLoadData", std::string("no kernels for ") + (text + mark));
  auto made = std::make_unique<Library>();
  for (const auto& [name, maker] : image->second) {
    Kernel& kernel = made->kernels[name] = {name, maker};
    runtime().kernels.add(&kernel);
  }
  *library = reinterpret_cast<cudaLibrary_t>(runtime().libraries.add(made.release()));
  return cudaSuccess;
}
cudaError_t cudaLibraryUnload(cudaLibrary_t library) {
  if (!runtime().libraries.remove(library)) return misuse("cudaLibraryUnload", "no library");
  auto* l = reinterpret_cast<Library*>(library);
  for (auto& [name, kernel] : l->kernels) runtime().kernels.remove(&kernel);
  delete l;
  return cudaSuccess;
}
cudaError_t cudaLibraryGetKernel(cudaKernel_t* kernel, cudaLibrary_t library, const char* name) {
  if (!runtime().libraries.has(library)) return misuse("cudaLibraryGetKernel", "no library");
  auto* l = reinterpret_cast<Library*>(library);
  std::lock_guard lock(runtime().mutex);
  auto at = l->kernels.find(name);
  if (at == l->kernels.end() && l->module != nullptr) {
    auto program = l->module->kernel(name);
    if (program.ok()) {
      at = l->kernels.try_emplace(name, Kernel{name, ptx_kernel_maker(*l->module, **program)}).first;
      runtime().kernels.add(&at->second);
    } else if (!absl::IsNotFound(program.status())) {
      return misuse("cudaLibraryGetKernel", std::string(program.status().message()));
    }
  }
  if (at == l->kernels.end()) return result(cudaErrorSymbolNotFound);
  *kernel = reinterpret_cast<cudaKernel_t>(&at->second);
  return cudaSuccess;
}
cudaError_t cudaKernelSetAttributeForDevice(cudaKernel_t kernel, cudaFuncAttribute attribute, int value, int) {
  if (!runtime().kernels.has(kernel) || attribute != cudaFuncAttributeMaxDynamicSharedMemorySize ||
      static_cast<size_t>(value) > kSharedWithLeave)
    return misuse("cudaKernelSetAttributeForDevice", "shared memory that no block has");
  auto* k = reinterpret_cast<Kernel*>(kernel);
  k->shared_limit = std::max(k->shared_limit, static_cast<size_t>(value));
  return cudaSuccess;
}
cudaError_t cudaLaunchKernel(const void* function, dim3 blocks, dim3 threads, void** arguments, size_t shared_bytes,
                             cudaStream_t stream) {
  if (!runtime().kernels.has(function)) return misuse("cudaLaunchKernel", "no kernel of a library");
  const auto* kernel = static_cast<const Kernel*>(function);
  const bool fits = blocks.x > 0 && blocks.x <= 0x7fffffff && blocks.y > 0 && blocks.y <= 65535 && blocks.z > 0 &&
                    blocks.z <= 65535 && threads.x * threads.y * threads.z > 0 &&
                    threads.x * threads.y * threads.z <= 1024 && shared_bytes <= kernel->shared_limit;
  if (!fits) return misuse("cudaLaunchKernel", kernel->name + ": blocks, threads or shared memory out of limits");
  return queue("cudaLaunchKernel", stream, kernel->maker({blocks, threads, shared_bytes}, arguments));
}

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode) {
  Stream* s = stream_of(stream);
  if (s == nullptr || !s->begin_capture()) return misuse("cudaStreamBeginCapture", "no stream, or one that captures");
  return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  Stream* s = stream_of(stream);
  if (s == nullptr || !s->is_capturing()) return misuse("cudaStreamEndCapture", "no stream that captures");
  *graph = reinterpret_cast<cudaGraph_t>(runtime().graphs.add(new Graph{s->end_capture()}));
  return cudaSuccess;
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* made, cudaGraph_t graph, unsigned long long) {
  if (!runtime().graphs.has(graph)) return misuse("cudaGraphInstantiate", "no graph");
  *made = reinterpret_cast<cudaGraphExec_t>(runtime().runnable_graphs.add(new Graph(*reinterpret_cast<Graph*>(graph))));
  return cudaSuccess;
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  if (!runtime().graphs.remove(graph)) return misuse("cudaGraphDestroy", "no graph");
  delete reinterpret_cast<Graph*>(graph);
  return cudaSuccess;
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t graph) {
  if (!runtime().runnable_graphs.remove(graph)) return misuse("cudaGraphExecDestroy", "no graph");
  delete reinterpret_cast<Graph*>(graph);
  return cudaSuccess;
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t graph, cudaStream_t stream) {
  if (!runtime().runnable_graphs.has(graph)) return misuse("cudaGraphLaunch", "no graph");
  ++runtime().graph_launches;
  return queue("cudaGraphLaunch", stream, [work = reinterpret_cast<Graph*>(graph)->work] {
    for (const Work& w : work) w();
  });
}

}  // extern "C"
