#include "tools/watch/screen.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <optional>

#include "base/cat.h"
#include "fmt/format.h"
#include "runtime/metrics/short_count.h"

namespace partita {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr int kLabel = 10;  // columns left of the curve

std::optional<double> value(const RunHistory& run, const char* name) {
  const auto at = run.newest().find(name);
  return at == run.newest().end() ? std::nullopt : std::optional(at->second);
}

std::string seconds_text(double s) { return s < 1 ? fmt::format("{:.3g} ms", s * 1e3) : fmt::format("{:.3g} s", s); }

// The mean of each column's losses; of columns without any what comes before them.
std::vector<double> columns_of(const std::vector<RunHistory::Point>& points, int columns) {
  std::vector<double> sums(static_cast<size_t>(columns)), counts(sums.size());
  if (points.empty()) return std::vector<double>(sums.size(), kNan);
  const auto first = static_cast<double>(points.front().step),
             span = std::max(1.0, static_cast<double>(points.back().step) - first);
  for (const RunHistory::Point& p : points) {
    if (std::isnan(p.loss)) continue;
    const auto c = static_cast<size_t>((static_cast<double>(p.step) - first) / span * (columns - 1));
    sums[c] += p.loss, counts[c] += 1;
  }
  double before = kNan;
  for (size_t c = 0; c < sums.size(); ++c) before = sums[c] = counts[c] > 0 ? sums[c] / counts[c] : before;
  return sums;
}

// Two columns and four rows of dots in each character.
std::vector<std::string> curve(const std::vector<RunHistory::Point>& points, int columns, int rows, double low,
                               double high) {
  constexpr std::array<std::array<int, 4>, 2> kDots = {
      {{0x40, 0x04, 0x02, 0x01}, {0x80, 0x20, 0x10, 0x08}}};  // upwards
  const std::vector<double> values = columns_of(points, 2 * columns);
  std::vector<std::vector<int>> cells(static_cast<size_t>(rows), std::vector<int>(static_cast<size_t>(columns)));
  const double range = std::max(high - low, 1e-30);
  int before = -1;
  for (size_t c = 0; c < values.size(); ++c) {
    if (std::isnan(values[c])) continue;
    const int at = std::clamp(static_cast<int>((values[c] - low) / range * (4 * rows - 1) + 0.5), 0, 4 * rows - 1);
    const int from = before < 0 ? at : std::min(at, before), to = before < 0 ? at : std::max(at, before);
    for (int y = from; y <= to; ++y)
      cells[static_cast<size_t>(rows - 1 - y / 4)][c / 2] |= kDots[c % 2][static_cast<size_t>(y % 4)];
    before = at;
  }
  std::vector<std::string> lines;
  for (const std::vector<int>& row : cells) {
    std::string line;
    for (int dots : row) {  // U+2800 and on
      line += static_cast<char>(0xe2);
      line += static_cast<char>(0xa0 + dots / 64);
      line += static_cast<char>(0x80 + dots % 64);
    }
    lines.push_back(std::move(line));
  }
  return lines;
}

// A shade for each rank, from the fastest's to 1.5 times that; where there are more ranks than columns, the slowest of
// those that share one.
std::string strip(const std::vector<double>& seconds, double fastest, int columns, bool color) {
  constexpr std::array<const char*, 5> kShades = {"▁", "▃", "▄", "▆", "█"};
  constexpr std::array<const char*, 5> kColors = {"\x1b[32m", "\x1b[32m", "\x1b[33m", "\x1b[33m", "\x1b[31m"};
  std::string line;
  const auto count = std::min<size_t>(seconds.size(), static_cast<size_t>(columns));
  for (size_t c = 0; c < count; ++c) {
    double slowest = 0;
    for (size_t r = c * seconds.size() / count; r < (c + 1) * seconds.size() / count; ++r)
      slowest = std::max(slowest, seconds[r]);
    const auto shade = static_cast<size_t>(std::clamp((slowest / fastest - 1) / 0.5 * 4, 0.0, 4.0));
    if (color) line += kColors[shade];
    line += kShades[shade];
  }
  return color ? line + "\x1b[0m" : line;
}

}  // namespace

