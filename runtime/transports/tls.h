// Two ranks of one job prove to each other that they know the job's secret: TLS 1.3 with an external pre-shared key
// (RFC 8446, section 2.2; RFC 9258's advice on secrets of many bits), by OpenSSL. A fresh key exchange (X25519) goes
// into every handshake, so what was recorded can be neither replayed nor read with a secret that leaks later.
#pragma once

#include <openssl/ssl.h>

#include <memory>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace partita::runtime {

// A hello of ours has some 300 bytes. Whatever claims to be longer is none.
inline constexpr size_t kMaxClientHelloBytes = 1024;

struct FreeSsl {
  void operator()(SSL* ssl) const { ::SSL_free(ssl); }
  void operator()(SSL_CTX* context) const { ::SSL_CTX_free(context); }
};
using SslPointer = std::unique_ptr<SSL, FreeSsl>;

enum class TlsRole { kClient, kServer };

// The key of a job, made from its secret. Immovable: OpenSSL keeps its address.
class TlsKey {
 public:
  // Internal where OpenSSL does not start.
  static absl::StatusOr<std::unique_ptr<TlsKey>> make(std::string_view secret);
  TlsKey(const TlsKey&) = delete;

  // One end of a connection on `fd`, which stays the caller's; nothing is sent yet. Null without memory.
  SslPointer end(int fd, TlsRole role) const;

 private:
  TlsKey() = default;
  static int offer(SSL* ssl, const EVP_MD* digest, const unsigned char** id, size_t* id_size, SSL_SESSION** session);
  static int find(SSL* ssl, const unsigned char* id, size_t id_size, SSL_SESSION** session);
  SSL_SESSION* session(SSL* ssl) const;

  std::unique_ptr<SSL_CTX, FreeSsl> context_;
  std::string key_;
};

// OpenSSL's last error of this thread in words, or "".
std::string tls_error();

}  // namespace partita::runtime
