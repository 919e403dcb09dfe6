#include "runtime/transports/tcp_socket.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <memory>
#include <thread>

#include "base/cat.h"
#include "base/quote.h"
#include "base/status.h"

namespace partita::runtime {
namespace {

using Clock = std::chrono::steady_clock;

std::string errno_text(int error) { return std::generic_category().message(error); }

void set_option(int fd, int level, int name, int value) { ::setsockopt(fd, level, name, &value, sizeof value); }

using AddressList = std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)>;

absl::StatusOr<AddressList> look_up(const TcpEndpoint& endpoint, int flags) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV | flags;
  addrinfo* found = nullptr;
  const int error = ::getaddrinfo(endpoint.address.c_str(), cat(endpoint.port).c_str(), &hints, &found);
  if (error != 0) return absl::UnavailableError(::gai_strerror(error));
  return AddressList(found, &::freeaddrinfo);
}

absl::StatusOr<Fd> connect_once(const addrinfo& address, SteadyTime deadline) {
  Fd fd(::socket(address.ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!fd.valid()) return absl::UnavailableError(errno_text(errno));
  if (::connect(fd.get(), address.ai_addr, address.ai_addrlen) != 0) {
    if (errno != EINPROGRESS) return absl::UnavailableError(errno_text(errno));
    if (!wait_for(fd, POLLOUT, deadline)) return absl::UnavailableError("no answer");
    int error = 0;
    socklen_t length = sizeof error;
    ::getsockopt(fd.get(), SOL_SOCKET, SO_ERROR, &error, &length);
    if (error != 0) return absl::UnavailableError(errno_text(error));
  }
  // A loopback connection to a free ephemeral port can meet itself.
  sockaddr_storage self{}, peer{};
  socklen_t self_length = sizeof self, peer_length = sizeof peer;
  ::getsockname(fd.get(), reinterpret_cast<sockaddr*>(&self), &self_length);
  ::getpeername(fd.get(), reinterpret_cast<sockaddr*>(&peer), &peer_length);
  if (self_length == peer_length && std::memcmp(&self, &peer, self_length) == 0)
    return absl::UnavailableError("nobody listens");
  set_option(fd.get(), IPPROTO_TCP, TCP_NODELAY, 1);
  return fd;
}

absl::StatusOr<Fd> connect_any(const TcpEndpoint& endpoint, SteadyTime deadline) {
  PARTITA_ASSIGN_OR_RETURN(const AddressList found, look_up(endpoint, 0));
  absl::Status status = absl::UnavailableError("no address");
  for (const addrinfo* address = found.get(); address != nullptr; address = address->ai_next) {
    absl::StatusOr<Fd> fd = connect_once(*address, std::min(deadline, Clock::now() + std::chrono::seconds(5)));
    if (fd.ok()) return fd;
    status = fd.status();
  }
  return status;
}

}  // namespace

void Fd::reset() {
  if (fd_ >= 0) ::close(fd_);
  fd_ = -1;
}

