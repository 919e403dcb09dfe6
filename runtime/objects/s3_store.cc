#include "runtime/objects/s3_store.h"

#include <algorithm>
#include <chrono>
#include <mutex>
#include <optional>
#include <thread>

#include "absl/strings/numbers.h"
#include "base/cat.h"
#include "base/checksum.h"
#include "base/quote.h"
#include "base/status.h"
#include "fmt/format.h"
#include "runtime/files/in_parallel.h"
#include "runtime/objects/http_client.h"

namespace partita::runtime {
namespace {

constexpr size_t kPart = 16 << 20, kMostParts = 9000;  // S3 takes 10,000
constexpr int kConnections = 4, kTries = 5;
constexpr auto kFirstPause = std::chrono::milliseconds(200);

// As the signature wants it: all but letters, digits and -._~ as %XX; `kept` stays, too.
std::string percent_encode(std::string_view text, std::string_view kept = "") {
  std::string out;
  for (const char c : text) {
    const bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
                       c == '.' || c == '_' || c == '~' || kept.find(c) != kept.npos;
    if (plain) {
      out += c;
    } else {
      append(out, fmt::format("%{:02X}", static_cast<unsigned char>(c)));
    }
  }
  return out;
}

std::string percent_decode(std::string_view text) {
  std::string out;
  for (size_t k = 0; k < text.size(); ++k) {
    uint32_t value = 0;
    if (text[k] == '%' && k + 2 < text.size() && absl::SimpleHexAtoi(std::string(text.substr(k + 1, 2)), &value)) {
      out += static_cast<char>(value);
      k += 2;
    } else {
      out += text[k] == '+' ? ' ' : text[k];
    }
  }
  return out;
}

// What stands between <tag> and </tag>, from `at` on, which is moved behind it. The protocol's answers have no
// attributes where we look, and names come percent-encoded.
std::optional<std::string_view> element(std::string_view xml, std::string_view tag, size_t& at) {
  const std::string open = cat("<", tag, ">"), close = cat("</", tag, ">");
  const size_t begin = xml.find(open, at), end = begin == xml.npos ? begin : xml.find(close, begin);
  if (end == xml.npos) return std::nullopt;
  at = end + close.size();
  return xml.substr(begin + open.size(), end - begin - open.size());
}

std::string element(std::string_view xml, std::string_view tag) {
  size_t at = 0;
  return std::string(element(xml, tag, at).value_or(""));
}

bool worth_another_try(const absl::StatusOr<HttpReply>& reply) {
  if (!reply.ok()) return absl::IsUnavailable(reply.status());
  return reply->status >= 500 || reply->status == 429 || reply->status == 408;
}

class S3Store : public ObjectStore {
 public:
  S3Store(std::string place, std::string bucket, std::string prefix, S3Settings settings, Transfers* transfers)
      : place_(std::move(place)), prefix_(std::move(prefix)), settings_(std::move(settings)), transfers_(transfers) {
    // Amazon has a host for each bucket, but for names with dots, of which no certificate is; others have paths.
    if (settings_.endpoint.empty() && bucket.find('.') == bucket.npos) {
      bucket_url_ = cat("https://", bucket, ".s3.", settings_.region, ".amazonaws.com");
    } else if (settings_.endpoint.empty()) {
      bucket_url_ = cat("https://s3.", settings_.region, ".amazonaws.com/", bucket);
    } else {
      bucket_url_ = cat(settings_.endpoint, "/", bucket);
    }
  }

