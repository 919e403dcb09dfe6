// What an executor asks of a processor with memory of its own. One per rank, used from the rank's thread. Work is put
// on one queue in the order of the calls, so a step sees what earlier ones wrote; the host learns of it at
// synchronize(). Uploads travel beside it, and so do copies between the device and the host, as far as nobody can
// tell.
//
// Devices are modules loaded at run time (libpartita_cuda.so), so that nothing else needs their libraries.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "runtime/communicate/collective.h"
#include "runtime/kernel/kernel.h"
#include "runtime/launch/plugin.h"
#include "runtime/program/program.h"

namespace partita::runtime {

// Memory of a device that some work uses, as address ranges.
struct DeviceMemoryUse {
  struct Range {
    const std::byte *begin = nullptr, *end = nullptr;
    bool meets(const Range& o) const { return begin < o.end && o.begin < end; }
  };
  std::vector<Range> reads, writes;
};

class Device {
 public:
  virtual ~Device() = default;

  // "cuda:0 (NVIDIA H100 80GB HBM3)".
  virtual std::string name() const = 0;

  // Before anything else: kernels that have a choice of algorithms take the ones that `file` names, and time those that
  // it does not name yet and add them. DataLoss where it is damaged.
  virtual absl::Status tune(const std::string& file) = 0;

  // Zeroed memory of the device, aligned to 256 bytes, that lives as long as the device. ResourceExhausted says what is
  // needed and what is free.
  virtual absl::StatusOr<std::byte*> allocate(int64_t bytes) = 0;
  // The same of the host, for its steps and for copies on the queue.
  virtual absl::StatusOr<std::byte*> allocate_on_host(int64_t bytes) = 0;

  // Makes a kKernel or kLibrary step of `program`, which outlives the device, ready; its run() takes addresses on the
  // device, and returns before it has run. Errors as prepare_kernel's.
  virtual absl::StatusOr<std::unique_ptr<LibraryKernel>> prepare(const Program& program, const Step& step) = 0;
  // The same for kernel steps that are launched together (runtime/program/batched_launches.h), on `addresses`, those of
  // all their operands in turn; its run() takes none.
  virtual absl::StatusOr<std::unique_ptr<LibraryKernel>> prepare_batched(const Program& program,
                                                                         std::span<const Step* const> steps,
                                                                         std::span<std::byte* const> addresses) = 0;
  // Once all are prepared, before any runs: memory that they share. Bytes of it, and of what they have beside it.
  virtual absl::StatusOr<int64_t> allocate_scratch() = 0;

  // Queues what `issue` does: kernels that prepare() made, and copies of the device's own memory, the same work every
  // time for the same number. A device may keep it, and queue it as one the next time. Numbers are had from replays(),
  // which gives the first of `count` new ones.
  virtual size_t replays(size_t count) = 0;
  virtual absl::Status replay(size_t number, absl::FunctionRef<absl::Status()> issue) = 0;

  // Each on the device or in memory from allocate_on_host().
  virtual absl::Status copy(std::byte* to, const std::byte* from, int64_t bytes) = 0;
  // Queues what `issue` does, which uses this memory of the device and no other that a copy to or from the host does:
  // copies that touch none of it, or read what it reads, may go on beside it.
  virtual absl::Status beside_copies(const DeviceMemoryUse& use, absl::FunctionRef<absl::Status()> issue) = 0;
  virtual absl::Status write(std::byte* to, std::span<const std::byte> from) = 0;  // from the host, which may reuse it
  virtual absl::Status read(std::span<std::byte> to, const std::byte* from) = 0;   // waits for what came before

  // What comes next may go up beside the queue, into memory that is used for nothing else: one upload at a time, for
  // all who use the device. Makes room for parts of so many bytes each, if need be in place of what is there. False
  // where the device has too little memory: then nothing that large goes up so.
  virtual absl::StatusOr<bool> reserve_uploads(std::span<const int64_t> parts) = 0;
  // Parts from the host, which may reuse them, in place of the upload before, once copies of that have been passed in
  // the queue. They must have room. Its number, larger than those before.
  virtual absl::StatusOr<int64_t> upload(std::span<const std::span<const std::byte>> parts) = 0;
  // The number of what is there, 0 or more; that of no upload where there is nothing.
  virtual int64_t uploaded() const = 0;
  // Queues copies of the last upload's parts to these addresses on the device, behind the upload.
  virtual absl::Status copy_uploaded(std::span<std::byte* const> to) = 0;

  // A number for the queue as it is now, larger than those before; wait_for() waits for what was queued by then.
  virtual absl::StatusOr<int64_t> mark() = 0;
  virtual absl::Status wait_for(int64_t mark) = 0;
  // A point in the queue whose time is wanted. Once everything was waited for, take_stamps() tells when they were
  // passed: seconds since the first, in the order of the calls since it was called last.
  virtual absl::Status stamp() = 0;
  virtual absl::StatusOr<std::vector<double>> take_stamps() = 0;
  // What its sensors say now, as metrics ("gpu_sm_mhz"); empty where they cannot be read.
  virtual std::vector<std::pair<std::string, double>> readings() = 0;
  // What went wrong so far, without waiting.
  virtual absl::Status failure() const = 0;
  // Waits for everything, and reports what went wrong in it.
  virtual absl::Status synchronize() = 0;

  // Collectives on this device's memory among the ranks of `control`, which outlives them: operations are queued behind
  // what was queued before start(), and what is queued after wait() runs behind them.
  virtual absl::StatusOr<std::unique_ptr<Communicator>> communicator(Communicator& control) = 0;
};

// Opens device number `ordinal` (modulo their count) for a program whose target is no CPU. FailedPrecondition says what
// the program needs and what was found: driver, device, architecture, libraries.
absl::StatusOr<std::unique_ptr<Device>> open_device(const Program& program, int ordinal);
// The same with a module from elsewhere.
absl::StatusOr<std::unique_ptr<Device>> open_device_from(const PluginSource& plugins, const Program& program,
                                                         int ordinal);

// The file of the module for "cuda:" targets.
inline constexpr const char* kCudaModule = "libpartita_cuda.so";
// What a device's module exports, as `partita_open_device`. Null and a reason on failure.
inline constexpr int kDevicePluginVersion = 9;
inline constexpr const char* kDevicePluginSymbol = "partita_open_device";
using OpenDevicePlugin = Device*(int version, const Program* program, int ordinal, absl::Status* why);

}  // namespace partita::runtime
