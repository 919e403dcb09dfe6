// The CUDA module's device by itself, on a CUDA runtime that is this machine.
#ifdef PARTITA_STAND_INS
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstring>
#include <future>
#include <thread>

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

// So many bytes take all of the pages that a write goes through: one that waited for the queue would wait for ever.
constexpr size_t kAllPieces = 8 << 20;

std::vector<std::span<const std::byte>> parts_of(const Bytes& bytes) {
  const std::span<const std::byte> all = bytes;
  return {all.first(1000), all.subspan(1000)};
}
bool has_room(CudaDevice& device, const Bytes& bytes) {
  std::vector<int64_t> sizes;
  for (auto part : parts_of(bytes)) sizes.push_back(static_cast<int64_t>(part.size()));
  auto room = device.reserve_uploads(sizes);
  EXPECT_TRUE(room.ok()) << room.status();
  return room.ok() && *room;
}

TEST(CudaDevice_Upload, TravelsBesideTheQueue) {
  auto device = opened();
  const Bytes first = filled(kAllPieces, 1), second = filled(kAllPieces, 2);
  ASSERT_TRUE(has_room(*device, first));
  auto memory = device->allocate(kAllPieces);
  ASSERT_TRUE(memory.ok()) << memory.status();
  Gate gate(*device);
  auto one = device->upload(parts_of(first)), two = device->upload(parts_of(second));
  ASSERT_TRUE(one.ok() && two.ok());
  EXPECT_LT(*one, *two);
  EXPECT_EQ(device->uploaded(), *two);
  gate.open();
  std::byte* const to[] = {*memory, *memory + 1000};
  ASSERT_TRUE(device->copy_uploaded(to).ok());
  Bytes found(kAllPieces);
  ASSERT_TRUE(device->read(found, *memory).ok());
  EXPECT_TRUE(found == second);
}

// Copies wait for the upload that they are of, and the next upload for them.
TEST(CudaDevice_Upload, WaitsForTheCopiesOfTheOneBefore) {
  constexpr size_t kBytes = 5000;
  stand_in::slow_down_copies(std::chrono::milliseconds(20));
  auto device = opened();
  ASSERT_TRUE(has_room(*device, Bytes(kBytes)));
  auto memory = device->allocate(3 * kBytes);
  ASSERT_TRUE(memory.ok()) << memory.status();
  Gate gate(*device);
  Bytes all;
  for (int k = 0; k < 3; ++k) {
    Bytes part = filled(kBytes, k + 1);
    ASSERT_TRUE(device->upload(parts_of(part)).ok());
    all.insert(all.end(), part.begin(), part.end());
    std::fill(part.begin(), part.end(), std::byte{0x77});
    std::byte* const at = *memory + static_cast<size_t>(k) * kBytes;
    std::byte* const to[] = {at, at + 1000};
    ASSERT_TRUE(device->copy_uploaded(to).ok());
    if (k == 1) std::this_thread::sleep_for(std::chrono::milliseconds(60));  // the second could be there by now
    if (k == 1) gate.open();
  }
  Bytes found(all.size());
  ASSERT_TRUE(device->read(found, *memory).ok());
  stand_in::slow_down_copies({});
  EXPECT_EQ(found, all);
}

// Memory for it grows, and what went up before is gone then; where there is little left, it stays as it is.
TEST(CudaDevice_Upload, HasTheRoomThatTheDeviceCanSpare) {
  auto device = opened();
  ASSERT_TRUE(has_room(*device, Bytes(5000)));
  ASSERT_TRUE(device->upload(parts_of(Bytes(5000))).ok());
  const int64_t number = device->uploaded();
  ASSERT_TRUE(has_room(*device, Bytes(4000)));
  EXPECT_EQ(device->uploaded(), number);
  ASSERT_TRUE(has_room(*device, Bytes(6000)));
  EXPECT_GT(device->uploaded(), number);
  EXPECT_THAT(device->readings(), testing::Contains(testing::Pair("gpu_upload_bytes", 1024 + 5120)));
  stand_in::limit_memory(size_t{256} << 20);
  EXPECT_FALSE(has_room(*device, Bytes(100'000)));
  EXPECT_TRUE(has_room(*device, Bytes(6000)));
  EXPECT_FALSE(has_room(*opened(), Bytes(5000)));
  stand_in::limit_memory();
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
