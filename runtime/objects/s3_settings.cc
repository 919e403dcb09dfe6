#include "runtime/objects/s3_settings.h"

#include "base/cat.h"
#include "base/quote.h"
#include "base/text_file.h"

namespace partita::runtime {
namespace {

std::string variable(const EnvironmentMap& environment, const std::string& name) {
  const auto at = environment.find(name);
  return at == environment.end() ? "" : at->second;
}

// Its text, or nothing where it cannot be read.
std::string text_of(const std::string& path) {
  auto text = read_text_file(path, 1 << 20);
  return text.ok() ? *std::move(text) : "";
}

std::string_view trimmed(std::string_view text) {
  constexpr const char* kBlank = " \t\r";
  const size_t begin = text.find_first_not_of(kBlank);
  return begin == text.npos ? "" : text.substr(begin, text.find_last_not_of(kBlank) + 1 - begin);
}

// The next line, taken from the front of `text`.
std::string_view take_line(std::string_view& text) {
  const size_t end = text.find('\n');
  const std::string_view line = text.substr(0, end);
  text.remove_prefix(end == text.npos ? text.size() : end + 1);
  return line;
}

bool is_section(std::string_view line, std::string_view section) {
  if (!line.starts_with('[') || !line.ends_with(']')) return false;
  std::string_view name = trimmed(line.substr(1, line.size() - 2));
  if (name.starts_with("profile ")) name = trimmed(name.substr(8));
  return name == section;
}

bool has_section(std::string_view text, std::string_view section) {
  while (!text.empty()) {
    if (is_section(trimmed(take_line(text)), section)) return true;
  }
  return false;
}

}  // namespace

std::string ini_value(std::string_view text, std::string_view section, std::string_view key) {
  bool inside = false;
  while (!text.empty()) {
    const std::string_view whole = take_line(text), line = trimmed(whole);
    // Indented lines belong to a key of several values, which none of ours is.
    const bool nested = whole.starts_with(' ') || whole.starts_with('\t');
    if (line.starts_with('[')) inside = is_section(line, section);
    const size_t equals = line.find('=');
    if (!inside || nested || equals == line.npos || line.starts_with('#') || line.starts_with(';')) continue;
    if (trimmed(line.substr(0, equals)) == key) return std::string(trimmed(line.substr(equals + 1)));
  }
  return "";
}

absl::StatusOr<S3Settings> read_s3_settings(const EnvironmentMap& environment) {
  auto first = [](std::initializer_list<std::string> values) {
    for (const std::string& v : values) {
      if (!v.empty()) return v;
    }
    return std::string();
  };
  auto from = [&](const char* name) { return variable(environment, name); };
  const std::string home = from("HOME"), profile = first({from("AWS_PROFILE"), "default"});
  const std::string secrets = text_of(first({from("AWS_SHARED_CREDENTIALS_FILE"), home + "/.aws/credentials"}));
  const std::string config = text_of(first({from("AWS_CONFIG_FILE"), home + "/.aws/config"}));
  if (!from("AWS_PROFILE").empty() && !has_section(secrets, profile) && !has_section(config, profile))
    return absl::InvalidArgumentError(
        cat("AWS_PROFILE is ", quote(profile), ", of which ~/.aws/credentials and ~/.aws/config have no section"));
  S3Settings s;
  s.key_id = from("AWS_ACCESS_KEY_ID");
  s.secret = from("AWS_SECRET_ACCESS_KEY");
  s.token = from("AWS_SESSION_TOKEN");
  for (const std::string* file : {&secrets, &config}) {
    if (!s.key_id.empty() || !s.secret.empty()) break;
    s.key_id = ini_value(*file, profile, "aws_access_key_id");
    s.secret = ini_value(*file, profile, "aws_secret_access_key");
    s.token = ini_value(*file, profile, "aws_session_token");
  }
  if (s.key_id.empty() != s.secret.empty())
    return absl::InvalidArgumentError(s.key_id.empty() ? "there is an AWS secret key, and no access key id of it"
                                                       : "there is an AWS access key id, and no secret key of it");
  s.region = first({from("AWS_REGION"), from("AWS_DEFAULT_REGION"), ini_value(config, profile, "region"), "us-east-1"});
  s.endpoint =
      first({from("AWS_ENDPOINT_URL_S3"), from("AWS_ENDPOINT_URL"), ini_value(config, profile, "endpoint_url")});
  s.ca_bundle = first({from("AWS_CA_BUNDLE"), ini_value(config, profile, "ca_bundle")});
  while (s.endpoint.ends_with('/')) s.endpoint.pop_back();
  if (!s.endpoint.empty() && !s.endpoint.starts_with("http://") && !s.endpoint.starts_with("https://"))
    return absl::InvalidArgumentError(cat("AWS_ENDPOINT_URL ", quote(s.endpoint), ": expected http://… or https://…"));
  return s;
}

}  // namespace partita::runtime
