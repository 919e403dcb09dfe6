#include "runtime/metrics/metrics.h"

#include <sys/stat.h>

#include <cerrno>
#include <chrono>
#include <cmath>
#include <map>

#include "absl/strings/ascii.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "base/atomic_file.h"
#include "base/cat.h"
#include "base/mapped_file.h"
#include "base/quote.h"
#include "base/status.h"
#include "fmt/format.h"
#include "nlohmann/json.hpp"

namespace partita::runtime {
namespace {

// Every fixed field and every named one, unset ones as nothing.
std::vector<std::pair<std::string, std::optional<double>>> all_values(const StepMetrics& m) {
  std::optional<double> memory, length;
  if (m.length) length = static_cast<double>(*m.length);
  if (m.memory_bytes) memory = static_cast<double>(*m.memory_bytes);
  std::vector<std::pair<std::string, std::optional<double>>> out = {
      {"step", static_cast<double>(m.step)},
      {"loss", m.loss},
      {"lr", m.lr},
      {"grad_norm", m.grad_norm},
      {"seconds", m.seconds},
      {"samples_per_second", m.samples_per_second},
      {"tokens_per_second", m.tokens_per_second},
      {"flops_per_second", m.flops_per_second},
      {"mfu", m.mfu},
      {"dollars", m.dollars},
      {"input_stall_seconds", m.input_stall_seconds},
      {"communication_stall_seconds", m.communication_stall_seconds},
      {"checkpoint_stall_seconds", m.checkpoint_stall_seconds},
      {"memory_bytes", memory},
      {"loss_scale", m.loss_scale},
      {"evaluation_loss", m.evaluation_loss},
      {"length", length},
      {"padding", m.padding},
      {"skipped", m.skipped ? 1.0 : 0.0}};
  out.insert(out.end(), m.named.begin(), m.named.end());
  return out;
}

// The shortest decimal that reads back to the same double; whole numbers without a fraction.
std::string number_text(double value) {
  return std::abs(value) < 9e15 && value == std::floor(value) && !std::signbit(value)
             ? fmt::format("{}", static_cast<int64_t>(value))
             : fmt::format("{}", value);
}

// Where a file was cut off in the middle of a line, as on a full disk, what there is of that line goes: its step is
// taken again. Returns the first line without its end.
absl::StatusOr<std::string> repair(const std::string& path) {
  struct stat info;
  if (::stat(path.c_str(), &info) != 0 || !S_ISREG(info.st_mode)) return "";
  PARTITA_ASSIGN_OR_RETURN(const MappedFile file, MappedFile::open(path));
  const std::string_view text = file.text();
  const size_t whole = text.rfind('\n') + 1;  // 0 where there is none
  std::string first(text.substr(0, whole > 0 ? text.find('\n') : 0));
  if (whole < text.size() && ::truncate(path.c_str(), static_cast<off_t>(whole)) != 0)
    return file_error("write metrics to", path, errno);
  return first;
}

// A text file that grows by whole lines.
class LineFile {
 public:
  static absl::StatusOr<LineFile> open(const std::string& path, bool append) {
    std::string first;
    if (append) {
      PARTITA_ASSIGN_OR_RETURN(first, repair(path));
    }
    std::FILE* file = std::fopen(path.c_str(), append ? "ae" : "we");
    if (file == nullptr) return file_error("write metrics to", path, errno);
    return LineFile(path, file, std::move(first));
  }
  const std::string& path() const { return path_; }
  // That it had when it was opened.
  const std::string& first_line() const { return first_line_; }
  absl::Status write(const std::string& line) {
    if (std::fwrite(line.data(), 1, line.size(), file_.get()) == line.size() && std::fflush(file_.get()) == 0)
      return absl::OkStatus();
    return file_error("write metrics to", path_, errno);
  }

