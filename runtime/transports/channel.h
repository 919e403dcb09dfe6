// A connection to another rank: a socket, and TLS on it where the ranks prove who they are.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "runtime/transports/tcp_socket.h"
#include "runtime/transports/tls.h"

namespace partita::runtime {

class Channel {
 public:
  Channel() = default;
  explicit Channel(Fd fd) : fd_(std::move(fd)) {}  // plain
  // Under TLS; nothing is said before handshake(). `key` outlives the handshake alone.
  Channel(Fd fd, const TlsKey& key, TlsRole role) : fd_(std::move(fd)), tls_(key.end(fd_.get(), role)) {}

  const Fd& fd() const { return fd_; }
  bool valid() const { return fd_.valid(); }
  void reset();
  Fd take_fd() { return std::move(fd_); }

  // Goes on with the handshake. True: both ends know the secret; false: not yet, wait for `events`. Unavailable where
  // the other end closed the connection, PermissionDenied where it does not know the secret.
  absl::StatusOr<bool> handshake();
  short events() const;
  absl::Status handshake_until(SteadyTime deadline);
  // From here on plain bytes, on both ends: who they are is proved.
  void leave_tls() { tls_.reset(); }

  // One attempt. Positive: bytes moved; 0: not now; negative: the connection is finished.
  ptrdiff_t send_some(std::span<const std::byte> first, std::span<const std::byte> second);
  ptrdiff_t recv_some(std::span<std::byte> bytes);
  // Bytes have come that poll(2) does not know of.
  bool holds_bytes() const { return tls_ != nullptr && ::SSL_pending(tls_.get()) > 0; }

  // All of `bytes`, or Unavailable: the peer closed the connection, or the deadline passed.
  absl::Status send_all(std::span<const std::byte> bytes, SteadyTime deadline);
  absl::Status recv_all(std::span<std::byte> bytes, SteadyTime deadline);

 private:
  ptrdiff_t outcome(int returned) const;

  Fd fd_;
  SslPointer tls_;
  uint64_t records_ = 0;  // sent under the present key
};

}  // namespace partita::runtime