  absl::StatusOr<std::vector<ObjectInfo>> list(const std::string& prefix) override {
    std::vector<ObjectInfo> found;
    std::string next;
    do {
      const std::string query = cat(next.empty() ? "" : cat("continuation-token=", percent_encode(next), "&"),
                                    "encoding-type=url&list-type=2&prefix=", percent_encode(prefix_ + prefix));
      PARTITA_ASSIGN_OR_RETURN(const HttpReply reply,
                               ask({.url = cat(bucket_url_, "/?", query), .body = {}}, cat("list ", place_)));
      // Any other page with code 200, as a proxy's, would be a place without a checkpoint.
      if (reply.body.find("<ListBucketResult") == reply.body.npos ||
          reply.body.find("</ListBucketResult>") == reply.body.npos)
        return not_understood(reply, "no whole ListBucketResult");
      size_t at = 0;
      while (const auto entry = element(reply.body, "Contents", at)) {
        ObjectInfo info{percent_decode(element(*entry, "Key"))};
        if (!info.name.starts_with(prefix_) || !absl::SimpleAtoi(element(*entry, "Size"), &info.bytes))
          return not_understood(reply, "an entry without a size, or of another prefix");
        info.name.erase(0, prefix_.size());
        found.push_back(std::move(info));
      }
      const bool more = element(reply.body, "IsTruncated") == "true";
      const std::string token = more ? element(reply.body, "NextContinuationToken") : "";
      if (more && (token.empty() || token == next)) return not_understood(reply, "a part without a way to the next");
      next = token;
    } while (!next.empty());
    std::sort(found.begin(), found.end(), [](const ObjectInfo& a, const ObjectInfo& b) { return a.name < b.name; });
    return found;
  }

  absl::Status put(const std::string& name, std::span<const std::byte> bytes) override {
    if (bytes.size() > kPart) return put_parts(name, bytes);
    return ask({.method = "PUT", .url = url_of(name), .body = bytes}, what("write", name)).status();
  }

  absl::Status read(const std::string& name, int64_t offset, std::span<std::byte> out) override {
    if (out.empty()) return absl::OkStatus();
    HttpRequest request{.url = url_of(name), .body = {}, .into = out};
    request.headers = {{"range", cat("bytes=", offset, "-", offset + static_cast<int64_t>(out.size()) - 1)}};
    PARTITA_ASSIGN_OR_RETURN(const HttpReply reply, ask(request, what("read", name)));
    if (reply.received == out.size()) return absl::OkStatus();
    return absl::UnavailableError(cat(what("read", name), ": got ", reply.received, " of ", out.size(), " bytes"));
  }

  absl::Status remove(const std::string& name) override {
    const absl::Status s = ask({.method = "DELETE", .url = url_of(name), .body = {}}, what("remove", name)).status();
    return absl::IsNotFound(s) ? absl::OkStatus() : s;
  }

  const std::string& place() const override { return place_; }

 private:
  std::string url_of(const std::string& name) const {
    return cat(bucket_url_, "/", percent_encode(prefix_ + name, "/"));
  }
  absl::Status not_understood(const HttpReply& reply, std::string_view found) const {
    return absl::InvalidArgumentError(cat("cannot list ", place_, ": expected the listing of an S3 bucket, found ",
                                          found, " in an answer that begins with ", quote(reply.body.substr(0, 60)),
                                          "; look at AWS_ENDPOINT_URL and at proxies on the way"));
  }
  std::string what(const char* verb, const std::string& name) const { return cat(verb, " ", place_, "/", name); }

  // A request's good answer, after as many tries as it takes.
  absl::StatusOr<HttpReply> ask(HttpRequest request, const std::string& what) {
    request.headers.emplace_back("x-amz-content-sha256", sha256_hex(request.body));
    PARTITA_ASSIGN_OR_RETURN(std::unique_ptr<HttpClient> client, take_client());
    absl::StatusOr<HttpReply> reply = absl::UnknownError("");
    auto pause = kFirstPause;
    for (int k = 1;; ++k) {
      reply = client->send(request, "s3");
      if (!worth_another_try(reply) || k == kTries) break;
      if (!wait(pause)) return absl::CancelledError("told to give up");
      pause *= 2;
    }
    give_back(std::move(client));
    if (!reply.ok()) return with_context(reply.status(), cat("cannot ", what));
    // The end of an upload in parts may be refused after the answer has begun.
    const bool refused = reply->status >= 300 || reply->body.find("<Error>") != std::string::npos;
    if (!refused) {
      moved(transfers_);
      return reply;
    }
    const std::string code = element(reply->body, "Code"), message = element(reply->body, "Message");
    const std::string text =
        cat("cannot ", what, ": the server says ", reply->status, code.empty() ? "" : cat(" ", code),
            message.empty() ? "" : cat(": ", message),
            reply->status == 403 && settings_.key_id.empty() ? "; there are no credentials (AWS_ACCESS_KEY_ID)" : "");
    if (reply->status == 404) return absl::NotFoundError(text);
    if (worth_another_try(reply) || reply->status < 300) return absl::UnavailableError(text);
    return absl::InvalidArgumentError(text);
  }

