// Ed25519 signatures (RFC 8032), by OpenSSL, with keys as `openssl genpkey -algorithm ed25519` writes them.
#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace partita::runtime {

// 64 bytes. `key`: PEM file of the private key. NotFound, InvalidArgument where it is another kind of key.
absl::StatusOr<std::string> sign(const std::string& key, std::span<const std::byte> message);

// `key`: PEM file of the public key. FailedPrecondition where the signature is not of this message by this key.
absl::Status check_signature(const std::string& key, std::span<const std::byte> message,
                             std::span<const std::byte> signature);

}  // namespace partita::runtime
