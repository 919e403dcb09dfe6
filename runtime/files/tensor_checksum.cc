#include "runtime/files/tensor_checksum.h"

#include <cstring>

#include "base/box.h"
#include "base/mix64.h"
#include "base/status.h"

namespace partita::runtime {
namespace {

template <typename T>
uint64_t run_checksum(const std::byte* data, int64_t first, int64_t count) {
  uint64_t sum = 0;
  for (int64_t k = 0; k < count; ++k) {
    T value;
    std::memcpy(&value, data + k * static_cast<int64_t>(sizeof value), sizeof value);
    // An odd multiple of the position keeps the argument a bijection of the value.
    sum += mix64(static_cast<uint64_t>(value) + static_cast<uint64_t>(first + k + 1) * 0x9E3779B97F4A7C15);
  }
  return sum;
}

}  // namespace

uint64_t box_checksum(std::span<const int64_t> shape, std::span<const int64_t> offset, std::span<const int64_t> extent,
                      int64_t element_bytes, std::span<const std::byte> data) {
  uint64_t sum = 0;
  const absl::Status walked = for_each_run(shape, offset, extent, [&](int64_t at, int64_t packed, int64_t count) {
    const std::byte* run = data.data() + packed * element_bytes;
    sum += element_bytes == 8   ? run_checksum<uint64_t>(run, at, count)
           : element_bytes == 4 ? run_checksum<uint32_t>(run, at, count)
           : element_bytes == 2 ? run_checksum<uint16_t>(run, at, count)
                                : run_checksum<uint8_t>(run, at, count);
    return absl::OkStatus();
  });
  PARTITA_CHECK(walked.ok(), "runs of a box inside its tensor");
  return sum;
}

}  // namespace partita::runtime
