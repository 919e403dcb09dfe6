#include "runtime/transports/local_socket.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <thread>

#include "base/cat.h"
#include "base/quote.h"

namespace partita::runtime {
namespace {

using Clock = std::chrono::steady_clock;

std::string errno_text(int error) { return std::generic_category().message(error); }

struct Address {
  sockaddr_un socket{};
  socklen_t length = 0;
  const sockaddr* generic() const { return reinterpret_cast<const sockaddr*>(&socket); }
};

// A first byte of zero: an abstract name (unix(7)).
Address address_of(std::string_view name) {
  Address address;
  address.socket.sun_family = AF_UNIX;
  const std::string text = cat("partita/", ::geteuid(), "/", name).substr(0, sizeof address.socket.sun_path - 1);
  std::memcpy(address.socket.sun_path + 1, text.data(), text.size());
  address.length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + text.size());
  return address;
}

Fd open_socket() { return Fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0)); }

}  // namespace

absl::StatusOr<Fd> local_listen(std::string_view name) {
  Fd fd = open_socket();
  const Address address = address_of(name);
  if (fd.valid() && ::bind(fd.get(), address.generic(), address.length) == 0 && ::listen(fd.get(), SOMAXCONN) == 0)
    return fd;
  const std::string text = cat("cannot listen under the name ", quote(name), ": ", errno_text(errno));
  return errno == EADDRINUSE ? absl::FailedPreconditionError(cat(text, "; choose another MASTER_PORT"))
                             : absl::UnavailableError(text);
}

absl::StatusOr<Fd> local_connect(std::string_view name, SteadyTime deadline) {
  const Address address = address_of(name);
  for (std::chrono::milliseconds pause(10);; pause = std::min(pause * 2, std::chrono::milliseconds(200))) {
    Fd fd = open_socket();
    if (fd.valid() && ::connect(fd.get(), address.generic(), address.length) == 0) {
      if (!is_own_user(fd)) return absl::PermissionDeniedError(cat(quote(name), " belongs to another user"));
      return fd;
    }
    if (Clock::now() + pause >= deadline) return absl::UnavailableError(errno_text(errno));
    std::this_thread::sleep_for(pause);
  }
}

bool is_own_user(const Fd& fd) {
  ucred peer{};
  socklen_t length = sizeof peer;
  return ::getsockopt(fd.get(), SOL_SOCKET, SO_PEERCRED, &peer, &length) == 0 && peer.uid == ::geteuid();
}

}  // namespace partita::runtime
