#include "tests/stand_ins/cuda/memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <string>

namespace partita::stand_in {

Memory& Memory::instance() {
  static auto* memory = new Memory;  // until the process ends: streams may still run then
  return *memory;
}

void* Memory::allocate_lazily(size_t bytes, Place place) {
  void* begin =
      ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, /*fd=*/-1, 0);
  if (begin == MAP_FAILED) return nullptr;
  std::lock_guard lock(mutex_);
  blocks_[static_cast<std::byte*>(begin)] = {bytes, place, -1};
  return begin;
}

void* Memory::allocate(size_t bytes, Place place) {
  if (lazy_) return allocate_lazily(bytes, place);
  const int file = ::memfd_create("stand-in", MFD_CLOEXEC);
  if (file < 0 || ::ftruncate(file, static_cast<off_t>(bytes)) != 0) return nullptr;
  void* begin = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  if (begin == MAP_FAILED) {
    ::close(file);
    return nullptr;
  }
  std::memset(begin, 0xff, bytes);
  std::lock_guard lock(mutex_);
  blocks_[static_cast<std::byte*>(begin)] = {bytes, place, file};
  return begin;
}

bool Memory::release(void* begin) {
  std::lock_guard lock(mutex_);
  auto at = blocks_.find(static_cast<std::byte*>(begin));
  if (at == blocks_.end()) return false;
  ::munmap(begin, at->second.bytes);
  if (at->second.file >= 0) ::close(at->second.file);
  blocks_.erase(at);
  return true;
}

Place Memory::place_of(const void* begin, size_t bytes) const {
  std::lock_guard lock(mutex_);
  const auto* first = static_cast<const std::byte*>(begin);
  auto after = blocks_.upper_bound(first);
  if (after == blocks_.begin()) return Place::kUnknown;
  const auto& [base, block] = *--after;
  return first + bytes <= base + block.bytes ? block.place : Place::kUnknown;
}

std::optional<MemoryName> Memory::name_of(const void* begin) const {
  std::lock_guard lock(mutex_);
  auto at = blocks_.find(static_cast<const std::byte*>(begin));
  if (at == blocks_.end() || at->second.file < 0 || at->second.place != Place::kDevice) return std::nullopt;
  return MemoryName{::getpid(), at->second.file, at->second.bytes};
}

void* Memory::open(const MemoryName& name) {
  const std::string path = "/proc/" + std::to_string(name.process) + "/fd/" + std::to_string(name.file);
  const int file = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (file < 0) return nullptr;
  void* begin = ::mmap(nullptr, name.bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  ::close(file);
  if (begin == MAP_FAILED) return nullptr;
  std::lock_guard lock(mutex_);
  blocks_[static_cast<std::byte*>(begin)] = {name.bytes, Place::kDevice, -1};
  return begin;
}

void Memory::know(void* begin, size_t bytes) {
  std::lock_guard lock(mutex_);
  blocks_[static_cast<std::byte*>(begin)] = {bytes, Place::kPinned, -1};
}

size_t Memory::used() const {
  std::lock_guard lock(mutex_);
  size_t bytes = 0;
  for (const auto& [begin, block] : blocks_)
    bytes += block.place == Place::kDevice && block.file >= 0 ? block.bytes : 0;
  return bytes;
}

std::vector<std::pair<const std::byte*, size_t>> Memory::blocks() const {
  std::lock_guard lock(mutex_);
  std::vector<std::pair<const std::byte*, size_t>> all;
  for (const auto& [begin, block] : blocks_) all.emplace_back(begin, block.bytes);
  return all;
}

}  // namespace partita::stand_in
