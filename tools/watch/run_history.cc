#include "tools/watch/run_history.h"

#include <civetweb.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <limits>
#include <memory>
#include <optional>
#include <sstream>

#include "absl/strings/numbers.h"
#include "base/cat.h"
#include "base/quote.h"
#include "base/status.h"
#include "nlohmann/json.hpp"

namespace partita {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr std::string_view kPrefix = "partita_";

class FileSource : public RunSource {
 public:
  explicit FileSource(std::string path) : path_(std::move(path)) {}
  const std::string& name() const override { return path_; }

  absl::Status read(RunHistory& history) override {
    std::error_code ec;
    const auto size = static_cast<std::streamoff>(std::filesystem::file_size(path_, ec));
    if (ec) return absl::UnavailableError(cat(quote(path_, 1000), ": ", ec.message()));
    if (size < at_) history = {}, at_ = 0, number_ = 0;  // a new run writes it from the beginning
    std::ifstream file(path_);
    file.seekg(at_);
    for (std::string line; std::getline(file, line) && !file.eof();) {  // a line without its end is still written
      at_ += static_cast<std::streamoff>(line.size()) + 1;
      ++number_;
      if (!line.empty())
        PARTITA_RETURN_IF_ERROR(with_context(history.add_line(line), cat(quote(path_, 1000), ":", number_)));
    }
    return absl::OkStatus();
  }

 private:
  std::string path_;
  std::streamoff at_ = 0;
  int64_t number_ = 0;
};

class HttpSource : public RunSource {
 public:
  HttpSource(std::string url, std::string host, int port) : url_(std::move(url)), host_(std::move(host)), port_(port) {}
  const std::string& name() const override { return url_; }

  absl::Status read(RunHistory& history) override {
    std::array<char, 256> why = {};
    const std::unique_ptr<mg_connection, void (*)(mg_connection*)> connection(
        mg_download(host_.c_str(), port_, 0, why.data(), why.size(), "GET /metrics HTTP/1.0\r\nHost: %s\r\n\r\n",
                    host_.c_str()),
        mg_close_connection);
    if (!connection) return absl::UnavailableError(cat(url_, ": ", why.data()));
    std::string text;
    std::array<char, 8192> buffer;
    for (int n; (n = mg_read(connection.get(), buffer.data(), buffer.size())) > 0 && text.size() < kMost;)
      text.append(buffer.data(), static_cast<size_t>(n));
    return history.add_scrape(text);
  }

 private:
  static constexpr size_t kMost = size_t{16} << 20;
  std::string url_, host_;
  int port_;
};

}  // namespace

void RunHistory::add(std::map<std::string, double> values, bool finite) {
  const auto step = values.find("step");
  if (step == values.end()) return;
  const auto number = static_cast<int64_t>(step->second);
  while (!losses_.empty() && losses_.back().step >= number) {
    not_finite_ -= std::isnan(losses_.back().loss);
    losses_.pop_back();
  }
  const auto loss = values.find("loss");
  if (loss != values.end() || !finite) losses_.push_back({number, finite ? loss->second : kNan});
  not_finite_ += !finite;
  if (const auto at = values.find("evaluation_loss"); at != values.end()) evaluation_loss_ = at->second;
  newest_ = std::move(values);
}

absl::Status RunHistory::add_line(std::string_view line) {
  const auto j = nlohmann::json::parse(line, nullptr, false);
  if (!j.is_object() || !j.contains("step"))
    return absl::InvalidArgumentError("expected a JSON object with a step, as `--metrics FILE.jsonl` writes them");
  std::map<std::string, double> values;
  for (const auto& [name, value] : j.items()) {
    if (value.is_number()) values[name] = value.get<double>();
    if (name == "rank_seconds" && value.is_array()) {
      rank_seconds_.clear();
      for (const auto& v : value) rank_seconds_.push_back(v.is_number() ? v.get<double>() : kNan);
    }
  }
  add(std::move(values), !j.contains("loss") || j["loss"].is_number());
  return absl::OkStatus();
}

absl::Status RunHistory::add_scrape(std::string_view text) {
  std::map<std::string, double> values;
  std::vector<double> ranks;
  bool finite = true;
  std::istringstream lines{std::string(text)};
  for (std::string line; std::getline(lines, line);) {
    const size_t space = line.rfind(' ');
    if (!line.starts_with(kPrefix) || space == line.npos) continue;
    const double value = std::strtod(line.c_str() + space, nullptr);
    const std::string name = line.substr(kPrefix.size(), space - kPrefix.size());
    if (name.starts_with("rank_seconds{")) {
      ranks.push_back(value);
    } else if (std::isfinite(value)) {
      values[name] = value;
    } else if (name == "loss") {
      finite = false;
    }
  }
  if (!values.empty() && !losses_.empty() && values["step"] == static_cast<double>(losses_.back().step))
    return absl::OkStatus();
  if (!ranks.empty()) rank_seconds_ = std::move(ranks);
  add(std::move(values), finite);
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<RunSource>> open_run_source(const std::string& where) {
  namespace fs = std::filesystem;
  if (constexpr std::string_view kHttp = "http://"; where.starts_with(kHttp)) {
    std::string host = where.substr(kHttp.size());
    host.resize(std::min(host.find('/'), host.size()));
    const size_t colon = host.rfind(':');
    int port = 0;
    if (colon == host.npos || colon == 0 || !absl::SimpleAtoi(host.substr(colon + 1), &port) || port < 1 ||
        port > 65535)
      return absl::InvalidArgumentError(
          cat(quote(where, 1000), ": expected http://HOST:PORT, as --listen-metrics was given"));
    return std::make_unique<HttpSource>(where, host.substr(0, colon), port);
  }
  std::error_code ec;
  if (!fs::is_directory(where, ec)) {
    if (!fs::exists(where, ec)) return absl::NotFoundError(cat(quote(where, 1000), ": no such file or folder"));
    return std::make_unique<FileSource>(where);
  }
  std::optional<fs::directory_entry> newest;
  for (const fs::directory_entry& file : fs::directory_iterator(where, ec)) {
    if (file.path().extension() == ".jsonl" && (!newest || file.last_write_time(ec) > newest->last_write_time(ec)))
      newest = file;
  }
  if (!newest)
    return absl::NotFoundError(
        cat(quote(where, 1000), ": expected a .jsonl file of `--metrics` in this folder, found none"));
  return std::make_unique<FileSource>(newest->path().string());
}

}  // namespace partita
