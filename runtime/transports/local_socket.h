// Sockets between the ranks of one host: Unix sockets, whose names are the kernel's and no files. No network reaches
// them, and the kernel says which user is at the other end.
#pragma once

#include <string_view>

#include "absl/status/statusor.h"
#include "runtime/transports/tcp_socket.h"

namespace partita::runtime {

// Listens under `name`, of this user: those of others are others. FailedPrecondition where it is taken.
absl::StatusOr<Fd> local_listen(std::string_view name);
// Tries again until somebody answers or the deadline passes (Unavailable). PermissionDenied where another user does.
absl::StatusOr<Fd> local_connect(std::string_view name, SteadyTime deadline);
// Whether the process at the other end is this user's.
bool is_own_user(const Fd& fd);

}  // namespace partita::runtime
