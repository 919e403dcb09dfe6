#include "runtime/objects/http_client.h"

#include <curl/curl.h>
#include <dlfcn.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/ascii.h"
#include "base/cat.h"
#include "base/status.h"

namespace partita::runtime {
namespace {

// What is used of libcurl, whose binary interface has been the same since 2006.
struct Curl {
  decltype(&::curl_global_init) global_init = nullptr;
  decltype(&::curl_easy_init) init = nullptr;
  decltype(&::curl_easy_setopt) set = nullptr;
  decltype(&::curl_easy_perform) perform = nullptr;
  decltype(&::curl_easy_getinfo) info = nullptr;
  decltype(&::curl_easy_reset) reset = nullptr;
  decltype(&::curl_easy_cleanup) cleanup = nullptr;
  decltype(&::curl_easy_strerror) error = nullptr;
  decltype(&::curl_slist_append) append = nullptr;
  decltype(&::curl_slist_free_all) free_all = nullptr;
};

absl::StatusOr<Curl> load_curl() {
  void* library = nullptr;
  for (const char* name : {"libcurl.so.4", "libcurl-gnutls.so.4"}) {
    if (library == nullptr) library = ::dlopen(name, RTLD_NOW | RTLD_LOCAL);
  }
  if (library == nullptr)
    return absl::FailedPreconditionError(
        cat("an object store needs libcurl on this host (Debian: libcurl4): ", ::dlerror()));
  Curl curl;
  bool whole = true;
  auto take = [&](auto& function, const char* name) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(::dlsym(library, name));
    whole &= function != nullptr;
  };
  take(curl.global_init, "curl_global_init");
  take(curl.init, "curl_easy_init");
  take(curl.set, "curl_easy_setopt");
  take(curl.perform, "curl_easy_perform");
  take(curl.info, "curl_easy_getinfo");
  take(curl.reset, "curl_easy_reset");
  take(curl.cleanup, "curl_easy_cleanup");
  take(curl.error, "curl_easy_strerror");
  take(curl.append, "curl_slist_append");
  take(curl.free_all, "curl_slist_free_all");
  if (!whole || curl.global_init(CURL_GLOBAL_DEFAULT) != CURLE_OK)
    return absl::FailedPreconditionError("this host's libcurl is none that an object store can be asked with");
  return curl;
}

const absl::StatusOr<Curl>& the_curl() {
  static const absl::StatusOr<Curl> curl = load_curl();
  return curl;
}

struct Transfer {
  const HttpRequest* request = nullptr;
  const Curl* curl = nullptr;
  CURL* handle = nullptr;
  Transfers* transfers = nullptr;
  HttpReply reply;
  size_t sent = 0;
  curl_off_t seen = 0;  // bytes of both ways
};

size_t take_body(char* data, size_t, size_t bytes, void* to) {
  constexpr size_t kLongestBody = 64 << 20;  // of what is no object
  auto& t = *static_cast<Transfer*>(to);
  long status = 0;
  t.curl->info(t.handle, CURLINFO_RESPONSE_CODE, &status);
  const std::span<std::byte> into = t.request->into;
  if (into.empty() || status >= 300) {
    if (t.reply.body.size() + bytes > kLongestBody) return 0;
    t.reply.body.append(data, bytes);
  } else {
    if (t.reply.received + bytes > into.size()) return 0;
    std::memcpy(into.data() + t.reply.received, data, bytes);
  }
  t.reply.received += bytes;
  return bytes;
}

size_t take_header(char* data, size_t, size_t bytes, void* to) {
  const std::string_view line(data, bytes);
  const size_t colon = line.find(':');
  if (colon == line.npos) return bytes;
  std::string name(line.substr(0, colon)), value(line.substr(colon + 1));
  absl::AsciiStrToLower(&name);
  absl::StripAsciiWhitespace(&value);
  static_cast<Transfer*>(to)->reply.headers[name] = std::move(value);
  return bytes;
}

size_t give_body(char* to, size_t, size_t room, void* from) {
  auto& t = *static_cast<Transfer*>(from);
  const size_t bytes = std::min(room, t.request->body.size() - t.sent);
  if (bytes > 0) std::memcpy(to, t.request->body.data() + t.sent, bytes);
  t.sent += bytes;
  return bytes;
}

int seek_body(void* from, curl_off_t offset, int origin) {
  if (origin != SEEK_SET) return CURL_SEEKFUNC_CANTSEEK;
  static_cast<Transfer*>(from)->sent = static_cast<size_t>(offset);
  return CURL_SEEKFUNC_OK;
}

int look_up(void* of, curl_off_t, curl_off_t received, curl_off_t, curl_off_t sent) {
  auto& t = *static_cast<Transfer*>(of);
  if (std::exchange(t.seen, received + sent) != received + sent) moved(t.transfers);
  return gives_up(t.transfers) ? 1 : 0;
}

class CurlClient : public HttpClient {
 public:
  CurlClient(const Curl& curl, CURL* handle, const S3Settings& settings, Transfers* transfers)
      : curl_(curl), handle_(handle), settings_(settings), transfers_(transfers) {}
  ~CurlClient() override { curl_.cleanup(handle_); }

