#include "runtime/program/signature.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/pem.h>

#include <memory>

#include "base/cat.h"
#include "base/mapped_file.h"
#include "base/quote.h"
#include "base/status.h"

namespace partita::runtime {
namespace {

using Key = std::unique_ptr<EVP_PKEY, decltype(&EVP_PKEY_free)>;
using Context = std::unique_ptr<EVP_MD_CTX, decltype(&EVP_MD_CTX_free)>;

const unsigned char* octets(std::span<const std::byte> bytes) {
  return reinterpret_cast<const unsigned char*>(bytes.data());
}

// A key with a passphrase is none: nobody is asked.
int no_passphrase(char*, int, int, void*) { return -1; }

absl::StatusOr<Key> read_key(const std::string& path, bool secret) {
  OPENSSL_init_crypto(OPENSSL_INIT_NO_LOAD_CONFIG | OPENSSL_INIT_NO_ATEXIT, nullptr);
  PARTITA_ASSIGN_OR_RETURN(MappedFile file, MappedFile::open(path));
  std::unique_ptr<BIO, decltype(&BIO_free)> text(BIO_new_mem_buf(file.bytes().data(), static_cast<int>(file.size())),
                                                 BIO_free);
  if (text == nullptr) return absl::InvalidArgumentError(cat(quote(path, 1000), ": it is empty"));
  Key key(secret ? PEM_read_bio_PrivateKey(text.get(), nullptr, no_passphrase, nullptr)
                 : PEM_read_bio_PUBKEY(text.get(), nullptr, no_passphrase, nullptr),
          EVP_PKEY_free);
  if (key != nullptr && EVP_PKEY_get_id(key.get()) == EVP_PKEY_ED25519) return key;
  return absl::InvalidArgumentError(
      cat(quote(path, 1000), ": expected an Ed25519 ", secret ? "private" : "public", " key in PEM, as ",
          secret ? "`openssl genpkey -algorithm ed25519`" : "`openssl pkey -pubout`", " writes it"));
}

}  // namespace

absl::StatusOr<std::string> sign(const std::string& path, std::span<const std::byte> message) {
  PARTITA_ASSIGN_OR_RETURN(const Key key, read_key(path, true));
  const Context context(EVP_MD_CTX_new(), EVP_MD_CTX_free);
  std::string signature(64, '\0');
  size_t size = signature.size();
  const bool done = EVP_DigestSignInit(context.get(), nullptr, nullptr, nullptr, key.get()) == 1 &&
                    EVP_DigestSign(context.get(), reinterpret_cast<unsigned char*>(signature.data()), &size,
                                   octets(message), message.size()) == 1;
  PARTITA_CHECK(done && size == signature.size(), "Ed25519 signatures have 64 bytes");
  return signature;
}

absl::Status check_signature(const std::string& path, std::span<const std::byte> message,
                             std::span<const std::byte> signature) {
  PARTITA_ASSIGN_OR_RETURN(const Key key, read_key(path, false));
  const Context context(EVP_MD_CTX_new(), EVP_MD_CTX_free);
  const bool holds =
      EVP_DigestVerifyInit(context.get(), nullptr, nullptr, nullptr, key.get()) == 1 &&
      EVP_DigestVerify(context.get(), octets(signature), signature.size(), octets(message), message.size()) == 1;
  if (holds) return absl::OkStatus();
  return absl::FailedPreconditionError(
      cat("its signature is not of this certificate by the key of ", quote(path, 1000)));
}

}  // namespace partita::runtime
