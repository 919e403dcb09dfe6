// Checksums: XXH64 (fast, for detecting damage), SHA-256 (for naming and binding files), CRC-32C (record framing).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace partita {

// XXH64 of `bytes` (https://github.com/Cyan4973/xxHash/blob/dev/doc/xxhash_spec.md), several GB/s. Not for adversaries.
uint64_t checksum64(std::span<const std::byte> bytes, uint64_t seed = 0);

// CRC-32C (Castagnoli, reflected, as in iSCSI), continued from `crc` of the bytes before.
uint32_t crc32c(std::span<const std::byte> bytes, uint32_t crc = 0);

// SHA-256 (FIPS 180-4), by OpenSSL: some 2 GB/s on a core that has the instructions for it.
using Sha256 = std::array<uint8_t, 32>;
Sha256 sha256(std::span<const std::byte> bytes);
// 64 lower-case hex digits, and back: nothing where `digits` are others.
std::string to_hex(const Sha256& hash);
std::optional<Sha256> sha256_from_hex(std::string_view digits);
inline std::string sha256_hex(std::span<const std::byte> bytes) { return to_hex(sha256(bytes)); }

inline std::span<const std::byte> as_byte_span(std::string_view text) {
  return {reinterpret_cast<const std::byte*>(text.data()), text.size()};
}

inline std::string_view as_text(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

}  // namespace partita
