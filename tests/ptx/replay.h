// Reads that race with a write, and whether that matters. Kernels let threads that have nothing to do read some element
// beside the others, and drop what they read; another thread may be writing that element. Such a read has no value that
// is known, so the launch is run again with other values in its place: what the kernel leaves must be the same.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include "absl/status/status.h"
#include "tests/ptx/memory.h"

namespace partita::ptx {

class Replay {
 public:
  // Reads of `bytes` at an address race with a write: those before it, by other threads, that its warp has not seen;
  // or, with the write before it, one read alone. `block`: of shared memory; of global memory any.
  static constexpr uint32_t kAnyBlock = ~uint32_t{0};
  void suspect_before(uint64_t address, int bytes, uint32_t block, const Moment& writer, const WarpClock& of_writer,
                      const absl::Status& what);
  void suspect(uint64_t address, int bytes, uint32_t block, const Moment& reader, const absl::Status& what);
  // Of a read while the launch is run again: is it one of those?
  bool is_suspect(uint64_t address, int bytes, const Moment& me, const WarpClock& clock, bool shared) const;
  bool has_suspects() const { return !suspects_.empty(); }
  const absl::Status& first() const { return first_; }  // what to say of it

  // What global memory held where the launch is about to write.
  void remember(const void* at, int bytes);
  // The bytes that the launch has left, in the order of their addresses.
  using Bytes = std::vector<std::pair<uint64_t, std::byte>>;
  Bytes written() const;
  void undo();

 private:
  struct Suspect {
    uint32_t block;
    Moment moment;
    bool is_write;
    WarpClock clock;  // of a write
  };
  void add(uint64_t address, int bytes, const Suspect& s, const absl::Status& what);
  struct Old {
    void* at;
    int bytes;
    std::array<std::byte, 16> held;
  };
  std::unordered_map<uint64_t, std::vector<Suspect>> suspects_;  // by the address of a byte
  absl::Status first_;
  std::vector<Old> old_;
};

}  // namespace partita::ptx
