#include "runtime/transports/tls.h"

#include <openssl/bio.h>
#include <openssl/core_names.h>
#include <openssl/err.h>
#include <openssl/kdf.h>
#include <sys/socket.h>

#include <array>
#include <cstring>
#include <string>

#include "base/cat.h"

namespace partita::runtime {
namespace {

constexpr std::string_view kIdentity = "partita job";
constexpr size_t kKeyBytes = 32;
// AES-128-GCM with SHA-256. Nothing is gained by a choice.
constexpr const char* kCipher = "TLS_AES_128_GCM_SHA256";
constexpr std::array<unsigned char, 2> kCipherCode{0x13, 0x01};

// HKDF-SHA256 (RFC 5869): the secret is long and random, in whatever form it was written.
bool derive_key(std::string_view secret, std::string& key) {
  struct Free {
    void operator()(EVP_KDF* kdf) const { ::EVP_KDF_free(kdf); }
    void operator()(EVP_KDF_CTX* context) const { ::EVP_KDF_CTX_free(context); }
  };
  const std::unique_ptr<EVP_KDF, Free> kdf(::EVP_KDF_fetch(nullptr, "HKDF", nullptr));
  const std::unique_ptr<EVP_KDF_CTX, Free> context(kdf == nullptr ? nullptr : ::EVP_KDF_CTX_new(kdf.get()));
  if (context == nullptr) return false;
  std::string digest = "SHA256", input(secret), info = "partita tcp, version 1";
  const std::array<OSSL_PARAM, 4> parameters{
      ::OSSL_PARAM_construct_utf8_string(OSSL_KDF_PARAM_DIGEST, digest.data(), digest.size()),
      ::OSSL_PARAM_construct_octet_string(OSSL_KDF_PARAM_KEY, input.data(), input.size()),
      ::OSSL_PARAM_construct_octet_string(OSSL_KDF_PARAM_INFO, info.data(), info.size()), ::OSSL_PARAM_construct_end()};
  key.resize(kKeyBytes);
  return ::EVP_KDF_derive(context.get(), reinterpret_cast<unsigned char*>(key.data()), key.size(), parameters.data()) >
         0;
}

// OpenSSL's own socket BIO, but for the signal that a closed connection would send.
int write_quietly(BIO* bio, const char* bytes, int size) {
  const ssize_t moved =
      ::send(static_cast<int>(BIO_get_fd(bio, nullptr)), bytes, static_cast<size_t>(size), MSG_NOSIGNAL);
  BIO_clear_retry_flags(bio);
  if (moved <= 0 && ::BIO_sock_should_retry(static_cast<int>(moved)) != 0) BIO_set_retry_write(bio);
  return static_cast<int>(moved);
}

const BIO_METHOD* quiet_socket() {
  static const BIO_METHOD* const method = [] {
    const BIO_METHOD* socket = ::BIO_s_socket();
    BIO_METHOD* quiet = ::BIO_meth_new(BIO_TYPE_SOCKET, "socket without signals");
    if (quiet == nullptr) return socket;
    ::BIO_meth_set_write(quiet, write_quietly);
    ::BIO_meth_set_read(quiet, ::BIO_meth_get_read(socket));
    ::BIO_meth_set_ctrl(quiet, ::BIO_meth_get_ctrl(socket));
    ::BIO_meth_set_create(quiet, ::BIO_meth_get_create(socket));
    ::BIO_meth_set_destroy(quiet, ::BIO_meth_get_destroy(socket));
    return static_cast<const BIO_METHOD*>(quiet);
  }();
  return method;
}

const TlsKey* key_of(const SSL* ssl) {
  return static_cast<const TlsKey*>(::SSL_CTX_get_ex_data(::SSL_get_SSL_CTX(ssl), 0));
}

}  // namespace

std::string tls_error() {
  const unsigned long code = ::ERR_peek_last_error();
  ::ERR_clear_error();
  const char* reason = code == 0 ? nullptr : ::ERR_reason_error_string(code);
  return reason == nullptr ? "" : reason;
}

SSL_SESSION* TlsKey::session(SSL* ssl) const {
  SSL_SESSION* session = ::SSL_SESSION_new();
  if (session == nullptr) return nullptr;
  const SSL_CIPHER* cipher = ::SSL_CIPHER_find(ssl, kCipherCode.data());
  const auto* bytes = reinterpret_cast<const unsigned char*>(key_.data());
  if (cipher != nullptr && ::SSL_SESSION_set1_master_key(session, bytes, key_.size()) == 1 &&
      ::SSL_SESSION_set_cipher(session, cipher) == 1 &&
      ::SSL_SESSION_set_protocol_version(session, TLS1_3_VERSION) == 1) {
    return session;
  }
  ::SSL_SESSION_free(session);
  return nullptr;
}

int TlsKey::offer(SSL* ssl, const EVP_MD*, const unsigned char** id, size_t* id_size, SSL_SESSION** session) {
  *id = reinterpret_cast<const unsigned char*>(kIdentity.data());
  *id_size = kIdentity.size();
  *session = key_of(ssl)->session(ssl);
  return *session != nullptr ? 1 : 0;
}

int TlsKey::find(SSL* ssl, const unsigned char* id, size_t id_size, SSL_SESSION** session) {
  *session = nullptr;
  if (id_size != kIdentity.size() || std::memcmp(id, kIdentity.data(), id_size) != 0) return 1;
  *session = key_of(ssl)->session(ssl);
  return *session != nullptr ? 1 : 0;
}

absl::StatusOr<std::unique_ptr<TlsKey>> TlsKey::make(std::string_view secret) {
  const auto failed = [] { return absl::InternalError(cat("OpenSSL does not start: ", tls_error())); };
  // No file of this host changes what is spoken.
  if (::OPENSSL_init_ssl(OPENSSL_INIT_NO_LOAD_CONFIG, nullptr) != 1) return failed();
  std::unique_ptr<TlsKey> key(new TlsKey());
  key->context_.reset(::SSL_CTX_new(::TLS_method()));
  SSL_CTX* context = key->context_.get();
  if (context == nullptr || !derive_key(secret, key->key_) ||
      ::SSL_CTX_set_min_proto_version(context, TLS1_3_VERSION) != 1 ||
      ::SSL_CTX_set_ciphersuites(context, kCipher) != 1 || ::SSL_CTX_set1_groups_list(context, "X25519") != 1 ||
      ::SSL_CTX_set_ex_data(context, 0, key.get()) != 1) {
    return failed();
  }
  ::SSL_CTX_set_psk_use_session_callback(context, &TlsKey::offer);
  ::SSL_CTX_set_psk_find_session_callback(context, &TlsKey::find);
  // Nothing follows the handshake: where encryption is not asked for, plain bytes do.
  ::SSL_CTX_set_num_tickets(context, 0);
  ::SSL_CTX_set_session_cache_mode(context, SSL_SESS_CACHE_OFF);
  ::SSL_CTX_set_mode(context,
                     SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER | SSL_MODE_RELEASE_BUFFERS);
  return key;
}

SslPointer TlsKey::end(int fd, TlsRole role) const {
  SslPointer ssl(::SSL_new(context_.get()));
  BIO* socket = ssl == nullptr ? nullptr : ::BIO_new(quiet_socket());
  if (socket == nullptr) return nullptr;
  BIO_set_fd(socket, fd, BIO_NOCLOSE);
  ::SSL_set_bio(ssl.get(), socket, socket);
  if (role == TlsRole::kServer) {
    ::SSL_set_accept_state(ssl.get());
  } else {
    // Nobody has a certificate: a server that shows one, in place of the secret, is refused.
    ::SSL_set_verify(ssl.get(), SSL_VERIFY_PEER, nullptr);
    ::SSL_set_connect_state(ssl.get());
  }
  return ssl;
}

}  // namespace partita::runtime
