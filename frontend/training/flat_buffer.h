// A reader of FlatBuffers (https://flatbuffers.dev/internals) that trusts nothing: every access is checked against the
// file's bounds. Offsets only lead forward, so no walk over tables can go in circles. Faults throw ImportError
// (InvalidArgument).
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>

#include "base/cat.h"
#include "frontend/import/emitter.h"

namespace partita {

class FlatBuffer {
 public:
  explicit FlatBuffer(std::span<const std::byte> bytes) : bytes_(bytes) {}

  template <typename T>
  T read(uint64_t at) const {
    if (at > bytes_.size() || bytes_.size() - at < sizeof(T)) fail();
    T value;
    std::memcpy(&value, bytes_.data() + at, sizeof value);
    return value;
  }
  // Where the forward offset at `at` leads.
  uint64_t follow(uint64_t at) const {
    uint32_t offset = read<uint32_t>(at);
    if (offset == 0 || offset > bytes_.size() - at) fail();
    return at + offset;
  }
  std::span<const std::byte> range(uint64_t at, uint64_t size) const {
    if (at > bytes_.size() || size > bytes_.size() - at) fail();
    return bytes_.subspan(at, size);
  }
  [[noreturn]] static void fail() {
    throw ImportError{absl::InvalidArgumentError("the checkpoint is damaged or cut short")};
  }

 private:
  std::span<const std::byte> bytes_;
};

// A vector of `size` elements that start at `at`.
struct FlatVector {
  uint64_t at = 0;
  uint32_t size = 0;
};

class FlatTable {
 public:
  FlatTable(const FlatBuffer& buffer, uint64_t at) : buffer_(&buffer), at_(at) {
    int64_t vtable = static_cast<int64_t>(at) - buffer.read<int32_t>(at);
    if (vtable < 0) FlatBuffer::fail();
    vtable_ = static_cast<uint64_t>(vtable);
    fields_ = buffer.read<uint16_t>(vtable_) / 2;  // slots of the vtable, its own two sizes included
    if (fields_ < 2) FlatBuffer::fail();
  }

  // 0 where the field is absent.
  uint64_t field(unsigned id) const {
    if (id + 2 >= fields_) return 0;
    uint16_t offset = buffer_->read<uint16_t>(vtable_ + 4 + 2 * uint64_t{id});
    return offset == 0 ? 0 : at_ + offset;
  }
  template <typename T>
  T scalar(unsigned id, T otherwise) const {
    uint64_t at = field(id);
    return at == 0 ? otherwise : buffer_->read<T>(at);
  }
  bool has(unsigned id) const { return field(id) != 0; }
  FlatTable table(unsigned id) const { return {*buffer_, buffer_->follow(field(id))}; }
  // Elements of `width` bytes, all inside the file.
  FlatVector vector(unsigned id, uint64_t width) const {
    uint64_t at = field(id);
    if (at == 0) return {};
    at = buffer_->follow(at);
    FlatVector v{at + 4, buffer_->read<uint32_t>(at)};
    buffer_->range(v.at, uint64_t{v.size} * width);
    return v;
  }
  FlatTable element(const FlatVector& v, uint32_t k) const {
    return {*buffer_, buffer_->follow(v.at + 4 * uint64_t{k})};
  }
  std::string_view text(unsigned id) const {
    FlatVector v = vector(id, 1);
    return v.at == 0 ? std::string_view()
                     : std::string_view(reinterpret_cast<const char*>(buffer_->range(v.at, v.size).data()), v.size);
  }
  const FlatBuffer& buffer() const { return *buffer_; }

 private:
  const FlatBuffer* buffer_;
  uint64_t at_, vtable_ = 0;
  unsigned fields_ = 0;
};

}  // namespace partita
