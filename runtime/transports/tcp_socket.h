// Sockets for the TCP back end: nonblocking, closed on exec, every wait bounded by a deadline.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "runtime/communicate/transport.h"

namespace partita::runtime {

class Fd {
 public:
  Fd() = default;
  explicit Fd(int fd) : fd_(fd) {}
  Fd(Fd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Fd& operator=(Fd&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~Fd() { reset(); }
  int get() const { return fd_; }
  bool valid() const { return fd_ >= 0; }
  void reset();

 private:
  int fd_ = -1;
};

struct TcpEndpoint {
  std::string address;  // a host name or a numeric address, IPv4 or IPv6
  uint16_t port = 0;
};

// Listens on one numeric address of this host, never on all; port 0 picks one. FailedPrecondition where the port is
// taken.
absl::StatusOr<Fd> tcp_listen(const TcpEndpoint& at);
// This end's numeric address and port.
absl::StatusOr<TcpEndpoint> tcp_local_endpoint(const Fd& fd);

// Tries again until somebody answers or the deadline passes (Unavailable).
absl::StatusOr<Fd> tcp_connect(const TcpEndpoint& endpoint, SteadyTime deadline);
// A connection if one waits, else an invalid Fd.
Fd tcp_accept(const Fd& listener);
// Lets the kernel notice within some 9 s that the peer's host is gone. Only for connections that are always read.
void tcp_watch_host(const Fd& fd);

// Milliseconds for poll(2), rounded up.
int poll_timeout(SteadyTime until);

// Waits for `events` of poll(2); false at the deadline.
bool wait_for(const Fd& fd, short events, SteadyTime deadline);

// One attempt. Positive: bytes moved; 0: not now; negative: the connection is finished.
ptrdiff_t tcp_send_some(const Fd& fd, std::span<const std::byte> first, std::span<const std::byte> second);
ptrdiff_t tcp_recv_some(const Fd& fd, std::span<std::byte> bytes);

}  // namespace partita::runtime
