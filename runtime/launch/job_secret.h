// What the ranks of a job know, and nobody else: by it they know each other (transports/tls.h).
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "runtime/launch/launch_environment.h"

namespace partita::runtime {

inline constexpr const char* kSecretVariable = "PARTITA_JOB_SECRET";
inline constexpr const char* kSecretFileVariable = "PARTITA_JOB_SECRET_FILE";
inline constexpr size_t kMinSecretBytes = 32;

// A new one: 256 bits from the system, as 64 hex digits.
absl::StatusOr<std::string> make_job_secret();

// The file's, else the environment's, without the white space around it. InvalidArgument where there is none (says how
// to make one) or it has fewer than 32 characters; PermissionDenied where others may read the file.
absl::StatusOr<std::string> read_job_secret(const LaunchEnvironment& launch);

}  // namespace partita::runtime
