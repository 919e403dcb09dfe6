#include "base/checksum.h"

#define XXH_INLINE_ALL
#define XXH_NO_XXH3
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <xxhash.h>

#include <bit>
#include <cstring>

#include "base/status.h"

namespace partita {
namespace {

static_assert(std::endian::native == std::endian::little, "file formats here are little-endian");

template <typename T>
T load(const std::byte* at) {
  T value;
  std::memcpy(&value, at, sizeof value);
  return value;
}

// Slicing by eight: table[k][b] is the CRC of byte b followed by k zero bytes.
using CrcTables = std::array<std::array<uint32_t, 256>, 8>;
constexpr CrcTables make_crc_tables() {
  CrcTables tables{};
  for (uint32_t b = 0; b < 256; ++b) {
    uint32_t crc = b;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) ? 0x82F63B78u : 0u);
    tables[0][b] = crc;
  }
  for (uint32_t b = 0; b < 256; ++b) {
    for (size_t k = 1; k < 8; ++k) tables[k][b] = (tables[k - 1][b] >> 8) ^ tables[0][tables[k - 1][b] & 0xFF];
  }
  return tables;
}
constexpr CrcTables kCrc = make_crc_tables();

constexpr std::string_view kHexDigits = "0123456789abcdef";

// Fetched once, without the system's configuration of OpenSSL: no file of a host changes what is computed here.
const EVP_MD* sha256_method() {
  static const EVP_MD* const method = [] {
    OPENSSL_init_crypto(OPENSSL_INIT_NO_LOAD_CONFIG | OPENSSL_INIT_NO_ATEXIT, nullptr);
    return EVP_MD_fetch(nullptr, "SHA256", nullptr);
  }();
  return method;
}

}  // namespace

uint64_t checksum64(std::span<const std::byte> bytes, uint64_t seed) { return XXH64(bytes.data(), bytes.size(), seed); }

uint32_t crc32c(std::span<const std::byte> bytes, uint32_t crc) {
  const std::byte* at = bytes.data();
  size_t left = bytes.size();
  crc = ~crc;
  for (; left >= 8; at += 8, left -= 8) {
    const uint64_t word = load<uint64_t>(at) ^ crc;
    crc = 0;
    for (size_t k = 0; k < 8; ++k) crc ^= kCrc[7 - k][(word >> (8 * k)) & 0xFF];
  }
  for (; left > 0; ++at, --left) crc = (crc >> 8) ^ kCrc[0][(crc ^ static_cast<uint8_t>(*at)) & 0xFF];
  return ~crc;
}

Sha256 sha256(std::span<const std::byte> bytes) {
  Sha256 hash;
  const bool done = EVP_Digest(bytes.data(), bytes.size(), hash.data(), nullptr, sha256_method(), nullptr) == 1;
  PARTITA_CHECK(done, "OpenSSL has no SHA-256");
  return hash;
}

std::string to_hex(const Sha256& hash) {
  std::string hex;
  for (uint8_t byte : hash) hex += {kHexDigits[byte >> 4], kHexDigits[byte & 15]};
  return hex;
}

std::optional<Sha256> sha256_from_hex(std::string_view digits) {
  Sha256 hash;
  if (digits.size() != 2 * hash.size()) return std::nullopt;
  for (size_t k = 0; k < hash.size(); ++k) {
    const size_t high = kHexDigits.find(digits[2 * k]), low = kHexDigits.find(digits[2 * k + 1]);
    if (high == kHexDigits.npos || low == kHexDigits.npos) return std::nullopt;
    hash[k] = static_cast<uint8_t>(high << 4 | low);
  }
  return hash;
}

}  // namespace partita
