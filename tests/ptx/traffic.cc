#include "tests/ptx/traffic.h"

#include <algorithm>

namespace partita::ptx {

uint64_t sectors(const std::array<uint64_t, kLanes>& addresses, uint32_t lanes) {
  std::array<uint64_t, kLanes> touched;  // an aligned access of 16 bytes at most lies in one
  size_t count = 0;
  for (size_t l = 0; l < kLanes; ++l) {
    if ((lanes >> l & 1) == 0) continue;
    const uint64_t sector = addresses[l] / 32;
    if (count == 0 || touched[count - 1] != sector) touched[count++] = sector;
  }
  std::sort(touched.begin(), touched.begin() + static_cast<std::ptrdiff_t>(count));
  return static_cast<uint64_t>(std::unique(touched.begin(), touched.begin() + static_cast<std::ptrdiff_t>(count)) -
                               touched.begin());
}

void count_global(Running& running, uint32_t block, const std::array<uint64_t, kLanes>& addresses, uint32_t lanes,
                  int bytes, bool reads) {
  (reads ? running.counters.sectors_read : running.counters.sectors_written) += sectors(addresses, lanes);
  if (running.options.observer != nullptr) running.options.observer->access(block, addresses, lanes, bytes, reads);
}

void count_passes(Counters& counters, const std::array<uint64_t, kLanes>& addresses, uint32_t lanes, int bytes) {
  const size_t words = static_cast<size_t>(std::max(1, bytes / 4)), together = kLanes / words;
  for (size_t first = 0; first < kLanes; first += together) {
    std::array<std::array<uint64_t, kLanes>, 32> of_bank;
    std::array<size_t, 32> count{};
    size_t most = 0;
    for (size_t l = first; l < first + together; ++l) {
      if ((lanes >> l & 1) == 0) continue;
      for (size_t k = 0; k < words; ++k) {
        const uint64_t word = addresses[l] / 4 + k;
        auto& bank = of_bank[word % 32];
        size_t& n = count[word % 32];
        if (std::find(bank.begin(), bank.begin() + static_cast<std::ptrdiff_t>(n), word) ==
            bank.begin() + static_cast<std::ptrdiff_t>(n))
          bank[n++] = word;
        most = std::max(most, n);
      }
    }
    if (most == 0) continue;
    counters.shared_passes += most;
    counters.bank_conflicts += most - 1;
  }
}

}  // namespace partita::ptx
