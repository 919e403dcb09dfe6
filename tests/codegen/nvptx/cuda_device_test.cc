// The CUDA module's device by itself, on a CUDA runtime that is this machine.
#ifdef PARTITA_STAND_INS
#include <gtest/gtest.h>

#include <cstring>
#include <future>

#include "runtime/cuda/cuda_device.h"
#include "runtime/device/gpu_monitor.h"
#include "tests/stand_ins/cuda/kernels.h"

namespace partita {
namespace {

using runtime::CudaDevice;
using Bytes = std::vector<std::byte>;

std::unique_ptr<CudaDevice> opened() {
  static runtime::Program program;
  program.target = "cuda:sm_90";
  auto device = CudaDevice::open(program, 0);
  EXPECT_TRUE(device.ok()) << device.status();
  return device.ok() ? *std::move(device) : nullptr;
}

Bytes filled(size_t bytes, int value) { return Bytes(bytes, static_cast<std::byte>(value)); }

// What is queued on the device's stream waits for it.
class Gate {
 public:
  explicit Gate(CudaDevice& device) {
    EXPECT_EQ(stand_in::queue_work(device.stream(), [wait = opens_.get_future().share()] { wait.wait(); }),
              cudaSuccess);
  }
  void open() { opens_.set_value(); }

 private:
  std::promise<void> opens_;
};

TEST(CudaDevice_Write, ReturnsBeforeItIsDoneAndKeepsWhatItWasGiven) {
  auto device = opened();
  constexpr size_t kBytes = 1000;
  auto memory = device->allocate(8 * kBytes);
  ASSERT_TRUE(memory.ok()) << memory.status();
  Gate gate(*device);
  Bytes all;
  for (int k = 0; k < 4; ++k) {  // a write that waited for the device would wait for ever
    Bytes part = filled(kBytes, k);
    all.insert(all.end(), part.begin(), part.end());
    ASSERT_TRUE(device->write(*memory + static_cast<size_t>(k) * kBytes, part).ok());
    std::fill(part.begin(), part.end(), std::byte{0x77});
  }
  gate.open();
  Bytes found(all.size());
  ASSERT_TRUE(device->read(found, *memory).ok());
  EXPECT_EQ(found, all);
}

TEST(CudaDevice_LargeWrite, ArrivesWhole) {
  auto device = opened();
  Bytes sent(size_t{25} << 20), found(sent.size());
  for (size_t k = 0; k < sent.size(); ++k) sent[k] = static_cast<std::byte>(k * 2654435761u >> 13);
  auto memory = device->allocate(static_cast<int64_t>(sent.size()));
  ASSERT_TRUE(memory.ok()) << memory.status();
  ASSERT_TRUE(device->write(*memory, sent).ok());
  ASSERT_TRUE(device->read(found, *memory).ok());
  EXPECT_TRUE(found == sent);
}

// A copy up needs no copy down to be done, and the other way round; each is waited for by itself.
TEST(CudaDevice_CopiesOfBothDirections, TravelSideBySide) {
  auto device = opened();
  auto memory = device->allocate(256), host = device->allocate_on_host(256);
  ASSERT_TRUE(memory.ok() && host.ok());
  ASSERT_TRUE(device->write(*memory, filled(256, 3)).ok());
  std::memset(*host + 128, 5, 128);
  ASSERT_TRUE(device->copy(*host, *memory, 128).ok());
  auto down = device->mark();
  ASSERT_TRUE(device->copy(*memory + 128, *host + 128, 128).ok());
  auto up = device->mark();
  ASSERT_TRUE(down.ok() && up.ok());
  EXPECT_LT(*down, *up);
  ASSERT_TRUE(device->wait_for(*down).ok());
  EXPECT_EQ(Bytes(*host, *host + 128), filled(128, 3));
  ASSERT_TRUE(device->wait_for(*up).ok());
  Bytes found(128);
  ASSERT_TRUE(device->read(found, *memory + 128).ok());
  EXPECT_EQ(found, filled(128, 5));
}

// What the GPU does not tell is left out.
TEST(CudaDevice_Readings, AreMetrics) {
  const std::vector<std::pair<std::string, double>> expected = {
      {"gpu_allocated_bytes", 1000}, {"gpu_scratch_bytes", 4096}, {"gpu_used_bytes", double{2u << 30}},
      {"gpu_sm_mhz", 1410},          {"gpu_memory_mhz", 2619},    {"gpu_celsius", 35}};
  auto device = opened();
  ASSERT_TRUE(device->allocate(1000).ok());
  device->reserve_scratch(4096);
  ASSERT_TRUE(device->allocate_scratch().ok());
  EXPECT_EQ(device->readings(), expected);
  auto monitor = runtime::GpuMonitor::open();
  ASSERT_TRUE(monitor.ok()) << monitor.status();
  auto reading = (*monitor)->read(0);
  ASSERT_TRUE(reading.ok()) << reading.status();
  EXPECT_EQ(reading->text(), "this machine: 2.1 of 8.6 GB used, SM at 1410 of 1980 MHz, memory at 2619 MHz, 35 C");
  EXPECT_EQ((*monitor)->read(1).status().message(), "NVML: GPU by number: Invalid Argument");
  constexpr char kOther[16] = {};
  EXPECT_EQ((*monitor)->read(kOther).status().message(), "NVML: GPU by UUID: Not Found");
}

// Memory that a copy down still reads is written by a copy up, over and over, and by the main stream.
TEST(CudaDevice_CopiesOfTheSameMemory, KeepTheirOrder) {
  auto device = opened();
  constexpr int64_t kBytes = 1 << 16;
  auto memory = device->allocate(kBytes), host = device->allocate_on_host(kBytes * 40);
  ASSERT_TRUE(memory.ok() && host.ok());
  for (int k = 0; k < 20; ++k) std::memset(*host + k * kBytes, k + 1, kBytes);
  for (int k = 0; k < 20; ++k) {
    ASSERT_TRUE(device->copy(*memory, *host + k * kBytes, kBytes).ok());
    if (k % 5 == 4) {
      ASSERT_TRUE(device->write(*memory, filled(kBytes, 100 + k)).ok());
    }
    ASSERT_TRUE(device->copy(*host + (20 + k) * kBytes, *memory, kBytes).ok());
  }
  ASSERT_TRUE(device->synchronize().ok());
  for (int k = 0; k < 20; ++k) {
    const std::byte* at = *host + (20 + k) * kBytes;
    EXPECT_EQ(Bytes(at, at + kBytes), filled(kBytes, k % 5 == 4 ? 100 + k : k + 1)) << k;
  }
}

}  // namespace
}  // namespace partita
#endif
