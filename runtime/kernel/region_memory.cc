#include "runtime/kernel/region_memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/cat.h"

namespace partita::runtime {

absl::StatusOr<RegionMemory> RegionMemory::allocate(int64_t bytes) {
  RegionMemory memory;
  if (bytes == 0) return memory;
  const int64_t present = static_cast<int64_t>(::sysconf(_SC_PHYS_PAGES)) * ::sysconf(_SC_PAGESIZE);
  if (bytes > present)
    return absl::ResourceExhaustedError(
        cat("this rank needs ", bytes, " bytes in one region; the machine has ", present, " bytes of memory"));
  void* data = ::mmap(nullptr, static_cast<size_t>(bytes), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (data == MAP_FAILED)
    return absl::ResourceExhaustedError(cat("cannot allocate ", bytes, " bytes: ", std::strerror(errno)));
  ::madvise(data, static_cast<size_t>(bytes), MADV_HUGEPAGE);  // only a hint: a system without huge pages refuses it
  memory.data_ = static_cast<std::byte*>(data);
  memory.bytes_ = bytes;
  return memory;
}

absl::StatusOr<RegionMemory> RegionMemory::reserve(int64_t bytes) {
  RegionMemory memory;
  if (bytes == 0) return memory;
  void* data = ::mmap(nullptr, static_cast<size_t>(bytes), PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (data == MAP_FAILED)
    return absl::ResourceExhaustedError(cat("cannot reserve ", bytes, " bytes: ", std::strerror(errno)));
  memory.data_ = static_cast<std::byte*>(data);
  memory.bytes_ = bytes;
  return memory;
}

RegionMemory::~RegionMemory() {
  if (data_ != nullptr) ::munmap(data_, static_cast<size_t>(bytes_));
}

}  // namespace partita::runtime
