// One HTTP request at a time, by the host's libcurl: loaded when it is first needed, so that programs that use no
// object store do without it and the many libraries that it needs.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "runtime/objects/s3_settings.h"
#include "runtime/objects/transfers.h"

namespace partita::runtime {

struct HttpRequest {
  std::string method = "GET";  // HEAD, PUT, POST, DELETE
  std::string url;             // its query sorted by name, everything percent-encoded
  std::vector<std::pair<std::string, std::string>> headers;
  std::span<const std::byte> body;
  std::span<std::byte> into = {};  // not empty: where a successful answer's body goes, in place of HttpReply::body
};

struct HttpReply {
  int status = 0;
  std::map<std::string, std::string> headers;  // names in lower case
  std::string body;
  size_t received = 0;  // bytes of the body
};

// A connection that is kept from one request to the next. Not thread-safe.
class HttpClient {
 public:
  // FailedPrecondition where there is no libcurl. `transfers` may be null.
  static absl::StatusOr<std::unique_ptr<HttpClient>> open(const S3Settings& settings, Transfers* transfers);
  virtual ~HttpClient() = default;
  // Signed for `service` of AWS (Signature Version 4), where there are credentials. Any answer is a reply; Unavailable
  // where there is none: no connection, less than 1 KB/s for 30 s, cut short. Cancelled.
  virtual absl::StatusOr<HttpReply> send(const HttpRequest& request, const std::string& service) = 0;
};

}  // namespace partita::runtime
