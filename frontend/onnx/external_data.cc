#include "frontend/onnx/external_data.h"

#include <sys/stat.h>

#include <cerrno>
#include <string_view>
#include <utility>
#include <vector>

#include "base/cat.h"
#include "base/quote.h"
#include "base/status.h"

namespace partita {
namespace {

absl::StatusOr<std::vector<std::string>> path_parts(const std::string& location) {
  if (location.empty()) return absl::InvalidArgumentError("the location of external data is empty");
  if (location.find('\0') != std::string::npos || location.find('\\') != std::string::npos) {
    return absl::InvalidArgumentError(cat("external data location ", quote(location), " is not a plain relative path"));
  }
  if (location[0] == '/') {
    return absl::InvalidArgumentError(
        cat("external data location ", quote(location), " is absolute: only files in the model's own folder are read"));
  }
  std::vector<std::string> parts;
  for (size_t at = 0; at <= location.size();) {
    size_t end = std::min(location.find('/', at), location.size());
    std::string part = location.substr(at, end - at);
    at = end + 1;
    if (part.empty() || part == ".") continue;
    if (part == "..") {
      return absl::InvalidArgumentError(
          cat("external data location ", quote(location), " leaves the model's folder with '..'"));
    }
    parts.push_back(std::move(part));
  }
  if (parts.empty()) return absl::InvalidArgumentError(cat("external data location ", quote(location), " is a folder"));
  return parts;
}

}  // namespace

absl::StatusOr<std::shared_ptr<const MappedFile>> ExternalData::open(const std::string& location) {
  if (auto at = files_.find(location); at != files_.end()) return at->second;
  PARTITA_ASSIGN_OR_RETURN(std::vector<std::string> parts, path_parts(location));
  std::string path = folder_;
  for (const std::string& part : parts) {
    path += "/" + part;
    struct stat info;
    if (lstat(path.c_str(), &info) != 0) {
      if (errno == ENOENT) return files_[location] = nullptr;
      return file_error("cannot read external data", path, errno);
    }
    if (S_ISLNK(info.st_mode)) {
      return absl::InvalidArgumentError(
          cat("external data ", quote(location), ": ", quote(path),
              " is a link: only files in the model's own folder are read; copy the file there"));
    }
  }
  PARTITA_ASSIGN_OR_RETURN(MappedFile file, MappedFile::open(path));
  return files_[location] = std::make_shared<const MappedFile>(std::move(file));
}

absl::StatusOr<std::variant<Literal, FileRange>> ExternalData::read(const TensorType& type, const std::string& location,
                                                                    int64_t offset, int64_t length) {
  int64_t bytes = byte_size(type);
  if (offset < 0) return absl::InvalidArgumentError(cat("external data offset ", offset, " is negative"));
  if (length >= 0 && length != bytes) {
    return absl::InvalidArgumentError(
        cat("external data has ", length, " bytes, but ", to_string(type), " takes ", bytes));
  }
  int64_t end;
  if (__builtin_add_overflow(offset, bytes, &end))
    return absl::InvalidArgumentError(cat("external data offset ", offset, " overflows"));
  PARTITA_ASSIGN_OR_RETURN(std::shared_ptr<const MappedFile> file, open(location));
  if (!file) return FileRange{folder_ + "/" + location, offset, bytes};
  if (end > file->size()) {
    return absl::InvalidArgumentError(cat("external data file ", quote(location), " is too short: bytes ", offset,
                                          " to ", end, " are asked for, it has ", file->size()));
  }
  const std::byte* data = file->bytes().data() + offset;
  return Literal{type, std::move(file), data};
}

}  // namespace partita
