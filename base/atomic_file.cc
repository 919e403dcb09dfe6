#include "base/atomic_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <random>
#include <system_error>
#include <utility>

#include "base/cat.h"
#include "base/checksum.h"
#include "base/mapped_file.h"
#include "base/quote.h"
#include "fmt/format.h"

namespace partita {
namespace {

std::string folder_of(const std::string& path) {
  const size_t slash = path.rfind('/');
  if (slash == std::string::npos) return ".";
  return slash == 0 ? "/" : path.substr(0, slash);
}

std::string temporary_name(const std::string& path, const std::string& token) {
  const size_t slash = path.rfind('/');
  const std::string folder = slash == std::string::npos ? "" : path.substr(0, slash + 1);
  const std::string name = slash == std::string::npos ? path : path.substr(slash + 1);
  // The name is cut so that a long final name still leaves a legal temporary (255 bytes).
  return cat(folder, ".", name.substr(0, 180), ".", token, ".partial");
}

absl::Status write_error(const std::string& path, int64_t bytes, int64_t offset, int error_number) {
  absl::Status status = file_error("write", path, error_number);
  return absl::Status(status.code(), cat(status.message(), " (", bytes, " bytes at offset ", offset, ")"));
}

absl::Status check_target(const std::string& path) {
  struct stat info;
  if (path.empty() || path.find('\0') != std::string::npos) {
    return absl::InvalidArgumentError(cat("cannot write ", quote(path), ": not a file name"));
  }
  const bool exists = ::stat(path.c_str(), &info) == 0;
  if (path.back() == '/' || (exists && S_ISDIR(info.st_mode))) {
    return absl::InvalidArgumentError(cat("cannot write ", quote(path, 1000), ": it is a folder"));
  }
  // Renaming over a device such as /dev/null would replace it for all programs.
  if (exists && !S_ISREG(info.st_mode)) {
    return absl::InvalidArgumentError(cat("cannot write ", quote(path, 1000), ": it is a device or pipe; name a file"));
  }
  return absl::OkStatus();
}

// Symbolic links at the target are followed, so that renaming replaces the file a user pointed at and not the pointer.
std::string resolved(const std::string& path) {
  char* real = ::realpath(path.c_str(), nullptr);
  if (real == nullptr) return path;
  std::string out = real;
  ::free(real);
  return out;
}

}  // namespace

AtomicFile::AtomicFile(std::string path, std::string temporary, int fd, bool owner)
    : path_(std::move(path)), temporary_(std::move(temporary)), fd_(fd), owner_(owner) {}

absl::StatusOr<AtomicFile> AtomicFile::create(const std::string& wanted, const std::string& token) {
  if (absl::Status status = check_target(wanted); !status.ok()) return status;
  const std::string path = resolved(wanted);
  std::random_device random;
  for (int attempt = 0; attempt < 16; ++attempt) {
    const std::string own = fmt::format("{:x}-{:08x}", ::getpid(), random());
    const std::string temporary = temporary_name(path, token.empty() ? own : token);
    if (!token.empty()) ::unlink(temporary.c_str());
    const int fd = ::open(temporary.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0666);
    if (fd >= 0) return AtomicFile(path, temporary, fd, true);
    if (errno != EEXIST) return file_error("create", path, errno);
  }
  return file_error("create", path, EEXIST);
}

absl::StatusOr<AtomicFile> AtomicFile::join(const std::string& wanted, const std::string& token) {
  if (absl::Status status = check_target(wanted); !status.ok()) return status;
  if (token.empty()) return absl::InvalidArgumentError(cat("cannot join ", quote(wanted), ": the token is empty"));
  const std::string path = resolved(wanted), temporary = temporary_name(path, token);
  const int fd = ::open(temporary.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW);
  if (fd < 0) return file_error("join the unfinished", temporary, errno);
  return AtomicFile(path, temporary, fd, false);
}

AtomicFile::AtomicFile(AtomicFile&& other) noexcept
    : path_(std::move(other.path_)),
      temporary_(std::move(other.temporary_)),
      fd_(std::exchange(other.fd_, -1)),
      owner_(std::exchange(other.owner_, false)),
      appended_(other.appended_) {}

AtomicFile& AtomicFile::operator=(AtomicFile&& other) noexcept {
  if (this != &other) {
    discard();
    path_ = std::move(other.path_);
    temporary_ = std::move(other.temporary_);
    fd_ = std::exchange(other.fd_, -1);
    owner_ = std::exchange(other.owner_, false);
    appended_ = other.appended_;
  }
  return *this;
}

AtomicFile::~AtomicFile() { discard(); }

void AtomicFile::discard() {
  if (fd_ < 0) return;
  ::close(std::exchange(fd_, -1));
  if (owner_) ::unlink(temporary_.c_str());
}

absl::Status AtomicFile::reserve(int64_t bytes) {
  if (bytes <= 0) return absl::OkStatus();
  // Not posix_fallocate(), which writes into every block where the file system cannot do it.
  int error = 0;
  do {
    error = ::fallocate(fd_, 0, 0, bytes) == 0 ? 0 : errno;
  } while (error == EINTR);
  // File systems without preallocation still take a sparse file; a full disk then shows at the write.
  if ((error == EOPNOTSUPP || error == EINVAL) && ::ftruncate(fd_, bytes) == 0) error = 0;
  if (error == 0) return absl::OkStatus();
  return write_error(path_, bytes, 0, error);
}

absl::Status AtomicFile::write_at(int64_t offset, std::span<const std::byte> bytes) const {
  while (!bytes.empty()) {
    // Linux moves at most 0x7ffff000 bytes a call.
    const ssize_t done = ::pwrite(fd_, bytes.data(), std::min<size_t>(bytes.size(), size_t{1} << 30), offset);
    if (done < 0 && errno == EINTR) continue;
    if (done <= 0) return write_error(path_, static_cast<int64_t>(bytes.size()), offset, done == 0 ? ENOSPC : errno);
    bytes = bytes.subspan(static_cast<size_t>(done));
    offset += done;
  }
  return absl::OkStatus();
}

absl::Status AtomicFile::flush() const {
  return ::fdatasync(fd_) == 0 ? absl::OkStatus() : file_error("flush", path_, errno);
}

int AtomicFile::open_direct() const { return ::open(temporary_.c_str(), O_WRONLY | O_DIRECT | O_CLOEXEC | O_NOFOLLOW); }

absl::Status AtomicFile::append(std::span<const std::byte> bytes) {
  if (absl::Status status = write_at(appended_, bytes); !status.ok()) return status;
  appended_ += static_cast<int64_t>(bytes.size());
  return absl::OkStatus();
}

absl::Status AtomicFile::append(std::string_view text) { return append(as_byte_span(text)); }

absl::Status AtomicFile::commit(Durable durable) {
  if (fd_ < 0) return absl::FailedPreconditionError(cat("file ", quote(path_), " was already closed"));
  auto fail = [&](std::string_view action, int error) {
    absl::Status status = file_error(action, path_, error);
    discard();
    return status;
  };
  if (durable == Durable::kYes && ::fsync(fd_) != 0) return fail("flush", errno);
  if (!owner_) {
    const int error = ::close(std::exchange(fd_, -1)) == 0 ? 0 : errno;
    return error == 0 ? absl::OkStatus() : file_error("close", path_, error);
  }
  // Network file systems report a full disk only at close, so closing comes before the rename.
  if (::close(std::exchange(fd_, -1)) != 0) {
    const int error = errno;
    ::unlink(temporary_.c_str());
    return file_error("close", path_, error);
  }
  if (::rename(temporary_.c_str(), path_.c_str()) != 0) {
    const int error = errno;
    ::unlink(temporary_.c_str());
    return file_error("rename the finished file to", path_, error);
  }
  if (durable == Durable::kYes) {
    const int folder = ::open(folder_of(path_).c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (folder >= 0) {
      ::fsync(folder);  // best effort: some file systems refuse to sync a folder
      ::close(folder);
    }
  }
  return absl::OkStatus();
}

absl::Status write_file_atomically(const std::string& path, std::string_view content, Durable durable) {
  absl::StatusOr<AtomicFile> file = AtomicFile::create(path);
  if (!file.ok()) return file.status();
  if (absl::Status status = file->append(content); !status.ok()) return status;
  return file->commit(durable);
}

}  // namespace partita
