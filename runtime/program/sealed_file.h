// A file whose bytes are known beforehand, by the SHA-256 of its chunks: who reads a part of it checks that part.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/checksum.h"
#include "base/mapped_file.h"

namespace partita::runtime {

struct FileSeal {
  int64_t bytes = 0;
  int64_t chunk_bytes = 1;     // the last chunk may be shorter; an empty file is one empty chunk
  std::vector<Sha256> chunks;  // their hashes
};

// Opened and mapped once; what was checked is what is read, loaded and executed. A process that writes into the file
// while it is mapped is not seen.
class SealedFile {
 public:
  // DataLoss where its size is another than the seal's; MappedFile's errors.
  static absl::StatusOr<std::shared_ptr<const SealedFile>> open(const std::string& path, FileSeal seal);
  ~SealedFile();
  SealedFile(const SealedFile&) = delete;
  SealedFile& operator=(const SealedFile&) = delete;

  const std::string& path() const { return file_.path(); }
  // Of the bytes, those that a check() held for.
  std::span<const std::byte> bytes() const { return file_.bytes(); }
  // Open for reading as long as this object.
  int descriptor() const { return descriptor_; }

  size_t chunks() const { return seal_.chunks.size(); }
  int64_t chunk_bytes() const { return seal_.chunk_bytes; }
  // Those that [begin, end) touches are [first, last).
  std::pair<size_t, size_t> chunks_of(int64_t begin, int64_t end) const;
  // Each chunk is hashed once, by whoever asks first; others wait for it. Thread-safe. DataLoss names the file and the
  // bytes that are others.
  absl::Status check(int64_t begin, int64_t end) const;
  absl::Status check_chunk(size_t chunk) const;
  absl::Status check_all(int threads) const;

 private:
  enum State : uint8_t { kNew, kTaken, kGood, kBad };
  SealedFile(int descriptor, MappedFile file, FileSeal seal);

  const int descriptor_;
  const MappedFile file_;
  const FileSeal seal_;
  const std::unique_ptr<std::atomic<uint8_t>[]> states_;
};

// Hashes some chunks of files with threads of its own, ahead of who reads them. The destructor leaves what is not begun
// to those.
class CheckAhead {
 public:
  struct Chunk {
    const SealedFile* file = nullptr;
    size_t chunk = 0;
  };
  // The files outlive it.
  CheckAhead(std::vector<Chunk> chunks, int threads);
  ~CheckAhead();
  CheckAhead(const CheckAhead&) = delete;
  CheckAhead& operator=(const CheckAhead&) = delete;

  // When all are checked: the error of the first of them, in the order given.
  absl::Status wait();

 private:
  const std::vector<Chunk> chunks_;
  std::atomic<size_t> next_ = 0;
  std::vector<std::thread> team_;
};

}  // namespace partita::runtime
