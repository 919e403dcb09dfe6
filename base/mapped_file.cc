#include "base/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <system_error>
#include <utility>

#include "base/cat.h"
#include "base/host/lost_file.h"
#include "base/quote.h"

namespace partita {
namespace {

// Forgotten first: the same addresses may be another file's at once.
void unmap(const std::byte* data, size_t size) {
  forget_mapping(data);
  ::munmap(const_cast<std::byte*>(data), size);
}

}  // namespace

absl::Status file_error(std::string_view action, std::string_view path, int error_number) {
  const std::string message =
      cat("cannot ", action, " ", quote(path, 1000), ": ", std::generic_category().message(error_number));
  switch (error_number) {
    case ENOENT:
    case ENOTDIR:
      return absl::NotFoundError(message);
    case ENOSPC:
    case EDQUOT:
    case EFBIG:
    case ENOMEM:
    case EMFILE:
    case ENFILE:
      return absl::ResourceExhaustedError(message);
    default:
      return absl::InvalidArgumentError(message);
  }
}

absl::StatusOr<MappedFile> MappedFile::open(const std::string& path) {
  if (path.find('\0') != std::string::npos)
    return absl::InvalidArgumentError(cat("path ", quote(path), " holds a NUL byte"));
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) return file_error("open", path, errno);
  auto file = map(fd, path);
  ::close(fd);
  return file;
}

absl::StatusOr<MappedFile> MappedFile::map(int descriptor, const std::string& path) {
  struct stat info;
  MappedFile file;
  file.path_ = path;
  if (::fstat(descriptor, &info) != 0) return file_error("read the size of", path, errno);
  if (!S_ISREG(info.st_mode))
    return absl::InvalidArgumentError(
        cat("cannot read ", quote(path, 1000), ": it is ", S_ISDIR(info.st_mode) ? "a folder" : "not a regular file"));
  if (info.st_size == 0) return file;
  void* data = ::mmap(nullptr, static_cast<size_t>(info.st_size), PROT_READ, MAP_PRIVATE, descriptor, 0);
  if (data == MAP_FAILED) return file_error("map", path, errno);
  file.data_ = static_cast<const std::byte*>(data);
  file.size_ = static_cast<size_t>(info.st_size);
  remember_mapping(file.data_, file.size_, path);
  return file;
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : path_(std::move(other.path_)), data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  if (this != &other) {
    if (data_ != nullptr) unmap(data_, size_);
    path_ = std::move(other.path_);
    data_ = std::exchange(other.data_, nullptr);
    size_ = std::exchange(other.size_, 0);
  }
  return *this;
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) unmap(data_, size_);
}

void MappedFile::expect_random_access() const {
  if (data_ != nullptr) ::madvise(const_cast<std::byte*>(data_), size_, MADV_RANDOM);
}

void MappedFile::let_go(std::span<const std::byte> bytes) {
  const uintptr_t page = static_cast<uintptr_t>(::sysconf(_SC_PAGESIZE)),
                  begin = reinterpret_cast<uintptr_t>(bytes.data()) / page * page,
                  end = reinterpret_cast<uintptr_t>(bytes.data() + bytes.size());
  if (begin < end) ::madvise(reinterpret_cast<void*>(begin), end - begin, MADV_DONTNEED);
}

}  // namespace partita