  absl::StatusOr<HttpReply> send(const HttpRequest& request, const std::string& service) override {
    Transfer transfer{.request = &request, .curl = &curl_, .handle = handle_, .transfers = transfers_, .reply = {}};
    curl_.reset(handle_);  // the connection stays
    set_limits(transfer);
    set_method(request, transfer);
    std::unique_ptr<curl_slist, decltype(curl_.free_all)> headers(nullptr, curl_.free_all);
    for (const auto& [name, value] : request.headers)
      headers.reset(curl_.append(headers.release(), cat(name, ": ", value).c_str()));
    if (!settings_.key_id.empty()) {
      curl_.set(handle_, CURLOPT_AWS_SIGV4, cat("aws:amz:", settings_.region, ":", service).c_str());
      curl_.set(handle_, CURLOPT_USERNAME, settings_.key_id.c_str());
      curl_.set(handle_, CURLOPT_PASSWORD, settings_.secret.c_str());
      if (!settings_.token.empty())
        headers.reset(curl_.append(headers.release(), cat("x-amz-security-token: ", settings_.token).c_str()));
    }
    curl_.set(handle_, CURLOPT_HTTPHEADER, headers.get());
    const CURLcode code = curl_.perform(handle_);
    if (code == CURLE_ABORTED_BY_CALLBACK) return absl::CancelledError("told to give up");
    if (code != CURLE_OK) return absl::UnavailableError(cat(request.method, " ", request.url, ": ", curl_.error(code)));
    long status = 0;
    curl_.info(handle_, CURLINFO_RESPONSE_CODE, &status);
    transfer.reply.status = static_cast<int>(status);
    return std::move(transfer.reply);
  }

 private:
  void set_limits(Transfer& transfer) {
    curl_.set(handle_, CURLOPT_NOSIGNAL, 1L);
    curl_.set(handle_, CURLOPT_CONNECTTIMEOUT, 10L);
    curl_.set(handle_, CURLOPT_LOW_SPEED_LIMIT, 1024L);
    curl_.set(handle_, CURLOPT_LOW_SPEED_TIME, 30L);
    // A server that does not say whether it wants a body gets it at once.
    curl_.set(handle_, CURLOPT_EXPECT_100_TIMEOUT_MS, 1L);
    curl_.set(handle_, CURLOPT_NOPROGRESS, 0L);
    curl_.set(handle_, CURLOPT_XFERINFOFUNCTION, &look_up);
    curl_.set(handle_, CURLOPT_XFERINFODATA, &transfer);
    curl_.set(handle_, CURLOPT_WRITEFUNCTION, &take_body);
    curl_.set(handle_, CURLOPT_WRITEDATA, &transfer);
    curl_.set(handle_, CURLOPT_HEADERFUNCTION, &take_header);
    curl_.set(handle_, CURLOPT_HEADERDATA, &transfer);
    if (!settings_.ca_bundle.empty()) curl_.set(handle_, CURLOPT_CAINFO, settings_.ca_bundle.c_str());
  }

  void set_method(const HttpRequest& request, Transfer& transfer) {
    curl_.set(handle_, CURLOPT_URL, request.url.c_str());
    if (request.method == "HEAD") curl_.set(handle_, CURLOPT_NOBODY, 1L);
    if (request.method == "PUT") {
      curl_.set(handle_, CURLOPT_UPLOAD, 1L);
      curl_.set(handle_, CURLOPT_INFILESIZE_LARGE, static_cast<curl_off_t>(request.body.size()));
      curl_.set(handle_, CURLOPT_READFUNCTION, &give_body);
      curl_.set(handle_, CURLOPT_READDATA, &transfer);
      curl_.set(handle_, CURLOPT_SEEKFUNCTION, &seek_body);
      curl_.set(handle_, CURLOPT_SEEKDATA, &transfer);
    }
    if (request.method == "POST") {
      curl_.set(handle_, CURLOPT_POST, 1L);
      curl_.set(handle_, CURLOPT_POSTFIELDSIZE_LARGE, static_cast<curl_off_t>(request.body.size()));
      curl_.set(handle_, CURLOPT_POSTFIELDS,
                request.body.empty() ? "" : reinterpret_cast<const char*>(request.body.data()));
    }
    if (request.method == "DELETE") curl_.set(handle_, CURLOPT_CUSTOMREQUEST, "DELETE");
  }

  const Curl& curl_;
  CURL* const handle_;
  const S3Settings settings_;
  Transfers* const transfers_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<HttpClient>> HttpClient::open(const S3Settings& settings, Transfers* transfers) {
  if (!the_curl().ok()) return the_curl().status();
  const Curl& curl = *the_curl();
  CURL* handle = curl.init();
  if (handle == nullptr) return absl::ResourceExhaustedError("no memory for a connection");
  return std::make_unique<CurlClient>(curl, handle, settings, transfers);
}

}  // namespace partita::runtime
