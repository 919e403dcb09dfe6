#include "base/message_pack.h"

#include <bit>

#include "base/cat.h"

namespace partita::runtime {

void PackWriter::big_endian(uint64_t value, int bytes) {
  for (int shift = 8 * (bytes - 1); shift >= 0; shift -= 8) out_.push_back(static_cast<char>(value >> shift));
}

void PackWriter::integer(int64_t value) {
  if (value >= -32 && value < 128) {
    out_.push_back(static_cast<char>(value));
  } else if (value == static_cast<int16_t>(value)) {
    out_.push_back(static_cast<char>(0xD1));
    big_endian(static_cast<uint64_t>(value), 2);
  } else if (value == static_cast<int32_t>(value)) {
    out_.push_back(static_cast<char>(0xD2));
    big_endian(static_cast<uint64_t>(value), 4);
  } else {
    out_.push_back(static_cast<char>(0xD3));
    big_endian(static_cast<uint64_t>(value), 8);
  }
}

void PackWriter::real(double value) {
  out_.push_back(static_cast<char>(0xCB));
  big_endian(std::bit_cast<uint64_t>(value), 8);
}

void PackWriter::text(std::string_view value) {
  if (value.size() < 32) {
    out_.push_back(static_cast<char>(0xA0 | value.size()));
  } else {
    out_.push_back(static_cast<char>(0xDB));
    big_endian(value.size(), 4);
  }
  out_.append(value);
}

void PackWriter::array(size_t size) {
  if (size < 16) {
    out_.push_back(static_cast<char>(0x90 | size));
  } else {
    out_.push_back(static_cast<char>(0xDD));
    big_endian(size, 4);
  }
}

void PackReader::fail(std::string_view what) {
  if (!status_.ok()) return;
  status_ = absl::DataLossError(cat("byte ", at_, ": ", what));
  at_ = bytes_.size();
}

uint64_t PackReader::big_endian(int bytes) {
  if (left() < static_cast<size_t>(bytes)) {
    fail("the body ends inside a value");
    return 0;
  }
  uint64_t value = 0;
  for (int i = 0; i < bytes; ++i) value = value << 8 | static_cast<uint8_t>(bytes_[at_++]);
  return value;
}

bool PackReader::next_is_integer() const {
  return peek() < 0x80 || peek() >= 0xE0 || (peek() >= 0xD1 && peek() <= 0xD3);
}
bool PackReader::next_is_real() const { return peek() == 0xCB; }
bool PackReader::next_is_text() const { return (peek() & 0xE0) == 0xA0 || peek() == 0xDB; }

int64_t PackReader::integer() {
  if (!next_is_integer()) {
    fail("expected an integer");
    return 0;
  }
  const uint8_t tag = static_cast<uint8_t>(big_endian(1));
  if (tag == 0xD1) return static_cast<int16_t>(big_endian(2));
  if (tag == 0xD2) return static_cast<int32_t>(big_endian(4));
  if (tag == 0xD3) return static_cast<int64_t>(big_endian(8));
  return static_cast<int8_t>(tag);
}

double PackReader::real() {
  if (!next_is_real()) {
    fail("expected a 64-bit float");
    return 0;
  }
  big_endian(1);
  return std::bit_cast<double>(big_endian(8));
}

std::string PackReader::text() {
  if (!next_is_text()) {
    fail("expected a string");
    return "";
  }
  const uint64_t tag = big_endian(1), size = tag == 0xDB ? big_endian(4) : tag & 0x1F;
  if (size > left()) {
    fail("a string is longer than the body");
    return "";
  }
  std::string value(reinterpret_cast<const char*>(bytes_.data() + at_), size);
  at_ += size;
  return value;
}

size_t PackReader::array() {
  if ((peek() & 0xF0) != 0x90 && peek() != 0xDD) {
    fail("expected an array");
    return 0;
  }
  const uint64_t tag = big_endian(1), size = tag == 0xDD ? big_endian(4) : tag & 0x0F;
  if (size > left()) {
    fail("an array is longer than the body");
    return 0;
  }
  return size;
}

}  // namespace partita::runtime
