// Memory of the GPU that is this machine: shared between processes by handle, as cudaMalloc's is.
#pragma once

#include <atomic>
#include <cstddef>
#include <map>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

namespace partita::stand_in {

enum class Place { kUnknown, kDevice, kPinned };

// What names an allocation to other processes: its file, as the process that made it has it open.
struct MemoryName {
  long process = 0;
  int file = -1;
  size_t bytes = 0;
};

class Memory {
 public:
  static Memory& instance();

  // Null where there is none left. Not zeroed: filled with a pattern that is a NaN for every type.
  void* allocate(size_t bytes, Place place);
  // Memory that is allocated from now on is zero, of this process alone, and takes room once it is written.
  void be_lazy(bool lazy) { lazy_ = lazy; }
  bool release(void* begin);
  // Of whole ranges: a range that leaves its allocation is nowhere.
  Place place_of(const void* begin, size_t bytes) const;
  std::optional<MemoryName> name_of(const void* begin) const;
  void* open(const MemoryName& name);  // null: it is no more
  bool close(void* begin) { return release(begin); }
  // Memory of the host's own, page-locked from now on.
  void know(void* begin, size_t bytes);
  size_t used() const;
  // Begin and bytes of all there is.
  std::vector<std::pair<const std::byte*, size_t>> blocks() const;

 private:
  struct Block {
    size_t bytes = 0;
    Place place = Place::kDevice;
    int file = -1;  // -1: another process's
  };
  void* allocate_lazily(size_t bytes, Place place);
  mutable std::mutex mutex_;
  std::map<const std::byte*, Block> blocks_;
  std::atomic<bool> lazy_ = false;
};

}  // namespace partita::stand_in
