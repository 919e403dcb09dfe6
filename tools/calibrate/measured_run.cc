// A training step ends where the update's last event does: the next event that is none of the update's begins the next.
#include "tools/calibrate/measured_run.h"

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <map>
#include <numeric>

#include "base/cat.h"
#include "base/mapped_file.h"
#include "base/quote.h"
#include "base/status.h"
#include "nlohmann/json.hpp"
#include "runtime/execute/step_profile.h"

namespace partita {
namespace {

constexpr size_t kFewestSteps = 3;

double lower_quartile(std::vector<double> values) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  return values[(values.size() - 1) / 4];
}

bool starts_with(const std::string& text, std::string_view prefix) { return text.rfind(prefix, 0) == 0; }

WorkClass class_of(const std::string& category, const std::string& segment) {
  if (starts_with(category, "start ") || starts_with(category, "wait ")) return WorkClass::kCommunication;
  for (const char* product : {"matmul", "grouped_matmul", "multiply_fp8"}) {
    if (starts_with(category, product)) return WorkClass::kMatrix;
  }
  if (starts_with(category, "conv")) return WorkClass::kConvolution;
  if (starts_with(category, "attention")) return WorkClass::kAttention;
  return segment == "update" ? WorkClass::kUpdate : WorkClass::kMemory;
}

}  // namespace

std::string_view work_class_name(WorkClass c) {
  constexpr std::string_view kNames[] = {"matrix products", "convolutions", "attention",
                                         "memory-bound",    "update",       "communication"};
  return kNames[static_cast<size_t>(c)];
}

absl::StatusOr<MeasuredRun> read_measured_run(std::string_view text, const std::string& file) {
  auto refuse = [&](std::string_view what) {
    return absl::InvalidArgumentError(cat(file,
                                          ": expected the trace that `partita train --profile FILE` writes, found ",
                                          what, "; run a few steps with --profile"));
  };
  nlohmann::json trace = nlohmann::json::parse(text, nullptr, false);
  if (!trace.is_object() || !trace.contains("traceEvents") || !trace["traceEvents"].is_array())
    return refuse("no list of traceEvents");
  struct Seen {
    WorkClass work;
    double flops = 0, bytes = 0;
    std::vector<double> seconds, calls;  // by training step
  };
  std::map<int64_t, Seen> seen;
  std::vector<double> begins, busy;  // of the training steps
  bool updating = true;
  MeasuredRun run;
  try {
    if (const auto said = trace.find("otherData"); said != trace.end())
      run.ranks = said->value("ranks", int64_t{0}), run.samples_per_step = said->value("samples_per_step", int64_t{0});
    for (const nlohmann::json& e : trace["traceEvents"]) {
      if (e.at("ph") != "X") continue;
      const nlohmann::json& args = e.at("args");
      if (!args.contains("segment") || !args.contains("step")) return refuse("events without step and segment");
      std::string segment = args["segment"];
      if (segment == "evaluation") continue;
      double begin = e.at("ts").get<double>() / 1e6, took = e.at("dur").get<double>() / 1e6;
      if (segment != "update" && updating) begins.push_back(begin), busy.push_back(0);
      updating = segment == "update";
      if (begins.empty()) continue;
      size_t step = begins.size() - 1;
      Seen& s = seen.try_emplace(args["step"].get<int64_t>(), Seen{class_of(e.at("cat"), segment), 0, 0, {}, {}})
                    .first->second;
      s.flops = args.value("flops", 0.0), s.bytes = args.value("bytes", 0.0);
      s.seconds.resize(step + 1), s.calls.resize(step + 1);
      s.seconds[step] += took, ++s.calls[step];
      busy[step] += took;
    }
  } catch (const nlohmann::json::exception& e) {
    return refuse(e.what());
  }
  // The last training step may be cut off, the first prepares kernels.
  if (begins.size() < kFewestSteps + 1) return refuse(cat(begins.size(), " training steps"));
  size_t last = begins.size() - 1;
  run.training_steps = static_cast<double>(last - 1);
  std::vector<double> steps, gaps;
  for (size_t k = 1; k < last; ++k) {
    steps.push_back(begins[k + 1] - begins[k]);
    gaps.push_back(steps.back() - busy[k]);
  }
  std::array<std::vector<double>, kWorkClasses> classes;
  for (auto& sums : classes) sums.assign(last, 0);
  run.step_seconds = lower_quartile(steps), run.gap_seconds = lower_quartile(gaps);
  for (auto& [id, s] : seen) {
    s.seconds.resize(last + 1), s.calls.resize(last + 1);
    std::vector<double> between(s.seconds.begin() + 1, s.seconds.begin() + static_cast<int64_t>(last));
    for (size_t k = 1; k < last; ++k) classes[static_cast<size_t>(s.work)][k] += s.seconds[k];
    run.steps.push_back({s.work, lower_quartile(between), *std::min_element(between.begin(), between.end()), s.calls[1],
                         s.flops, s.bytes});
  }
  for (size_t c = 0; c < classes.size(); ++c)
    run.class_seconds[c] = lower_quartile({classes[c].begin() + 1, classes[c].end()});
  return run;
}

MeasuredRanks as_one(std::vector<MeasuredRun> runs) {
  auto work = [](const MeasuredRun& r) {
    double seconds = 0;
    for (int c = 0; c < kWorkClasses; ++c) seconds += r.class_seconds[static_cast<size_t>(c)];
    return seconds - r.seconds(WorkClass::kCommunication);
  };
  std::vector<size_t> order(runs.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return work(runs[a]) < work(runs[b]); });
  const size_t median = order[(order.size() - 1) / 2], slowest = order.back();
  const MeasuredRun& waits_least = *std::min_element(runs.begin(), runs.end(), [](const auto& a, const auto& b) {
    return a.seconds(WorkClass::kCommunication) < b.seconds(WorkClass::kCommunication);
  });
  MeasuredRanks out{runs[median], runs.size(), slowest, work(runs[slowest]), work(runs[median])};
  auto communicates = [](const MeasuredStep& s) { return s.work == WorkClass::kCommunication; };
  std::erase_if(out.run.steps, communicates);
  std::copy_if(waits_least.steps.begin(), waits_least.steps.end(), std::back_inserter(out.run.steps), communicates);
  out.run.class_seconds[static_cast<size_t>(WorkClass::kCommunication)] =
      waits_least.seconds(WorkClass::kCommunication);
  return out;
}

absl::StatusOr<MeasuredRanks> read_measured_ranks(const std::string& path, int64_t first, int64_t end) {
  std::vector<MeasuredRun> runs;
  for (int64_t r = first; r < end; ++r) {
    const std::string file = runtime::trace_of_rank(path, r);
    std::error_code ec;
    const bool there = !file.empty() && std::filesystem::exists(file, ec);
    if (!there && r > first) break;
    if (!there && r > 0)
      return absl::NotFoundError(
          cat("rank ", r, " is on devices of its own kind, and its trace is missing: expected ",
              quote(file.empty() ? cat(path, " named NAME.json, and NAME.rank", r, ".json") : file),
              " beside that of rank 0"));
    PARTITA_ASSIGN_OR_RETURN(MappedFile trace, MappedFile::open(file));
    PARTITA_ASSIGN_OR_RETURN(runs.emplace_back(), read_measured_run(trace.text(), file));
  }
  return as_one(std::move(runs));
}

}  // namespace partita
