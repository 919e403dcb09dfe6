// A file that appears whole or not at all: written beside its final path in the same folder, then renamed over it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace partita {

// Whether commit() waits for the disk (fsync of file and folder). kNo is for files that are rewritten all the time.
enum class Durable { kYes, kNo };

class AtomicFile {
 public:
  // Opens a new temporary "<folder>/.<name>.<token>.partial". An empty token is replaced by one unique to this process
  // and call; a given one must be the same in every process that will join() the file, and a stale temporary of that
  // name is replaced. Errors: NotFound (folder missing), InvalidArgument (no permission, path is a folder or device).
  static absl::StatusOr<AtomicFile> create(const std::string& path, const std::string& token = "");
  // Opens the temporary that another process created with the same path and token, to write into it. A joined file is
  // never renamed or unlinked from here; commit() only flushes it.
  static absl::StatusOr<AtomicFile> join(const std::string& path, const std::string& token);

  AtomicFile(AtomicFile&& other) noexcept;
  AtomicFile& operator=(AtomicFile&& other) noexcept;
  // Unlinks the temporary unless committed.
  ~AtomicFile();

  // Claims disk space for `bytes`, so that a full disk is found before the work: ResourceExhausted names file and
  // bytes.
  absl::Status reserve(int64_t bytes);
  // Writes after everything appended so far. Not thread-safe.
  absl::Status append(std::span<const std::byte> bytes);
  absl::Status append(std::string_view text);
  // Writes at an absolute offset; thread-safe for ranges that do not overlap, and independent of append().
  absl::Status write_at(int64_t offset, std::span<const std::byte> bytes) const;
  // Waits until what has been written so far is on the disk.
  absl::Status flush() const;
  // The same file opened once more, for writes that go past the page cache (O_DIRECT: offset, length and memory are
  // multiples of the page size); the caller closes it. -1 where the file system has no such writes.
  int open_direct() const;
  // Flushes, renames and closes. After an error the temporary is gone and the old file untouched. Call once.
  absl::Status commit(Durable durable = Durable::kYes);

  const std::string& path() const { return path_; }

 private:
  AtomicFile(std::string path, std::string temporary, int fd, bool owner);
  void discard();

  std::string path_, temporary_;
  int fd_ = -1;
  bool owner_ = false;
  int64_t appended_ = 0;
};

absl::Status write_file_atomically(const std::string& path, std::string_view content, Durable durable = Durable::kYes);

}  // namespace partita
