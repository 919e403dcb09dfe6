// Where a bucket is and who asks, as the AWS tools read it.
#pragma once

#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "runtime/launch/launch_environment.h"

namespace partita::runtime {

struct S3Settings {
  std::string key_id, secret, token;  // token: of temporary credentials, else empty. No key_id: requests are not signed
  std::string region;
  std::string endpoint;   // "https://host:port" without a path; empty: Amazon's own
  std::string ca_bundle;  // a PEM file with the authorities to trust; empty: the system's
};

// The environment first (AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN, AWS_REGION or AWS_DEFAULT_REGION,
// AWS_ENDPOINT_URL_S3 or AWS_ENDPOINT_URL, AWS_CA_BUNDLE), then the section of AWS_PROFILE ("default") in
// AWS_SHARED_CREDENTIALS_FILE (~/.aws/credentials) and AWS_CONFIG_FILE (~/.aws/config). Neither asks a service of the
// machine, nor runs a program. InvalidArgument for a profile that is named and not there, half of a key, or an endpoint
// that is no URL.
absl::StatusOr<S3Settings> read_s3_settings(const EnvironmentMap& environment);

// The value of a key in a section of an INI file; empty where there is none. "[profile NAME]" is NAME's, too.
std::string ini_value(std::string_view text, std::string_view section, std::string_view key);

}  // namespace partita::runtime
