#include "partitioner/planner/report/plan_difference.h"

#include <algorithm>

#include "base/cat.h"
#include "fmt/format.h"
#include "nlohmann/json.hpp"
#include "partitioner/planner/report/plan_file.h"

namespace partita {
namespace {

using Json = nlohmann::json;

// Each value under the path of its keys.
Json flat(Plan plan) {
  plan.boundary_bytes.reset(), plan.after_update.reset(), plan.shared.clear();
  for (Plan::Stage& stage : plan.stages) {
    stage.update.reset(), stage.traffic.reset();
    for (Plan::Chunk& chunk : stage.chunks) chunk.by_kind.reset();
  }
  Json j = plan_json(plan);
  for (const char* key : {"candidates", "inputs", "send_waited_seconds"}) j.erase(key);
  return j.flatten();
}

std::string shown(const Json& v) { return v.is_number_float() ? fmt::format("{:.6g}", v.get<double>()) : v.dump(); }

std::string seconds(double s) { return fmt::format("{:.4g} s", s); }

// "from -> to", in brackets by how much.
std::string change(double before, double now, std::string (*text)(double)) {
  return cat(text(before), " -> ", text(now),
             before > 0 ? fmt::format(" ({:+.1f} %)", 100 * (now / before - 1)) : std::string());
}

// The fullest stage's bytes of one rank.
double most_memory(const Plan& plan) {
  const std::vector<int64_t>& bytes = plan.predicted.memory_bytes;
  return bytes.empty() ? 0 : static_cast<double>(*std::max_element(bytes.begin(), bytes.end()));
}

}  // namespace

std::string plan_difference(const Plan& a, const Plan& b) {
  if (flat(a) == flat(b)) return "";
  std::string text;
  auto line = [&](std::string_view what, double before, double now, std::string (*shown)(double)) {
    if (shown(before) != shown(now)) append(text, what, ": ", change(before, now, shown), "\n");
  };
  auto words = [&](std::string_view what, const std::string& before, const std::string& now) {
    if (before != now) append(text, what, ": ", before, "\n", std::string(what.size() + 2, ' '), "-> ", now, "\n");
  };
  const Plan::Predicted &p = a.predicted, &q = b.predicted;
  line("a step", p.step_seconds, q.step_seconds, seconds);
  words("layout", a.layout, b.layout);
  words("on", a.hardware, b.hardware);
  line("samples a step", static_cast<double>(a.global_batch), static_cast<double>(b.global_batch),
       [](double n) { return fmt::format("{}", n); });
  line("memory of the fullest rank", most_memory(a), most_memory(b),
       [](double bytes) { return fmt::format("{:.1f} GB", bytes / 1e9); });
  line("MFU", p.mfu, q.mfu, [](double x) { return fmt::format("{:.1f} %", 100 * x); });
  line("price of an hour", p.price_per_hour, q.price_per_hour, [](double x) { return fmt::format("${:.4g}", x); });
  for (const auto& [name, member] : kBreakdownNames)
    line(cat("of a step: ", name), p.breakdown.*member, q.breakdown.*member, seconds);
  if (p.fits != q.fits) append(text, q.fits ? "now it fits" : "now it DOES NOT FIT", "\n");
  return text.empty() ? "the same layout and times; other values differ (--all)\n" : text;
}

std::string all_differences(const Plan& a, const Plan& b) {
  const Json x = flat(a), y = flat(b);
  std::string text;
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
