#include "runtime/execute/step_profile.h"

#include <algorithm>
#include <map>

#include "base/cat.h"
#include "fmt/format.h"
#include "nlohmann/json.hpp"
#include "runtime/program/placement.h"
#include "runtime/program/program_check.h"

namespace partita::runtime {
namespace {

constexpr const char* kSegments[] = {"prologue", "forward", "backward", "reduce", "update", "evaluation"};

double rate(double amount, double seconds) { return seconds > 0 ? amount / seconds / 1e9 : 0; }

}  // namespace

std::string trace_of_rank(const std::string& path, int64_t rank) {
  constexpr std::string_view kEnding = ".json";
  if (rank == 0) return path;
  if (!path.ends_with(kEnding)) return "";
  return cat(path.substr(0, path.size() - kEnding.size()), ".rank", rank, kEnding);
}

StepProfile::StepProfile(const Program& program, int rank, size_t events)
    : program_(program), rank_(rank), max_events_(events), start_(Clock::now()) {
  for (const ProgramSegment& segment : program.segments) {
    for (const Step& step : segment.steps) steps_.push_back(&step), segments_.push_back(segment.kind);
  }
  totals_.resize(steps_.size());
}

void StepProfile::add(const Step& step, const ScheduleEntry& entry, Clock::time_point begin, Clock::time_point end) {
  Total& total = totals_[step.id];
  total.seconds += std::chrono::duration<double>(end - begin).count();
  ++total.calls;
  if (events_.size() < max_events_) {
    events_.push_back({step.id, entry.micro_batch, entry.slot, std::chrono::nanoseconds(begin - start_).count(),
                       std::chrono::nanoseconds(end - begin).count()});
  }
}

double StepProfile::seconds() const {
  double sum = 0;
  for (const Total& total : totals_) sum += total.seconds;
  return sum;
}

std::string StepProfile::label(const Step& step) const {
  switch (step.kind) {
    case StepKind::kKernel:
      return "generated";
    case StepKind::kCopy:
      return "copy";
    case StepKind::kLibrary:
      return step.name;
    case StepKind::kCollectiveStart:
      return "start " + step.name;
    case StepKind::kCollectiveWait:
      return "wait " + (step.name.empty() ? std::string("collective") : step.name);
  }
  return step.name;
}

std::string StepProfile::table(size_t hottest) const {
  struct Row {
    double seconds = 0, flops = 0, bytes = 0;
    int64_t calls = 0;
  };
  std::map<std::string, Row> kinds;
  std::vector<size_t> order;
  for (size_t i = 0; i < steps_.size(); ++i) {
    if (totals_[i].calls == 0) continue;
    Row& row = kinds[label(*steps_[i])];
    row.seconds += totals_[i].seconds;
    row.calls += totals_[i].calls;
    row.flops += static_cast<double>(steps_[i]->flops) * static_cast<double>(totals_[i].calls);
    row.bytes += static_cast<double>(steps_[i]->bytes) * static_cast<double>(totals_[i].calls);
    order.push_back(i);
  }
  const double all = std::max(seconds(), 1e-12);
  std::vector<std::pair<std::string, Row>> rows(kinds.begin(), kinds.end());
  std::stable_sort(rows.begin(), rows.end(),
                   [](const auto& a, const auto& b) { return a.second.seconds > b.second.seconds; });
  std::string text = fmt::format("{:<28}{:>8}{:>11}{:>10}{:>10}{:>10}\n", "kind of step", "share", "seconds", "calls",
                                 "GFLOP/s", "GB/s");
  for (const auto& [name, row] : rows) {
    text += fmt::format("{:<28}{:>7.1f}%{:>11.4f}{:>10}{:>10.1f}{:>10.1f}\n", name, 100 * row.seconds / all,
                        row.seconds, row.calls, rate(row.flops, row.seconds), rate(row.bytes, row.seconds));
  }
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return totals_[a].seconds > totals_[b].seconds; });
  if (order.size() > hottest) order.resize(hottest);
  text += fmt::format("\n{:>8}{:>11}{:>8}{:>10}{:>10}  {}\n", "share", "seconds", "calls", "GFLOP/s", "GB/s",
                      "hottest steps");
  for (size_t i : order) {
    const double s = totals_[i].seconds, n = static_cast<double>(totals_[i].calls);
    text += fmt::format("{:>7.1f}%{:>11.4f}{:>8}{:>10.1f}{:>10.1f}  {}\n", 100 * s / all, s, totals_[i].calls,
                        rate(static_cast<double>(steps_[i]->flops) * n, s),
                        rate(static_cast<double>(steps_[i]->bytes) * n, s), describe_step(program_, *steps_[i]));
  }
  return text;
}

std::string StepProfile::chrome_trace() const {
  nlohmann::json trace = nlohmann::json::array();
  trace.push_back({{"ph", "M"}, {"name", "process_name"}, {"pid", rank_}, {"args", {{"name", cat("rank ", rank_)}}}});
  for (const Event& event : events_) {
    const Step& step = *steps_[event.step];
    nlohmann::json args = {{"step", event.step},
                           {"segment", kSegments[static_cast<size_t>(segments_[event.step])]},
                           {"micro_batch", event.micro_batch},
                           {"slot", event.slot}};
    if (step.origin >= 0) args["onnx"] = program_.origins[static_cast<size_t>(step.origin)];
    if (step.flops > 0) args["flops"] = step.flops;
    if (step.bytes > 0) args["bytes"] = step.bytes;
    trace.push_back({{"ph", "X"},
                     {"name", step.name.empty() ? label(step) : step.name},
                     {"cat", label(step)},
                     {"pid", rank_},
                     {"tid", 0},
                     {"ts", static_cast<double>(event.begin_ns) / 1e3},
                     {"dur", static_cast<double>(event.duration_ns) / 1e3},
                     {"args", std::move(args)}});
  }
  nlohmann::json run = {
      {"model", program_.model}, {"ranks", mesh_size(program_.mesh)}, {"samples_per_step", program_.samples_per_step}};
  return nlohmann::json{{"traceEvents", std::move(trace)}, {"displayTimeUnit", "ms"}, {"otherData", std::move(run)}}
      .dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace partita::runtime
