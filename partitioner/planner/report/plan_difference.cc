#include "partitioner/planner/report/plan_difference.h"

#include "base/cat.h"
#include "fmt/format.h"
#include "nlohmann/json.hpp"
#include "partitioner/planner/report/plan_file.h"

namespace partita {
namespace {

using Json = nlohmann::json;

// Each value under the path of its keys.
Json flat(Plan plan) {
  plan.boundary_bytes.reset(), plan.after_update.reset();
  for (Plan::Stage& stage : plan.stages) {
    stage.update.reset(), stage.traffic.reset();
    for (Plan::Chunk& chunk : stage.chunks) chunk.by_kind.reset();
  }
  Json j = plan_json(plan);
  for (const char* key : {"candidates", "inputs", "send_waited_seconds"}) j.erase(key);
  return j.flatten();
}

std::string shown(const Json& v) { return v.is_number_float() ? fmt::format("{:.6g}", v.get<double>()) : v.dump(); }

}  // namespace

std::string plan_difference(const Plan& a, const Plan& b) {
  const Json x = flat(a), y = flat(b);
  std::string text;
  const double before = a.predicted.step_seconds, now = b.predicted.step_seconds;
  if (x != y && before > 0 && now > 0)
    text += fmt::format("{:.4g} s a step -> {:.4g} s ({:+.1f} %)\n", before, now, 100 * (now / before - 1));
  for (const auto& [key, value] : x.items()) {
    if (!y.contains(key)) {
      append(text, "- ", key.substr(1), ": ", shown(value), "\n");
    } else if (y[key] != value) {
      append(text, "  ", key.substr(1), ": ", shown(value), " -> ", shown(y[key]), "\n");
    }
  }
  for (const auto& [key, value] : y.items()) {
    if (!x.contains(key)) append(text, "+ ", key.substr(1), ": ", shown(value), "\n");
  }
  return text;
}

}  // namespace partita
