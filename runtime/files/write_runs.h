// Many bytes into one file as fast as the disk takes them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "base/atomic_file.h"

namespace partita::runtime {

// Bytes are written from where they lie, if there are enough of them, where their place in memory and their place in
// the file are alike modulo this.
inline constexpr int64_t kWrittenPage = 4096;

// Bytes and their place in a file.
struct FileRun {
  int64_t offset = 0;
  std::span<const std::byte> bytes;
};

// Writes runs that do not overlap, in any order, with so many threads at once. What is contiguous in the file for long
// enough goes past the page cache in aligned blocks, where the file system can do that: memory is copied once less,
// nothing that training needs is evicted, and the flush at the end finds little to do. Other bytes of the file are left
// as they are. `got_on` (may be empty) is called after each block, by the thread that wrote it. The first error of a
// block, ResourceExhausted on a full disk.
absl::Status write_runs(const AtomicFile& file, std::vector<FileRun> runs, int threads,
                        const std::function<void()>& got_on = {});

}  // namespace partita::runtime
