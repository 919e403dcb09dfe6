// Whether somebody else could have put a file where it lies.
#pragma once

#include <string>

#include "absl/status/status.h"

namespace partita::runtime {

// Ok where `path` (a file or a folder) and every folder above it belong to this user or to root, and nobody else may
// write there, as sshd asks of its keys. In a folder with the sticky bit, /tmp, others may write, but not replace what
// is there. A group of the user's own, as Debian makes them, counts as the user. PermissionDenied says which folder it
// is and what to do; the errors of a path that cannot be followed as they are.
absl::Status check_trusted_path(const std::string& path);

// As above, and nobody else may read it.
absl::Status check_private_file(const std::string& path);

}  // namespace partita::runtime
