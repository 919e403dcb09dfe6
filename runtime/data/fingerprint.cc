#include "runtime/data/fingerprint.h"

#include <vector>

#include "base/cat.h"
#include "base/checksum.h"

namespace partita::runtime {
namespace {

constexpr size_t kParts = 64, kPartBytes = 4096;  // a page each

}  // namespace

std::string fingerprint_of(std::span<const std::byte> bytes) {
  if (bytes.size() <= kParts * kPartBytes) return cat(bytes.size(), " bytes ", sha256_hex(bytes));
  std::vector<std::byte> parts;
  for (size_t k = 0; k < kParts; ++k) {
    const auto begin = bytes.begin() + static_cast<std::ptrdiff_t>((bytes.size() - kPartBytes) / (kParts - 1) * k);
    parts.insert(parts.end(), begin, begin + kPartBytes);
  }
  const auto last = bytes.last(kPartBytes);
  parts.insert(parts.end(), last.begin(), last.end());
  return cat(bytes.size(), " bytes ", sha256_hex(parts));
}

}  // namespace partita::runtime
