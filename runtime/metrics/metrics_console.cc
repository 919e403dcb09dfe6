#include <algorithm>
#include <chrono>
#include <cmath>

#include "base/cat.h"
#include "fmt/format.h"
#include "runtime/metrics/metrics.h"
#include "runtime/metrics/short_count.h"

namespace partita::runtime {
namespace {

std::string short_bytes(double bytes) {
  return bytes >= 1073741824.0 ? fmt::format("{:.2f} GiB", bytes / 1073741824.0)
                               : fmt::format("{:.1f} MiB", bytes / 1048576.0);
}

std::string short_time(double seconds) {
  if (seconds < 1) return fmt::format("{:.1f} ms", seconds * 1e3);
  if (seconds < 60) return fmt::format("{:.2f} s", seconds);
  const int64_t whole = static_cast<int64_t>(std::min(seconds, 1e9));
  return whole < 3600 ? fmt::format("{}:{:02}", whole / 60, whole % 60)
                      : fmt::format("{}:{:02}:{:02}", whole / 3600, whole / 60 % 60, whole % 60);
}

// "█████▌               28 %"
std::string progress_bar(int64_t done, int64_t total) {
  constexpr int kCells = 20, kParts = 8;
  constexpr std::string_view kPartly[kParts] = {"", "▏", "▎", "▍", "▌", "▋", "▊", "▉"};
  const double share = std::clamp(static_cast<double>(done) / static_cast<double>(total), 0.0, 1.0);
  const int parts = static_cast<int>(share * kCells * kParts), whole = parts / kParts, rest = parts % kParts;
  std::string bar;
  for (int k = 0; k < whole; ++k) bar += "█";
  bar += kPartly[rest];
  bar.append(static_cast<size_t>(kCells - whole - (rest > 0 ? 1 : 0)), ' ');
  return fmt::format("{} {:3.0f} %", bar, 100 * share);
}

// A NaN whose sign, which says nothing, is not shown.
double shown(double value) { return std::isnan(value) ? std::abs(value) : value; }

// Parts of a line, each field with the two spaces in front of it but for the first.
std::string progress(const StepMetrics& m, int64_t total_steps) {
  std::string line = fmt::format("step {}", m.step + 1);
  if (total_steps > 0) append(line, "/", total_steps);
  if (m.loss) append(line, fmt::format("  loss {:.4f}", shown(*m.loss)));
  if (m.evaluation_loss) append(line, fmt::format("  eval {:.4f}", shown(*m.evaluation_loss)));
  for (const auto& [name, value] : m.named) {
    if (value) append(line, fmt::format("  {} {:.4g}", name, shown(*value)));
  }
  return line;
}

std::string update(const StepMetrics& m) {
  std::string line;
  if (m.lr) append(line, fmt::format("  lr {:.3g}", *m.lr));
  if (m.grad_norm) append(line, fmt::format("  grad {:.3g}", shown(*m.grad_norm)));
  append(line, "  ", short_time(m.seconds));
  return line;
}

std::string rate(const StepMetrics& m) {
  if (m.tokens_per_second) return cat("  ", short_count(*m.tokens_per_second), " tok/s");
  if (m.samples_per_second) return cat("  ", short_count(*m.samples_per_second), " samples/s");
  return "";
}

std::string rest(const StepMetrics& m) {
  std::string line;
  if (m.length) append(line, "  length ", *m.length);
  if (m.padding) append(line, fmt::format("  padding {:.1f}%", *m.padding * 100));
  if (m.mfu) {
    append(line, fmt::format("  mfu {:.1f}%", *m.mfu * 100));
  } else if (m.flops_per_second) {
    append(line, "  ", short_count(*m.flops_per_second), "FLOP/s");
  }
  if (m.input_stall_seconds && m.seconds > 0 && *m.input_stall_seconds > 0.01 * m.seconds) {
    append(line, fmt::format("  input wait {:.0f}%", 100 * *m.input_stall_seconds / m.seconds));
  }
  if (m.communication_stall_seconds && m.seconds > 0 && *m.communication_stall_seconds > 0.01 * m.seconds) {
    append(line, fmt::format("  wait {:.0f}%", 100 * *m.communication_stall_seconds / m.seconds));
  }
  if (m.memory_bytes) append(line, "  ", short_bytes(static_cast<double>(*m.memory_bytes)));
  if (m.loss_scale && *m.loss_scale != 1) append(line, fmt::format("  scale {:.6g}", *m.loss_scale));
  if (m.dollars) append(line, fmt::format("  ${:.2f}", *m.dollars));
  for (const auto& [name, value] : m.extra) {
    if (!name.starts_with("gpu_") && !name.starts_with("wait_"))
      append(line, fmt::format("  {} {:.4g}", name, value));  // sensors are for files
  }
  if (m.skipped) append(line, "  (update skipped)");
  return line;
}

class ConsoleSink : public MetricsSink {
 public:
  ConsoleSink(std::FILE* out, const ConsoleOptions& options) : out_(out), options_(options) {}

  absl::Status write(const StepMetrics& metrics) override {
    if (options_.quiet) return absl::OkStatus();
    const int64_t left = options_.total_steps - metrics.step - 1;
    if (options_.bar) {
      draw(metrics, std::max<int64_t>(left, 0));
      return absl::OkStatus();
    }
    const bool last = options_.total_steps > 0 && left == 0;
    if (first_ || last || (metrics.step + 1) % std::max<int64_t>(1, options_.every) == 0) {
      std::fprintf(out_, "%s\n", console_line(metrics, options_.total_steps).c_str());
      std::fflush(out_);
    }
    first_ = false;
    return absl::OkStatus();
  }

  absl::Status close() override {
    if (open_line_) std::fputc('\n', out_);
    open_line_ = false;
    std::fflush(out_);
    return absl::OkStatus();
  }

 private:
  // What matters most stands where a narrow terminal shows it.
  void draw(const StepMetrics& m, int64_t left) {
    // The rest of the way is judged by a moving average, so that one slow step does not shake it.
    average_ = average_ == 0 ? m.seconds : 0.9 * average_ + 0.1 * m.seconds;
    const int64_t total = options_.total_steps;
    std::string line = progress(m, total) + rate(m);
    if (total > 0) {
      line =
          cat(progress_bar(m.step + 1, total), "  ", line, "  ETA ", short_time(average_ * static_cast<double>(left)));
    }
    append(line, update(m), rest(m));
    // Clears to the end of the line; a long line would wrap and could not be drawn over, so wrapping is off meanwhile.
    std::fprintf(out_, "\r\x1b[?7l%s\x1b[K\x1b[?7h", line.c_str());
    std::fflush(out_);
    open_line_ = true;
  }

  std::FILE* out_;
  ConsoleOptions options_;
  double average_ = 0;
  bool first_ = true, open_line_ = false;
};

}  // namespace

std::string console_line(const StepMetrics& m, int64_t total_steps) {
  return cat(progress(m, total_steps), update(m), rate(m), rest(m));
}

std::unique_ptr<MetricsSink> make_console_sink(std::FILE* out, const ConsoleOptions& options) {
  return std::make_unique<ConsoleSink>(out, options);
}

}  // namespace partita::runtime