  // False where it is over before.
  bool wait(std::chrono::milliseconds time) const {
    const auto end = std::chrono::steady_clock::now() + time;
    while (std::chrono::steady_clock::now() < end) {
      if (gives_up(transfers_)) return false;
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    return true;
  }

  absl::Status put_parts(const std::string& name, std::span<const std::byte> bytes) {
    const size_t part = std::max(kPart, (bytes.size() + kMostParts - 1) / kMostParts);
    const size_t parts = (bytes.size() + part - 1) / part;
    PARTITA_ASSIGN_OR_RETURN(
        const HttpReply begun,
        ask({.method = "POST", .url = cat(url_of(name), "?uploads="), .body = {}}, what("begin to write", name)));
    const std::string id = percent_encode(element(begun.body, "UploadId"));
    std::vector<std::string> tags(parts);
    std::atomic<bool> failed = false;
    std::mutex mutex;
    absl::Status status;
    in_parallel(kConnections, parts, [&](size_t k) {
      if (failed) return;
      auto reply = ask({.method = "PUT",
                        .url = cat(url_of(name), "?partNumber=", k + 1, "&uploadId=", id),
                        .body = bytes.subspan(k * part, std::min(part, bytes.size() - k * part))},
                       what("write", name));
      if (reply.ok()) tags[k] = reply->headers["etag"];
      if (reply.ok()) return;
      failed = true;
      std::lock_guard lock(mutex);
      status.Update(reply.status());
    });
    const std::string upload = cat(url_of(name), "?uploadId=", id);
    if (status.ok()) {
      std::string list = "<CompleteMultipartUpload>";
      for (size_t k = 0; k < parts; ++k)
        append(list, "<Part><PartNumber>", k + 1, "</PartNumber><ETag>", tags[k], "</ETag></Part>");
      list += "</CompleteMultipartUpload>";
      status = ask({.method = "POST",
                    .url = upload,
                    .headers = {{"content-type", "application/xml"}},
                    .body = as_byte_span(list)},
                   what("finish writing", name))
                   .status();
    }
    // Parts that no object is made of would be kept, and paid for.
    if (!status.ok()) ask({.method = "DELETE", .url = upload, .body = {}}, what("give up", name)).IgnoreError();
    return status;
  }

  absl::StatusOr<std::unique_ptr<HttpClient>> take_client() {
    std::lock_guard lock(mutex_);
    if (idle_.empty()) return HttpClient::open(settings_, transfers_);
    std::unique_ptr<HttpClient> client = std::move(idle_.back());
    idle_.pop_back();
    return client;
  }
  void give_back(std::unique_ptr<HttpClient> client) {
    std::lock_guard lock(mutex_);
    idle_.push_back(std::move(client));
  }

  const std::string place_, prefix_;  // prefix_: "" or with a slash at its end
  const S3Settings settings_;
  Transfers* const transfers_;
  std::string bucket_url_;
  std::mutex mutex_;
  std::vector<std::unique_ptr<HttpClient>> idle_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<ObjectStore>> open_s3_store(const std::string& place, const EnvironmentMap& environment,
                                                           Transfers* transfers) {
  std::string path = place.substr(5);
  while (path.ends_with('/')) path.pop_back();
  const size_t slash = path.find('/');
  const std::string bucket = path.substr(0, slash);
  if (bucket.empty()) return absl::InvalidArgumentError(cat(quote(place), ": expected s3://BUCKET/PREFIX"));
  PARTITA_ASSIGN_OR_RETURN(S3Settings settings, read_s3_settings(environment));
  // Whether there is a libcurl is told now, and not hours later.
  PARTITA_RETURN_IF_ERROR(HttpClient::open(settings, transfers).status());
  return std::make_unique<S3Store>(cat("s3://", path), bucket, slash == path.npos ? "" : path.substr(slash + 1) + "/",
                                   std::move(settings), transfers);
}

}  // namespace partita::runtime
