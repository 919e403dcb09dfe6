// One region's memory: zero-filled pages of its own, in huge pages where the system has them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

#include "absl/status/statusor.h"

namespace partita::runtime {

class RegionMemory {
 public:
  // Aligned to 4096 bytes; an empty one has a null pointer. ResourceExhausted when the machine has less memory than
  // `bytes`.
  static absl::StatusOr<RegionMemory> allocate(int64_t bytes);

  // The same, of which only what is touched takes memory: the host's side of memory that lies elsewhere.
  static absl::StatusOr<RegionMemory> reserve(int64_t bytes);

  RegionMemory() = default;
  RegionMemory(RegionMemory&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
  RegionMemory& operator=(RegionMemory&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~RegionMemory();

  std::byte* data() const { return data_; }
  int64_t bytes() const { return bytes_; }

 private:
  std::byte* data_ = nullptr;
  int64_t bytes_ = 0;
};

}  // namespace partita::runtime
