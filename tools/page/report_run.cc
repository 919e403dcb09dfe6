#include "tools/page/report_run.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "base/cat.h"
#include "base/quote.h"
#include "base/status.h"
#include "base/text_file.h"
#include "nlohmann/json.hpp"
#include "partitioner/planner/cost/cost_model.h"
#include "tools/calibrate/class_time.h"

namespace partita {
namespace {

using Json = nlohmann::json;

constexpr int64_t kMostBytes = int64_t{1} << 30;
constexpr size_t kMostPoints = 800;  // of a curve

double median(std::vector<double> values) {
  if (values.empty()) return 0;
  std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2), values.end());
  return values[values.size() / 2];
}

std::optional<double> number(const Json& j, const char* key) {
  return j.contains(key) && j[key].is_number() ? std::optional(j[key].get<double>()) : std::nullopt;
}

struct Step {
  std::optional<double> loss, evaluation, lr, grad_norm, seconds, tokens, samples;
};

absl::StatusOr<std::map<int64_t, Step>> read_steps(const std::string& path) {
  PARTITA_ASSIGN_OR_RETURN(const std::string text, read_text_file(path, kMostBytes));
  std::map<int64_t, Step> steps;
  for (size_t at = 0, line = 1; at < text.size(); ++line) {
    const size_t end = std::min(text.find('\n', at), text.size());
    const Json j = Json::parse(text.begin() + static_cast<std::ptrdiff_t>(at),
                               text.begin() + static_cast<std::ptrdiff_t>(end), nullptr, false);
    // A run that was killed may have left a part of its last line.
    if (j.is_discarded() && end == text.size() && !steps.empty()) break;
    if (!j.is_object() || !j.contains("step") || !j["step"].is_number_integer())
      return absl::InvalidArgumentError(
          cat(quote(path), ":", line, ": expected a step's numbers, as `train --metrics FILE.jsonl` writes them"));
    Step& step = steps[j["step"].get<int64_t>() + 1];
    auto take = [&](std::optional<double>& value, const char* key) {
      if (const std::optional<double> told = number(j, key)) value = told;
    };
    take(step.loss, "loss");
    take(step.evaluation, "evaluation_loss");
    take(step.lr, "lr");
    take(step.grad_norm, "grad_norm");
    // A line without them is of an evaluation alone, which a run that went on had to make up for.
    if (number(j, "seconds").value_or(0) > 0) take(step.seconds, "seconds");
    take(step.tokens, "tokens_per_second");
    take(step.samples, "samples_per_second");
    at = end + 1;
  }
  return steps;
}

template <typename T>
Json or_null(const std::optional<T>& value) {
  return value ? Json(*value) : Json();
}

}  // namespace

Json measured_json(const Problem& problem, const Layout& layout, const std::vector<MeasuredGroup>& groups,
                   const std::string& trace) {
  Json all = Json::array();
  for (const MeasuredGroup& group : groups) {
    const MeasuredRanks& ranks = group.measured;
    const MeasuredRun& run = ranks.run;
    const DeviceProfile& device = problem.cluster->groups[group.group].device;
    Json rows = Json::array();
    auto row = [&](std::string_view what, double predicted, double found) {
      if (predicted > 0 || found > 0) rows.push_back({{"work", what}, {"predicted", predicted}, {"measured", found}});
    };
    for (int k = 0; k < kWorkClasses; ++k) {
      const WorkClass c = static_cast<WorkClass>(k);
      row(work_class_name(c), class_seconds(c, problem, device, layout, group.stage), run.seconds(c));
    }
    row("between kernels", device.software.step_seconds, run.gap_seconds);
    row("the step", CostModel(problem).predict(layout, true).step_seconds, run.step_seconds);
    all.push_back({{"of", problem.cluster->groups.size() > 1 ? describe(group, *problem.cluster) : "first stage"},
                   {"training_steps", run.training_steps},
                   {"ranks", ranks.ranks},
                   {"slowest_rank", group.slowest_rank()},
                   {"slowest_work", ranks.slowest_work},
                   {"median_work", ranks.median_work},
                   {"rows", std::move(rows)}});
  }
  return {{"trace", trace}, {"groups", std::move(all)}};
}

absl::StatusOr<Json> learning_json(const std::string& metrics) {
  PARTITA_ASSIGN_OR_RETURN(const auto steps, read_steps(metrics));
  Json points = Json::array(), evaluations = Json::array();
  std::vector<double> seconds, tokens, samples;
  const size_t every = std::max<size_t>(1, (steps.size() + kMostPoints - 1) / kMostPoints);
  double sum = 0;
  size_t summed = 0, at = 0;
  for (const auto& [step, s] : steps) {
    ++at;
    if (s.evaluation) evaluations.push_back({step, *s.evaluation});
    if (s.seconds) seconds.push_back(*s.seconds);
    if (s.tokens) tokens.push_back(*s.tokens);
    if (s.samples) samples.push_back(*s.samples);
    if (s.loss) sum += *s.loss, ++summed;
    if (at % every != 0 && at != steps.size()) continue;
    if (summed > 0) points.push_back({step, sum / static_cast<double>(summed), or_null(s.lr), or_null(s.grad_norm)});
    sum = 0, summed = 0;
  }
  if (points.empty())
    return absl::InvalidArgumentError(cat(quote(metrics), ": expected steps with a loss, found none"));
  return Json{{"file", metrics},
              {"steps", steps.rbegin()->first},
              {"every", every},
              {"points", std::move(points)},
              {"evaluations", std::move(evaluations)},
              {"step_seconds", median(std::move(seconds))},
              {"unit", tokens.empty() ? "samples" : "tokens"},
              {"rate", median(tokens.empty() ? std::move(samples) : std::move(tokens))}};
}

absl::StatusOr<Json> proof_json(const std::string& certificate) {
  PARTITA_ASSIGN_OR_RETURN(const std::string text, read_text_file(certificate, kMostBytes));
  const Json j = Json::parse(text, nullptr, false);
  if (!j.is_object() || !j.contains("proved") || !j["proved"].is_array() || !j.contains("counts"))
    return absl::InvalidArgumentError(
        cat(quote(certificate), ": expected a certificate, as `partita verify` writes it"));
  return Json{{"file", certificate},
              {"ranks", j["ranks"]},
              {"programs", j["programs"]},
              {"proved", j["proved"]},
              {"counts", j["counts"]},
              {"files", j.value("files", Json::object()).size()},
              {"numeric", j.value("numeric", Json())}};
}

}  // namespace partita
