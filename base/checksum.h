// Checksums: XXH64 (fast, for detecting damage), SHA-256 (for naming and binding files), CRC-32C (record framing).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace partita {

// XXH64 of `bytes` (https://github.com/Cyan4973/xxHash/blob/dev/doc/xxhash_spec.md), several GB/s. Not for adversaries.
uint64_t checksum64(std::span<const std::byte> bytes, uint64_t seed = 0);

// CRC-32C (Castagnoli, reflected, as in iSCSI), continued from `crc` of the bytes before.
uint32_t crc32c(std::span<const std::byte> bytes, uint32_t crc = 0);

// SHA-256 (FIPS 180-4) of bytes given in pieces.
class Sha256 {
 public:
  Sha256();
  void update(std::span<const std::byte> bytes);
  // 64 lower-case hex digits. Call once, last.
  std::string finish_hex();

 private:
  void block(const uint8_t* data);
  std::array<uint32_t, 8> state_;
  std::array<uint8_t, 64> pending_{};
  size_t pending_size_ = 0;
  uint64_t total_ = 0;
};

std::string sha256_hex(std::span<const std::byte> bytes);

inline std::span<const std::byte> as_byte_span(std::string_view text) {
  return {reinterpret_cast<const std::byte*>(text.data()), text.size()};
}

}  // namespace partita