 private:
  struct Close {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };
  LineFile(std::string path, std::FILE* file, std::string first_line)
      : path_(std::move(path)), first_line_(std::move(first_line)), file_(file) {}
  std::string path_, first_line_;
  std::unique_ptr<std::FILE, Close> file_;
};

class CsvSink : public MetricsSink {
 public:
  explicit CsvSink(LineFile file) : file_(std::move(file)), header_(file_.first_line()) {}
  absl::Status write(const StepMetrics& metrics) override {
    auto values = all_values(metrics);
    const std::string names = absl::StrJoin(values, ",", [](std::string* out, const auto& v) { *out += v.first; });
    if (header_.empty()) {
      header_ = names;
      PARTITA_RETURN_IF_ERROR(file_.write(names + "\n"));
    }
    if (names != header_) PARTITA_RETURN_IF_ERROR(put_in_order(values));
    return file_.write(cat(absl::StrJoin(values, ",",
                                         [](std::string* out, const auto& v) {
                                           if (v.second) *out += number_text(*v.second);
                                         }),
                           "\n"));
  }

 private:
  // That of a file's own header, which another program may have begun.
  absl::Status put_in_order(std::vector<std::pair<std::string, std::optional<double>>>& values) const {
    std::map<std::string, std::optional<double>> others(values.begin(), values.end());
    values.clear();
    std::vector<std::string> missing, more;
    const std::vector<std::string> columns = absl::StrSplit(header_, ',');
    for (const std::string& name : columns) {
      const auto at = others.find(name);
      if (at == others.end()) {
        missing.push_back(name);
        continue;
      }
      values.emplace_back(*at);
      others.erase(at);
    }
    for (const auto& [name, value] : others) more.push_back(name);
    if (missing.empty() && more.empty()) return absl::OkStatus();
    return absl::InvalidArgumentError(
        cat("metrics file ", quote(file_.path(), 1000), " has other columns than this run's metrics: ",
            missing.empty() ? "" : cat(quote_list(missing), missing.size() == 1 ? " is" : " are", " in the file alone"),
            missing.empty() || more.empty() ? "" : ", ",
            more.empty() ? "" : cat(quote_list(more), more.size() == 1 ? " is" : " are", " in the run alone"),
            "; go on with --metrics and the name of another file"));
  }

  LineFile file_;
  std::string header_;
};

class JsonLinesSink : public MetricsSink {
 public:
  explicit JsonLinesSink(LineFile file) : file_(std::move(file)) {}
  absl::Status write(const StepMetrics& metrics) override {
    std::string line = "{";
    auto add = [&](const std::string& name, const std::optional<double>& value) {
      append(line, line.size() > 1 ? ", " : "",
             nlohmann::json(name).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace), ": ",
             value && std::isfinite(*value) ? number_text(*value) : "null");
    };
    for (const auto& [name, value] : all_values(metrics)) {
      if (name == "skipped")
        append(line, ", \"skipped\": ", metrics.skipped ? "true" : "false");
      else if (value || name == "loss" || name == "grad_norm")
        add(name, value);
    }
    for (const auto& [name, value] : metrics.extra) add(name, value);
    if (!metrics.rank_seconds.empty())
      append(line, ", \"rank_seconds\": ", nlohmann::json(metrics.rank_seconds).dump());
    return file_.write(line + "}\n");
  }

 private:
  LineFile file_;
};

class PrometheusSink : public MetricsSink {
 public:
  using Clock = std::chrono::steady_clock;
  PrometheusSink(std::string path, std::string labels, double interval)
      : path_(std::move(path)), labels_(std::move(labels)), interval_(interval) {}

  absl::Status write(const StepMetrics& metrics) override {
    text_.clear();
    for (const auto& [name, value] : metric_values(metrics)) {
      const std::string metric = prometheus_name(name);
      const std::string number = std::isnan(value)   ? "NaN"
                                 : std::isinf(value) ? (value > 0 ? "+Inf" : "-Inf")
                                                     : number_text(value);
      append(text_, "# TYPE ", metric, " gauge\n", metric, labels_, " ", number, "\n");
    }
    const Clock::time_point now = Clock::now();
    if (written_ && std::chrono::duration<double>(now - *written_).count() < interval_) return absl::OkStatus();
    written_ = now;
    return flush();
  }
  absl::Status close() override { return flush(); }