absl::StatusOr<Fd> tcp_listen(const TcpEndpoint& at) {
  const auto failed = [&](int error) {
    const std::string text = cat("cannot listen on ", quote(at.address), " port ", at.port, ": ", errno_text(error));
    return error == EADDRINUSE ? absl::FailedPreconditionError(cat(text, "; choose another MASTER_PORT"))
                               : absl::UnavailableError(text);
  };
  PARTITA_ASSIGN_OR_RETURN(const AddressList found, look_up(at, AI_NUMERICHOST));
  Fd fd(::socket(found->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!fd.valid()) return failed(errno);
  set_option(fd.get(), SOL_SOCKET, SO_REUSEADDR, 1);
  if (::bind(fd.get(), found->ai_addr, found->ai_addrlen) != 0 || ::listen(fd.get(), SOMAXCONN) != 0)
    return failed(errno);
  return fd;
}

absl::StatusOr<TcpEndpoint> tcp_local_endpoint(const Fd& fd) {
  sockaddr_storage storage{};
  socklen_t length = sizeof storage;
  if (::getsockname(fd.get(), reinterpret_cast<sockaddr*>(&storage), &length) != 0)
    return absl::UnavailableError(errno_text(errno));
  std::array<char, NI_MAXHOST> text{};
  const int error = ::getnameinfo(reinterpret_cast<sockaddr*>(&storage), length, text.data(), text.size(), nullptr, 0,
                                  NI_NUMERICHOST);
  if (error != 0) return absl::UnavailableError(::gai_strerror(error));
  const uint16_t port = storage.ss_family == AF_INET6 ? reinterpret_cast<const sockaddr_in6&>(storage).sin6_port
                                                      : reinterpret_cast<const sockaddr_in&>(storage).sin_port;
  return TcpEndpoint{.address = text.data(), .port = ntohs(port)};
}

absl::StatusOr<Fd> tcp_connect(const TcpEndpoint& endpoint, SteadyTime deadline) {
  for (std::chrono::milliseconds pause(20);; pause = std::min(pause * 2, std::chrono::milliseconds(500))) {
    absl::StatusOr<Fd> fd = connect_any(endpoint, deadline);
    if (fd.ok()) return fd;
    if (Clock::now() + pause >= deadline) {
      return absl::UnavailableError(
          cat("cannot connect to ", quote(endpoint.address), " port ", endpoint.port, ": ", fd.status().message()));
    }
    std::this_thread::sleep_for(pause);
  }
}

Fd tcp_accept(const Fd& listener) {
  Fd fd(::accept4(listener.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
  if (fd.valid()) set_option(fd.get(), IPPROTO_TCP, TCP_NODELAY, 1);
  return fd;
}

void tcp_watch_host(const Fd& fd) {
  set_option(fd.get(), SOL_SOCKET, SO_KEEPALIVE, 1);
  set_option(fd.get(), IPPROTO_TCP, TCP_KEEPIDLE, 3);
  set_option(fd.get(), IPPROTO_TCP, TCP_KEEPINTVL, 2);
  set_option(fd.get(), IPPROTO_TCP, TCP_KEEPCNT, 3);
  set_option(fd.get(), IPPROTO_TCP, TCP_USER_TIMEOUT, 9000);
}

int poll_timeout(SteadyTime until) {
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - Clock::now()).count();
  return static_cast<int>(std::clamp<int64_t>(left, 0, 3600000));
}

bool wait_for(const Fd& fd, short events, SteadyTime deadline) {
  while (true) {
    pollfd item{fd.get(), events, 0};
    const int ready = ::poll(&item, 1, poll_timeout(deadline));
    if (ready > 0) return true;
    if (ready == 0 && Clock::now() >= deadline) return false;
    if (ready < 0 && errno != EINTR) return false;
  }
}

ptrdiff_t tcp_send_some(const Fd& fd, std::span<const std::byte> first, std::span<const std::byte> second) {
  std::array<iovec, 2> parts{iovec{const_cast<std::byte*>(first.data()), first.size()},
                             iovec{const_cast<std::byte*>(second.data()), second.size()}};
  msghdr message{};
  message.msg_iov = parts.data();
  message.msg_iovlen = parts.size();
  while (true) {
    const ssize_t moved = ::sendmsg(fd.get(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (moved >= 0) return moved;
    if (errno == EINTR) continue;
    return errno == EAGAIN || errno == EWOULDBLOCK || errno == ENOBUFS ? 0 : -1;
  }
}

ptrdiff_t tcp_recv_some(const Fd& fd, std::span<std::byte> bytes) {
  while (true) {
    const ssize_t moved = ::recv(fd.get(), bytes.data(), bytes.size(), MSG_DONTWAIT);
    if (moved > 0) return moved;
    if (moved == 0) return -1;
    if (errno == EINTR) continue;
    return errno == EAGAIN || errno == EWOULDBLOCK ? 0 : -1;
  }
}

}  // namespace partita::runtime
