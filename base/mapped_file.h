// A whole file mapped read-only into memory. The map stays valid when the path is renamed or unlinked; a file that
// another process truncates while it is mapped faults on access (SIGBUS), as with any memory map.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace partita {

class MappedFile {
 public:
  // Regular files only (a FIFO or device would block or have no size). Errors: NotFound, InvalidArgument (folder,
  // device, no permission), ResourceExhausted (no address space); each names the path.
  static absl::StatusOr<MappedFile> open(const std::string& path);
  // The file of a descriptor, which stays the caller's; `path` is for messages. The same errors.
  static absl::StatusOr<MappedFile> map(int descriptor, const std::string& path);

  MappedFile() = default;
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  ~MappedFile();

  const std::string& path() const { return path_; }
  int64_t size() const { return static_cast<int64_t>(size_); }
  std::span<const std::byte> bytes() const { return {data_, size_}; }
  std::string_view text() const { return {reinterpret_cast<const char*>(data_), size_}; }

  // A hint that pages will be touched in no order (shuffled samples): no read-ahead.
  void expect_random_access() const;
  // Pages of these bytes leave this process's memory, in which they count while they are mapped; they are read again,
  // mostly from the system's cache, when they are touched.
  static void let_go(std::span<const std::byte> bytes);

 private:
  std::string path_;
  const std::byte* data_ = nullptr;
  size_t size_ = 0;
};

// The status for a failed system call on `path`: "cannot open 'x': No such file or directory", with the code that
// decides the exit code (absent -> NotFound, disk full or no memory -> ResourceExhausted, else InvalidArgument).
absl::Status file_error(std::string_view action, std::string_view path, int error_number);

}  // namespace partita
