// MessagePack (https://msgpack.org) of a fixed schema: positional arrays, read back field by field, so that the reader
// never nests deeper than the schema and never allocates more than the bytes present can fill.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "absl/status/status.h"

namespace partita::runtime {

class PackWriter {
 public:
  void integer(int64_t value);
  void real(double value);
  void text(std::string_view value);
  void array(size_t size);
  std::string take() { return std::move(out_); }

 private:
  void big_endian(uint64_t value, int bytes);
  std::string out_;
};

// After the first error every read gives zero or "" and status() says where it was.
class PackReader {
 public:
  explicit PackReader(std::span<const std::byte> bytes) : bytes_(bytes) {}

  int64_t integer();
  double real();
  std::string text();
  // Elements that follow; never more than the bytes that are left.
  size_t array();
  bool next_is_integer() const;
  bool next_is_real() const;
  bool next_is_text() const;

  void fail(std::string_view what);
  bool ok() const { return status_.ok(); }
  const absl::Status& status() const { return status_; }
  bool at_end() const { return at_ == bytes_.size(); }

 private:
  uint8_t peek() const { return at_ < bytes_.size() ? static_cast<uint8_t>(bytes_[at_]) : 0xC1; }  // 0xC1 is never used
  uint64_t big_endian(int bytes);
  size_t left() const { return bytes_.size() - at_; }

  std::span<const std::byte> bytes_;
  size_t at_ = 0;
  absl::Status status_;
};

}  // namespace partita::runtime
