#include "runtime/transports/channel.h"

#include <openssl/err.h>
#include <poll.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "base/cat.h"

namespace partita::runtime {
namespace {

constexpr size_t kRecordBytes = 16384;
// A key of AES-GCM is good for 2^24.5 records (RFC 8446, section 5.5), some 380 GB of full ones and far less of short
// ones. Each send is one record.
constexpr uint64_t kRecordsPerKey = uint64_t{1} << 23;

}  // namespace

void Channel::reset() {
  tls_.reset();
  fd_.reset();
}

short Channel::events() const { return tls_ != nullptr && SSL_want_write(tls_.get()) ? POLLOUT : POLLIN; }

absl::StatusOr<bool> Channel::handshake() {
  if (tls_ == nullptr) return absl::ResourceExhaustedError("no memory for a connection");
  ::ERR_clear_error();
  const int returned = ::SSL_do_handshake(tls_.get());
  if (returned == 1) {
    // With a certificate in place of the secret nothing would be proved.
    if (::SSL_session_reused(tls_.get()) != 1) return absl::PermissionDeniedError("no proof of the job's secret");
    return true;
  }
  const int error = ::SSL_get_error(tls_.get(), returned);
  if (error == SSL_ERROR_WANT_READ || error == SSL_ERROR_WANT_WRITE) return false;
  const std::string text = tls_error();
  if (error == SSL_ERROR_SYSCALL || text == "unexpected eof while reading")
    return absl::UnavailableError("the connection was closed");
  return absl::PermissionDeniedError(text);
}

absl::Status Channel::handshake_until(SteadyTime deadline) {
  while (true) {
    const absl::StatusOr<bool> done = handshake();
    if (!done.ok()) return done.status();
    if (*done) return absl::OkStatus();
    if (!wait_for(fd_, events(), deadline)) return absl::UnavailableError("no answer in time");
  }
}

ptrdiff_t Channel::outcome(int returned) const {
  if (returned > 0) return returned;
  const int error = ::SSL_get_error(tls_.get(), returned);
  ::ERR_clear_error();
  return error == SSL_ERROR_WANT_READ || error == SSL_ERROR_WANT_WRITE ? 0 : -1;
}

ptrdiff_t Channel::send_some(std::span<const std::byte> first, std::span<const std::byte> second) {
  if (tls_ == nullptr) return tcp_send_some(fd_, first, second);
  // One record of both. A record that did not go out is made again from the same bytes, as OpenSSL wants it.
  std::array<std::byte, kRecordBytes> record;
  first = first.first(std::min(first.size(), record.size()));
  second = second.first(std::min(second.size(), record.size() - first.size()));
  std::copy(first.begin(), first.end(), record.begin());
  std::copy(second.begin(), second.end(), record.begin() + static_cast<ptrdiff_t>(first.size()));
  ::ERR_clear_error();
  if (records_ >= kRecordsPerKey && ::SSL_key_update(tls_.get(), SSL_KEY_UPDATE_NOT_REQUESTED) == 1) records_ = 0;
  const ptrdiff_t moved =
      outcome(::SSL_write(tls_.get(), record.data(), static_cast<int>(first.size() + second.size())));
  if (moved > 0) ++records_;
  return moved;
}

ptrdiff_t Channel::recv_some(std::span<std::byte> bytes) {
  if (tls_ == nullptr) return tcp_recv_some(fd_, bytes);
  ::ERR_clear_error();
  return outcome(::SSL_read(tls_.get(), bytes.data(), static_cast<int>(std::min<size_t>(bytes.size(), 1 << 30))));
}

absl::Status Channel::send_all(std::span<const std::byte> bytes, SteadyTime deadline) {
  while (!bytes.empty()) {
    const ptrdiff_t moved = send_some(bytes, {});
    if (moved < 0) return absl::UnavailableError("the connection was closed");
    bytes = bytes.subspan(static_cast<size_t>(moved));
    if (moved == 0 && !wait_for(fd_, POLLOUT, deadline)) return absl::UnavailableError("no answer in time");
  }
  return absl::OkStatus();
}

absl::Status Channel::recv_all(std::span<std::byte> bytes, SteadyTime deadline) {
  while (!bytes.empty()) {
    const ptrdiff_t moved = recv_some(bytes);
    if (moved < 0) return absl::UnavailableError("the connection was closed");
    bytes = bytes.subspan(static_cast<size_t>(moved));
    if (moved == 0 && !wait_for(fd_, POLLIN, deadline)) return absl::UnavailableError("no answer in time");
  }
  return absl::OkStatus();
}

}  // namespace partita::runtime
