#include "runtime/launch/job_secret.h"

#include <sys/random.h>

#include "absl/strings/ascii.h"
#include "base/cat.h"
#include "base/checksum.h"
#include "base/mapped_file.h"
#include "base/quote.h"
#include "base/status.h"
#include "runtime/launch/trusted_path.h"

namespace partita::runtime {
namespace {

constexpr size_t kMaxSecretBytes = 4096;

absl::StatusOr<std::string> checked(std::string_view text, const std::string& source) {
  if (text.empty()) {
    return absl::InvalidArgumentError(
        cat("the ranks are on several hosts and have no secret to know each other by. `partita launch` makes one; else "
            "set ",
            kSecretFileVariable,
            " on all of them to a file that you alone may read: (umask 077; openssl rand -hex 32 > FILE). Where all "
            "ranks are on this host, MASTER_ADDR=127.0.0.1 says so"));
  }
  const auto is_space = [](char c) { return absl::ascii_isspace(static_cast<unsigned char>(c)); };
  while (!text.empty() && is_space(text.front())) text.remove_prefix(1);
  while (!text.empty() && is_space(text.back())) text.remove_suffix(1);
  if (text.size() < kMinSecretBytes || text.size() > kMaxSecretBytes)
    return absl::InvalidArgumentError(cat(source, " has ", text.size(), " characters; a secret has ", kMinSecretBytes,
                                          " to ", kMaxSecretBytes, ": openssl rand -hex 32"));
  return std::string(text);
}

}  // namespace

absl::StatusOr<std::string> make_job_secret() {
  Sha256 bytes{};
  if (::getrandom(bytes.data(), bytes.size(), 0) != static_cast<ssize_t>(bytes.size()))
    return absl::InternalError("the system gives no random bytes");
  return to_hex(bytes);
}

absl::StatusOr<std::string> read_job_secret(const LaunchEnvironment& launch) {
  if (launch.secret_file.empty()) return checked(launch.secret, kSecretVariable);
  PARTITA_RETURN_IF_ERROR(with_context(check_private_file(launch.secret_file), kSecretFileVariable));
  PARTITA_ASSIGN_OR_RETURN(const MappedFile file, MappedFile::open(launch.secret_file));
  return checked(file.text(), cat(kSecretFileVariable, " ", quote(launch.secret_file, 1000)));
}

}  // namespace partita::runtime
