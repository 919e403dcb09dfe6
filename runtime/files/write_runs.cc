// Runs are sorted by their place, and joined to extents without holes:
//
//   runs     [0, 300) [300, 9000000)      [9500000, 9500100)
//   extents  [0, 9000000)                 [9500000, 9500100)
//   blocks   [0, 4M) [4M, 8M) [8M, 9000000)   and the small one
//
// A block's whole pages are written past the cache: from where they lie, as far as that is aligned as they are in the
// file, else gathered in aligned memory. What is left at its ends, less than a page, goes through the cache. The kernel
// keeps both views of a file in step page by page, and no page is written in both ways.
#include "runtime/files/write_runs.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>

#include "runtime/files/in_parallel.h"

namespace partita::runtime {
namespace {

constexpr int64_t kPage = kWrittenPage, kBlock = 4 << 20;
constexpr int64_t kWorthDirect = 256 << 10;  // below, a write of its own costs more than the cache

int64_t round_up(int64_t n) { return (n + kPage - 1) / kPage * kPage; }

struct Block {
  size_t run = 0;  // the first with bytes of the block
  int64_t begin = 0, end = 0;
};

struct FreeMemory {
  void operator()(std::byte* memory) const { std::free(memory); }
};
using AlignedMemory = std::unique_ptr<std::byte, FreeMemory>;

class RunWriter {
 public:
  RunWriter(const AtomicFile& file, std::vector<FileRun> runs) : file_(file), runs_(std::move(runs)) {
    std::erase_if(runs_, [](const FileRun& r) { return r.bytes.empty(); });
    std::sort(runs_.begin(), runs_.end(), [](const FileRun& a, const FileRun& b) { return a.offset < b.offset; });
    int64_t longest = 0;
    for (size_t k = 0; k < runs_.size();) {
      const size_t first = k;
      for (++k; k < runs_.size() && runs_[k].offset == end_of(k - 1);) ++k;
      cut(first, k);
      longest = std::max(longest, end_of(k - 1) - runs_[first].offset);
    }
    if (longest >= kWorthDirect) direct_ = file_.open_direct();
  }
  ~RunWriter() {
    if (direct_ >= 0) ::close(direct_);
  }
  RunWriter(const RunWriter&) = delete;
  RunWriter& operator=(const RunWriter&) = delete;

  absl::Status write(int threads, const std::function<void()>& got_on) {
    in_parallel(threads, blocks_.size(), [&](size_t k) {
      if (failed_) return;
      AlignedMemory memory = take_memory();
      absl::Status status = write_block(blocks_[k], memory);
      if (got_on && status.ok()) got_on();
      std::lock_guard lock(mutex_);
      memories_.push_back(std::move(memory));
      failed_ = failed_ || !status.ok();
      status_.Update(std::move(status));
    });
    return status_;
  }

 private:
  int64_t end_of(size_t run) const { return runs_[run].offset + static_cast<int64_t>(runs_[run].bytes.size()); }

  // The extent of runs [first, last) into blocks.
  void cut(size_t first, size_t last) {
    size_t run = first;
    const int64_t end = end_of(last - 1);
    for (int64_t at = runs_[first].offset; at < end;) {
      const int64_t stop = std::min(end, (at / kBlock + 1) * kBlock);
      while (end_of(run) <= at) ++run;
      blocks_.push_back({run, at, stop});
      at = stop;
    }
  }

  // What another block has done with; null: there is none.
  AlignedMemory take_memory() {
    std::lock_guard lock(mutex_);
    if (memories_.empty()) return nullptr;
    AlignedMemory memory = std::move(memories_.back());
    memories_.pop_back();
    return memory;
  }

  absl::Status write_block(const Block& block, AlignedMemory& memory) {
    const int64_t begin = round_up(block.begin), end = block.end / kPage * kPage;
    if (direct_ < 0 || end - begin < kWorthDirect) return write_cached(block, block.begin, block.end);
    int64_t at = begin;
    absl::Status status = write_cached(block, block.begin, begin);
    for (size_t k = block.run; status.ok() && k < runs_.size() && runs_[k].offset < end; ++k) {
      const int64_t from = std::max(begin, round_up(runs_[k].offset)), to = std::min(end, end_of(k) / kPage * kPage);
      const std::byte* bytes = runs_[k].bytes.data() + (from - runs_[k].offset);
      if (to - from < kWorthDirect || reinterpret_cast<uintptr_t>(bytes) % kPage != 0) continue;
      status = write_gathered(block, at, from, memory);
      if (status.ok()) status = write_direct(block, bytes, from, to);
      at = to;
    }
    if (status.ok()) status = write_gathered(block, at, end, memory);
    return status.ok() ? write_cached(block, end, block.end) : status;
  }

  // Whole pages, out of memory that is aligned as they are.
  absl::Status write_direct(const Block& block, const std::byte* bytes, int64_t begin, int64_t end) {
    int64_t done = 0;
    while (done < end - begin) {
      const ssize_t n = ::pwrite(direct_, bytes + done, static_cast<size_t>(end - begin - done), begin + done);
      if (n < 0 && errno == EINTR) continue;
      // Whatever is the matter with it (no such writes after all, a disk that is full), the other way tells.
      if (n <= 0 || n % kPage != 0) break;
      done += n;
    }
    return write_cached(block, begin + done, end);
  }

  // Whole pages, wherever their bytes lie.
  absl::Status write_gathered(const Block& block, int64_t begin, int64_t end, AlignedMemory& memory) {
    if (end - begin < kWorthDirect) return write_cached(block, begin, end);
    if (memory == nullptr) memory.reset(static_cast<std::byte*>(std::aligned_alloc(kPage, kBlock)));
    if (memory == nullptr) return write_cached(block, begin, end);
    each_part(block, begin, end, [&](int64_t at, std::span<const std::byte> bytes) {
      std::memcpy(memory.get() + (at - begin), bytes.data(), bytes.size());
      return absl::OkStatus();
    }).IgnoreError();
    return write_direct(block, memory.get(), begin, end);
  }

  absl::Status write_cached(const Block& block, int64_t begin, int64_t end) {
    return each_part(block, begin, end,
                     [&](int64_t at, std::span<const std::byte> bytes) { return file_.write_at(at, bytes); });
  }

  // Of each run in the block its bytes within [begin, end).
  template <typename Visit>
  absl::Status each_part(const Block& block, int64_t begin, int64_t end, const Visit& visit) const {
    for (size_t k = block.run; k < runs_.size() && runs_[k].offset < end; ++k) {
      const int64_t from = std::max(begin, runs_[k].offset), to = std::min(end, end_of(k));
      if (from >= to) continue;
      const absl::Status status = visit(
          from, runs_[k].bytes.subspan(static_cast<size_t>(from - runs_[k].offset), static_cast<size_t>(to - from)));
      if (!status.ok()) return status;
    }
    return absl::OkStatus();
  }

  const AtomicFile& file_;
  std::vector<FileRun> runs_;
  std::vector<Block> blocks_;
  int direct_ = -1;
  std::atomic<bool> failed_ = false;
  std::mutex mutex_;
  std::vector<AlignedMemory> memories_;
  absl::Status status_;
};

}  // namespace

absl::Status write_runs(const AtomicFile& file, std::vector<FileRun> runs, int threads,
                        const std::function<void()>& got_on) {
  return RunWriter(file, std::move(runs)).write(threads, got_on);
}

}  // namespace partita::runtime