 private:
  absl::Status flush() {
    if (text_.empty()) return absl::OkStatus();
    const std::string text = std::exchange(text_, "");
    return write_file_atomically(path_, text, Durable::kNo);
  }
  std::string path_, labels_, text_;
  double interval_;
  std::optional<Clock::time_point> written_;
};

}  // namespace

std::vector<std::pair<std::string, double>> metric_values(const StepMetrics& metrics) {
  std::vector<std::pair<std::string, double>> out;
  for (const auto& [name, value] : all_values(metrics)) {
    if (value) out.emplace_back(name, *value);
  }
  out.insert(out.end(), metrics.extra.begin(), metrics.extra.end());
  return out;
}

std::string prometheus_name(std::string_view name) {
  std::string metric = "partita_";
  for (char c : name) metric += absl::ascii_isalnum(static_cast<unsigned char>(c)) ? c : '_';
  return metric;
}

absl::StatusOr<std::unique_ptr<MetricsSink>> make_csv_sink(const std::string& path, bool append) {
  PARTITA_ASSIGN_OR_RETURN(LineFile file, LineFile::open(path, append));
  return std::make_unique<CsvSink>(std::move(file));
}

absl::StatusOr<std::unique_ptr<MetricsSink>> make_json_lines_sink(const std::string& path, bool append) {
  PARTITA_ASSIGN_OR_RETURN(LineFile file, LineFile::open(path, append));
  return std::make_unique<JsonLinesSink>(std::move(file));
}

absl::StatusOr<std::unique_ptr<MetricsSink>> make_prometheus_sink(
    const std::string& path, std::vector<std::pair<std::string, std::string>> labels, double interval_seconds) {
  std::string text;
  for (const auto& [name, value] : labels) {
    bool good = !name.empty() && !absl::ascii_isdigit(static_cast<unsigned char>(name[0])) && is_utf8(value);
    for (char c : name) good = good && (absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '_');
    if (!good)
      return absl::InvalidArgumentError(cat("Prometheus label ", quote(name), " = ", quote(value), " is not allowed"));
    append(text, text.empty() ? "{" : ",", name, "=\"",
           absl::StrReplaceAll(value, {{"\\", "\\\\"}, {"\"", "\\\""}, {"\n", "\\n"}}), "\"");
  }
  if (!text.empty()) text += "}";
  // Made at once, so that a path that cannot be written is an error now and not after the first step.
  PARTITA_RETURN_IF_ERROR(write_file_atomically(path, "", Durable::kNo));
  return std::make_unique<PrometheusSink>(path, std::move(text), interval_seconds);
}

absl::StatusOr<std::unique_ptr<MetricsSink>> open_metrics_sink(const std::string& path, bool append) {
  struct stat info;
  const bool named = path.find('.', path.rfind('/') == path.npos ? 0 : path.rfind('/')) != path.npos;
  if (!named || path.ends_with("/") || (::stat(path.c_str(), &info) == 0 && S_ISDIR(info.st_mode)))
    return make_tensorboard_sink(path);
  if (path.ends_with(".csv")) return make_csv_sink(path, append);
  if (path.ends_with(".jsonl") || path.ends_with(".json")) return make_json_lines_sink(path, append);
  if (path.ends_with(".prom")) return make_prometheus_sink(path);
  return absl::InvalidArgumentError(cat("metrics file ", quote(path, 1000),
                                        ": its kind is not known; expected .csv, .jsonl, .prom, or a folder for "
                                        "TensorBoard (a name without a dot, or ending in /)"));
}

absl::Status MetricsFanOut::write(const StepMetrics& metrics) {
  absl::Status first;
  std::erase_if(sinks_, [&](const std::unique_ptr<MetricsSink>& sink) {
    const absl::Status written = sink->write(metrics);
    if (!absl::IsResourceExhausted(written)) {
      first.Update(written);
      return false;
    }
    std::fprintf(stderr, "warning: %s; training goes on, without these metrics from step %lld on\n",
                 std::string(written.message()).c_str(), static_cast<long long>(metrics.step));
    return true;
  });
  return first;
}

absl::Status MetricsFanOut::close() {
  absl::Status first;
  for (const auto& sink : sinks_) first.Update(sink->close());
  return first;
}

}  // namespace partita::runtime