std::string draw_run(const RunHistory& run, const std::string& title, const std::string& note, ScreenSize size,
                     bool color) {
  const auto bold = [&](const std::string& text) { return color ? cat("\x1b[1m", text, "\x1b[0m") : text; };
  std::string text = bold(title) + "\n";
  if (!note.empty()) append(text, note, "\n");
  const auto step = value(run, "step");
  if (!step) return text + "no step yet\n";
  const double seconds = value(run, "seconds").value_or(0);

  std::string line = fmt::format("step {:.0f}", *step + 1);
  const auto add = [&](const char* name, const char* word, const char* format) {
    if (const auto v = value(run, name)) line += cat("   ", word, fmt::format(fmt::runtime(format), *v));
  };
  add("loss", "loss ", "{:.4f}");
  if (!std::isnan(run.evaluation_loss())) line += fmt::format("   evaluation {:.4f}", run.evaluation_loss());
  add("grad_norm", "gradient ", "{:.3g}");
  add("lr", "lr ", "{:.3g}");
  add("loss_scale", "scale ", "{:.0f}");
  append(text, line, "\n");

  line = cat(seconds_text(seconds), " a step");
  if (const auto v = value(run, "tokens_per_second")) {
    line += cat("   ", runtime::short_count(*v), " tokens/s");
  } else if (const auto s = value(run, "samples_per_second")) {
    line += cat("   ", runtime::short_count(*s), " samples/s");
  }
  if (const auto v = value(run, "flops_per_second")) line += cat("   ", runtime::short_count(*v), "FLOP/s");
  if (const auto v = value(run, "mfu")) line += fmt::format("   MFU {:.1f} %", 100 * *v);
  if (const auto v = value(run, "memory_bytes")) line += cat("   ", runtime::short_count(*v), "B");
  add("dollars", "$", "{:.2f}");
  append(text, line, "\n");

  line.clear();
  for (const auto& [name, word] : {std::pair{"input_stall_seconds", "data"},
                                   {"communication_stall_seconds", "other ranks"},
                                   {"checkpoint_stall_seconds", "checkpoints"}}) {
    if (const auto v = value(run, name); v && seconds > 0)
      line += fmt::format("{}{} {:.0f} %", line.empty() ? "waits for " : ", ", word, 100 * *v / seconds);
  }
  if (!line.empty()) append(text, line, "\n");
  if (run.not_finite() > 0) append(text, bold(cat("not finite: the loss of ", run.not_finite(), " steps")), "\n");

  double low = INFINITY, high = -INFINITY;
  for (double x : columns_of(run.losses(), std::max(2, 2 * (size.columns - kLabel)))) {
    if (!std::isnan(x)) low = std::min(low, x), high = std::max(high, x);
  }
  const std::vector<double>& ranks = run.rank_seconds();
  const int above = static_cast<int>(std::count(text.begin(), text.end(), '\n'));
  const int rows = std::clamp(size.rows - above - 3 - (ranks.empty() ? 0 : 3), 3, 16);
  if (std::isfinite(low) && size.columns > kLabel + 10) {
    const std::vector<std::string> lines = curve(run.losses(), size.columns - kLabel, rows, low, high);
    text += "\n";
    for (size_t k = 0; k < lines.size(); ++k) {
      const bool first = k == 0, last = k + 1 == lines.size();
      append(text, first || last ? fmt::format("{:>8.4g} ", first ? high : low) : std::string(9, ' '), "│", lines[k],
             "\n");
    }
    append(text, std::string(10, ' '), "steps ", run.losses().front().step + 1, " to ", run.losses().back().step + 1,
           "\n");
  }
  if (!ranks.empty()) {
    const auto slowest = std::max_element(ranks.begin(), ranks.end());
    const double fastest = std::max(*std::min_element(ranks.begin(), ranks.end()), 1e-9);
    append(text,
           fmt::format("own work of a step, rank by rank: {} to {}; the slowest is rank {}\n", seconds_text(fastest),
                       seconds_text(*slowest), slowest - ranks.begin()),
           strip(ranks, fastest, size.columns, color), "\n");
  }
  return text;
}

}  // namespace partita
