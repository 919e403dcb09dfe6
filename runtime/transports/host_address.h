// On which of this host's addresses a rank listens.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "runtime/transports/tcp_socket.h"

namespace partita::runtime {

// The address of an interface ("eth0", IPv4 before IPv6), or the address itself where it is one of this host's.
// InvalidArgument, with what there is, for another word.
absl::StatusOr<std::string> interface_address(const std::string& interface);

// The numeric address of this host that others reach it by under `name`. A host's own name often means loopback to
// itself (Debian's 127.0.1.1): then the address that its default route starts from. FailedPrecondition where the name
// is not this host's.
absl::StatusOr<std::string> own_address(const std::string& name);
// The same, looked up again until `until`, with a warning at first: names of new hosts (a pod's, of a cluster that has
// just started it) come late, or mean for a while the host that had the name before.
absl::StatusOr<std::string> await_own_address(const std::string& name, SteadyTime until);

// The numeric address of this host from which it reaches `name`, or by which others reach it where that is its own
// name. Unavailable where there is no way.
absl::StatusOr<std::string> address_towards(const std::string& name);

}  // namespace partita::runtime
