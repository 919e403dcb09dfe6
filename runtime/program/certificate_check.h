// Whether a bundle has a certificate, and whose (docs/verify.md).
#pragma once

#include <string>

#include "absl/status/status.h"

namespace partita::runtime {

// What is asked of a bundle before anything of it is run.
struct BundleTrust {
  bool certificate = false;  // it has one, of this very bundle
  std::string key;           // not empty: PEM file of the Ed25519 public key that the certificate is signed with
};

inline constexpr int kCertificateVersion = 2;

// A certificate that is there has to name the root of the bundle in `folder`; `trust` may ask that there is one, and
// whose signature certificate.sig holds. FailedPrecondition, DataLoss; NotFound where the key is missing.
absl::Status check_certificate(const std::string& folder, const std::string& root, const BundleTrust& trust);

}  // namespace partita::runtime
