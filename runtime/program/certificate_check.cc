#include "runtime/program/certificate_check.h"

#include <filesystem>

#include "base/cat.h"
#include "base/checksum.h"
#include "base/mapped_file.h"
#include "base/quote.h"
#include "base/status.h"
#include "nlohmann/json.hpp"
#include "runtime/program/bundle_names.h"
#include "runtime/program/signature.h"

namespace partita::runtime {
namespace {

absl::Status check_root(const MappedFile& paper, const std::string& root) {
  nlohmann::json j = nlohmann::json::parse(paper.text(), nullptr, false);
  const std::string path = quote(paper.path(), 1000);
  auto damaged = [&] { return absl::DataLossError(cat(path, " is damaged; run `partita verify` again or remove it")); };
  if (!j.is_object() || !j.contains("version")) return damaged();
  if (j["version"] != kCertificateVersion)
    return absl::FailedPreconditionError(cat(path, ": expected version ", kCertificateVersion, ", found ",
                                             j["version"].dump(), "; run `partita verify` again"));
  // As it was written, to the byte: not only what it says.
  if (paper.text() != j.dump(2) + "\n") return damaged();
  nlohmann::json own = j.value("sha256", nlohmann::json());
  j.erase("sha256");
  if (!own.is_string() || own != sha256_hex(as_byte_span(j.dump(2)))) return damaged();
  if (!j.contains("root") || j["root"] != root)
    return absl::FailedPreconditionError(cat(path, " is of another bundle: ", quote(kManifestName),
                                             " has another content; run `partita verify` again, or remove the "
                                             "certificate"));
  return absl::OkStatus();
}

}  // namespace

absl::Status check_certificate(const std::string& folder, const std::string& root, const BundleTrust& trust) {
  const std::string path = cat(folder, "/", kCertificateName), signature = cat(folder, "/", kSignatureName);
  const bool asked = trust.certificate || !trust.key.empty();
  std::error_code ec;
  if (!std::filesystem::exists(path, ec)) {
    if (!asked) return absl::OkStatus();
    return absl::FailedPreconditionError(cat(quote(path, 1000),
                                             " is missing, and --require-certificate or --trust asks for it; run "
                                             "`partita verify ",
                                             folder, "`"));
  }
  PARTITA_ASSIGN_OR_RETURN(MappedFile paper, MappedFile::open(path));
  PARTITA_RETURN_IF_ERROR(check_root(paper, root));
  if (trust.key.empty()) return absl::OkStatus();
  if (!std::filesystem::exists(signature, ec))
    return absl::FailedPreconditionError(cat(quote(signature, 1000),
                                             " is missing, and --trust asks for it; run `partita "
                                             "verify ",
                                             folder, " --sign KEY`"));
  PARTITA_ASSIGN_OR_RETURN(MappedFile sealed, MappedFile::open(signature));
  return with_context(check_signature(trust.key, paper.bytes(), sealed.bytes()), quote(path, 1000));
}

}  // namespace partita::runtime
