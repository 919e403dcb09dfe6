#include "runtime/launch/trusted_path.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>

#include "base/cat.h"
#include "base/mapped_file.h"
#include "base/quote.h"
#include "base/status.h"

namespace partita::runtime {
namespace {

// Debian gives each user a group with the user's own number.
bool is_own_group(gid_t group) { return group == 0 || (group == ::getegid() && ::getegid() == ::geteuid()); }

absl::Status check_one(const std::string& path, bool above) {
  struct stat info {};
  if (::stat(path.c_str(), &info) != 0) return file_error("look at", path, errno);
  if (info.st_uid != 0 && info.st_uid != ::geteuid())
    return absl::PermissionDeniedError(
        cat(quote(path, 1000), " belongs to user ", info.st_uid, ", not to you or root; nothing is taken from there"));
  const bool sticky = above && (info.st_mode & S_ISVTX) != 0;
  const bool group = (info.st_mode & S_IWGRP) != 0 && !is_own_group(info.st_gid);
  if (!sticky && ((info.st_mode & S_IWOTH) != 0 || group))
    return absl::PermissionDeniedError(cat("others may write to ", quote(path, 1000),
                                           "; nothing is taken from there: chmod go-w it, or move what lies there"));
  return absl::OkStatus();
}

}  // namespace

absl::Status check_trusted_path(const std::string& path) {
  std::error_code error;
  const std::filesystem::path real = std::filesystem::canonical(path, error);
  if (error) return file_error("follow", path, error.value());
  PARTITA_RETURN_IF_ERROR(check_one(real.string(), false));
  for (std::filesystem::path folder = real; folder.has_relative_path();) {
    folder = folder.parent_path();
    PARTITA_RETURN_IF_ERROR(check_one(folder.string(), true));
  }
  return absl::OkStatus();
}

absl::Status check_private_file(const std::string& path) {
  PARTITA_RETURN_IF_ERROR(check_trusted_path(path));
  struct stat info {};
  if (::stat(path.c_str(), &info) != 0) return file_error("look at", path, errno);
  if ((info.st_mode & (S_IRWXG | S_IRWXO)) == 0) return absl::OkStatus();
  return absl::PermissionDeniedError(cat("others may read ", quote(path, 1000), ": chmod 600 it"));
}

}  // namespace partita::runtime
