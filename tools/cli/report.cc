// One self-contained page: no script, no network; charts are inline SVG.
#include <algorithm>
#include <cmath>

#include "base/atomic_file.h"
#include "base/cat.h"
#include "base/status.h"
#include "nlohmann/json.hpp"
#include "partitioner/explain.h"
#include "partitioner/plan_file.h"
#include "tools/calibrate/class_time.h"
#include "tools/cli/command.h"
#include "tools/plan.h"

namespace partita {
namespace {

using Json = nlohmann::json;

constexpr int64_t kShownMicroBatches = 24;
constexpr size_t kShownStages = 32;
constexpr const char* kStyle =
    ":root{color-scheme:light dark;--f:#2f6fb5;--b:#d98024;--w:#7a9a3a;--line:#8886;--text:#222;--page:#fff}"
    "@media(prefers-color-scheme:dark){:root{--text:#e4e4e4;--page:#16181c}}"
    "body{font:15px/1.5 system-ui,sans-serif;max-width:60rem;margin:0 "
    "auto;padding:1rem;color:var(--text);background:var(--page)}"
    "h1{font-size:1.4rem}h2{font-size:1.1rem;margin-top:2rem}.wide{overflow-x:auto}svg{width:100%;min-width:640px;"
    "height:auto}"
    "table{border-collapse:collapse;width:100%}td,th{padding:.25rem .5rem;text-align:left;border-bottom:1px solid "
    "var(--line);vertical-align:top}"
    "td.n{text-align:right;white-space:nowrap;font-variant-numeric:tabular-nums}text{fill:currentColor;font-size:11px}";

std::string escape(const std::string& text) {
  std::string out;
  for (char c : text) {
    if (c == '<')
      out += "&lt;";
    else if (c == '>')
      out += "&gt;";
    else if (c == '&')
      out += "&amp;";
    else if (c == '"')
      out += "&quot;";
    else
      out += c;
  }
  return out;
}

double number(const Json& j, const char* key) {
  return j.is_object() && j.contains(key) && j[key].is_number() ? j[key].get<double>() : 0;
}
std::string words(const Json& j, const char* key) {
  return j.is_object() && j.contains(key) && j[key].is_string() ? j[key].get<std::string>() : "";
}

std::string rect(double x, double y, double w, double h, std::string_view fill, const std::string& title) {
  return fmt::format(
      "<rect x=\"{:.2f}\" y=\"{:.2f}\" width=\"{:.2f}\" height=\"{:.2f}\" fill=\"{}\"><title>{}</title></rect>", x, y,
      std::max(w, 0.2), h, fill, escape(title));
}

// The start of a step: enough micro-batches to see the rhythm.
std::string timeline(Simulation s) {
  int64_t stages = static_cast<int64_t>(s.chunks.size());
  int64_t shown = std::min(s.micro_batches, std::max<int64_t>(kShownMicroBatches, 2 * stages) / stages * stages);
  s.micro_batches = std::max<int64_t>(1, std::min(shown > 0 ? shown : s.micro_batches, s.micro_batches));
  Timeline t = simulate(s, true);
  double height = 18.0 * static_cast<double>(std::min<size_t>(s.chunks.size(), kShownStages)) + 20;
  std::string svg = fmt::format("<svg viewBox=\"0 0 900 {:.0f}\" role=\"img\" aria-label=\"timeline\">", height);
  constexpr const char* kFill[] = {"var(--f)", "var(--b)", "var(--w)"};
  constexpr const char* kNames[] = {"forward", "backward", "weight gradients"};
  for (const Event& e : t.events) {
    if (e.stage >= static_cast<int>(kShownStages) || t.seconds <= 0) continue;
    svg += rect(40 + 850 * e.start / t.seconds, 18.0 * e.stage, 850 * (e.end - e.start) / t.seconds - 0.3, 15,
                kFill[static_cast<int>(e.kind)],
                fmt::format("stage {}, {} {}, chunk {}: {:.3g} to {:.3g} ms", e.stage, kNames[static_cast<int>(e.kind)],
                            e.micro_batch, e.chunk, e.start * 1e3, e.end * 1e3));
  }
  for (size_t k = 0; k < std::min<size_t>(s.chunks.size(), kShownStages); ++k)
    svg += fmt::format("<text x=\"0\" y=\"{}\">{}</text>", 18 * k + 12, k);
  return svg + fmt::format(
                   "<text x=\"40\" y=\"{:.0f}\">{} micro-batches, {:.3g} ms; blue forward, orange backward, green "
                   "weight gradients</text></svg>",
                   height - 5, s.micro_batches, t.seconds * 1e3);
}

// Kept values of the first stage's micro-batches over the same step.
std::string memory_over_time(const Json& plan, Simulation s) {
  s.micro_batches = std::min<int64_t>(s.micro_batches, kShownMicroBatches / static_cast<int64_t>(s.chunks.size()) *
                                                               static_cast<int64_t>(s.chunks.size()) +
                                                           static_cast<int64_t>(s.chunks.size()));
  s.micro_batches = std::min<int64_t>(
      s.micro_batches, number(plan, "micro_batches") > 0 ? static_cast<int64_t>(number(plan, "micro_batches")) : 1);
  Timeline t = simulate(s, true);
  const Json& stage = plan["stages"][0];
  double capacity = number(stage, "capacity_bytes"), kept = number(stage["memory"], "activations");
  double fixed = number(stage["memory"], "total") - kept,
         most = static_cast<double>(std::max<int64_t>(1, t.most_in_flight[0]));
  std::string points = fmt::format("40,{:.1f} ", 190 - 170 * fixed / capacity);
  double held = 0;
  std::vector<Event> events = t.events;
  std::erase_if(events, [](const Event& e) { return e.stage != 0 || e.kind == StageWork::kWeight; });
  std::stable_sort(events.begin(), events.end(), [](const Event& a, const Event& b) { return a.end < b.end; });
  for (const Event& e : events) {
    double x = 40 + 850 * e.end / t.seconds,
           before = 190 - 170 * std::min(1.2, (fixed + kept * held / most) / capacity);
    held += e.kind == StageWork::kForward ? 1 : -1;
    points += fmt::format("{:.1f},{:.1f} {:.1f},{:.1f} ", x, before, x,
                          190 - 170 * std::min(1.2, (fixed + kept * held / most) / capacity));
  }
  return fmt::format(
      "<svg viewBox=\"0 0 900 200\" role=\"img\" aria-label=\"memory over time\"><line x1=\"40\" y1=\"20\" x2=\"890\" "
      "y2=\"20\" stroke=\"var(--b)\" stroke-dasharray=\"4\"/>"
      "<text x=\"44\" y=\"14\">{:.1f} GB of the device</text><polyline points=\"{}\" fill=\"none\" stroke=\"var(--f)\" "
      "stroke-width=\"1.5\"/></svg>",
      capacity / 1e9, points);
}

// Which axes talk: seconds of each kind of communication in the step.
std::string communication(const Json& plan) {
  const Json& b = plan["predicted"]["breakdown"];
  const Json& pin = plan["pin"];
  std::string rows;
  auto row = [&](const char* axis, const char* what, const char* key) {
    if (number(pin, axis) > 1 || number(b, key) > 0)
      rows += fmt::format("<tr><td>{} {:.0f}</td><td>{}</td><td class=n>{:.4g} s</td></tr>", axis, number(pin, axis),
                          what, number(b, key));
  };
  row("tensor", "partial sums of activations", "tensor");
  row("context", "attention exchanged from positions to heads and back", "context");
  row("expert", "tokens to experts and back", "expert");
  row("data", "gradients and updated parameters", "gradients");
  row("data", "parameters gathered for use", "gathers");
  row("pipeline", "activations to the next stage", "send");
  return cat("<table><tr><th>axis</th><th>what moves</th><th>waited for</th></tr>", rows, "</table>");
}

std::string scatter(const Json& plan) {
  std::vector<std::pair<double, double>> at = {{number(plan["predicted"], "step_seconds"), 0}};
  for (const Json& m : plan["predicted"]["memory_bytes"])
    at[0].second = std::max(at[0].second, m.is_number() ? m.get<double>() : 0);
  std::vector<std::string> names = {words(plan, "layout")};
  if (plan.contains("candidates") && plan["candidates"].is_array()) {
    for (const Json& c : plan["candidates"])
      at.emplace_back(number(c, "step_seconds"), number(c, "memory_bytes")), names.push_back(words(c, "layout"));
  }
  double low = 1e300, high = 0, most = number(plan["stages"][0], "capacity_bytes");
  for (auto [t, m] : at) low = std::min(low, t), high = std::max(high, t), most = std::max(most, m);
  if (!(high > 0) || !(low > 0)) return "";
  std::string svg = "<svg viewBox=\"0 0 900 260\" role=\"img\" aria-label=\"candidates\">";
  double capacity = 240 - 220 * number(plan["stages"][0], "capacity_bytes") / most;
  svg += fmt::format(
      "<line x1=\"40\" x2=\"890\" y1=\"{0:.1f}\" y2=\"{0:.1f}\" stroke=\"var(--b)\" stroke-dasharray=\"4\"/><text "
      "x=\"44\" y=\"{1:.1f}\">memory of the device</text>",
      capacity, capacity - 4);
  for (size_t k = at.size(); k-- > 0;) {
    double x = 60 + 800 * (high > low ? std::log(at[k].first / low) / std::log(high / low) : 0.5),
           y = 240 - 220 * at[k].second / most;
    svg += fmt::format(
        "<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"{}\" fill=\"{}\"><title>{}: {:.4g} s, {:.1f} GB</title></circle>", x,
        y, k ? 4 : 7, k ? "var(--f)" : "var(--w)", escape(names[k]), at[k].first, at[k].second / 1e9);
  }
  return svg + "<text x=\"40\" y=\"256\">step seconds, logarithmic; the plan is the large point</text></svg>";
}

std::string candidates(const Json& plan) {
  std::string rows;
  if (!plan.contains("candidates") || !plan["candidates"].is_array()) return "";
  for (const Json& c : plan["candidates"]) {
    rows += fmt::format("<tr><td>{}</td><td class=n>{:.4g} s</td><td>{}</td></tr>", escape(words(c, "layout")),
                        number(c, "step_seconds"), escape(words(c, "reason")));
  }
  return cat("<table><tr><th>layout</th><th>step</th><th>why not</th></tr>", rows, "</table>");
}

// What ranks of the first stage spent in a training step by class of work, beside what the cost model says of it.
absl::StatusOr<std::string> measured(const Json& plan, const std::string& trace) {
  PARTITA_ASSIGN_OR_RETURN(std::unique_ptr<Planning> p, plan_again(plan));
  PARTITA_ASSIGN_OR_RETURN(Layout layout, planned_layout(*p, plan));
  PARTITA_ASSIGN_OR_RETURN(MeasuredRanks all, read_measured_ranks(trace, layout.devices() / layout.pipeline));
  const MeasuredRun& run = all.run;
  const DeviceProfile& device = p->cluster.groups[0].device;
  std::string rows;
  auto row = [&](std::string_view what, double predicted, double found) {
    if (predicted <= 0 && found <= 0) return;
    rows += fmt::format("<tr><td>{}</td><td class=n>{:.4g} ms</td><td class=n>{:.4g} ms</td><td class=n>{}</td></tr>",
                        what, predicted * 1e3, found * 1e3, found > 0 ? fmt::format("{:.2f}", predicted / found) : "");
  };
  for (int k = 0; k < kWorkClasses; ++k) {
    const WorkClass c = static_cast<WorkClass>(k);
    row(work_class_name(c), class_seconds(c, p->problem, device, layout), run.seconds(c));
  }
  row("between kernels", device.software.step_seconds, run.gap_seconds);
  row("the step", CostModel(p->problem).predict(layout, true).step_seconds, run.step_seconds);
  return cat("<h2>Predicted and measured, first stage</h2><p>", escape(trace), ": ",
             fmt::format("{:.0f} training steps", run.training_steps),
             all.ranks > 1
                 ? fmt::format("; of {} ranks, rank {} works longest, {:.4g} ms a step beside communication, the "
                               "median rank {:.4g} ms",
                               all.ranks, all.slowest, all.slowest_work * 1e3, all.median_work * 1e3)
                 : "",
             "</p><div class=wide><table><tr><th>work</th><th>predicted</th><th>measured</th><th>ratio</th></tr>", rows,
             "</table></div>");
}

std::string page(const Json& plan, const Simulation& s, const std::string& compared) {
  return cat(
      "<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" "
      "content=\"width=device-width,initial-scale=1\"><title>",
      escape(words(plan, "layout")), "</title><style>", kStyle, "</style></head><body><h1>",
      escape(words(plan, "layout")), "</h1><div class=wide><pre>", escape(summary(plan)),
      "</pre></div><h2>Timeline</h2><div class=wide>", timeline(s),
      "</div><h2>Memory over time, stage 0</h2><div class=wide>", memory_over_time(plan, s), "</div>", compared,
      "<h2>Communication</h2><div class=wide>", communication(plan), "</div><h2>Candidates</h2><div class=wide>",
      scatter(plan), "</div><div class=wide>", candidates(plan), "</div></body></html>\n");
}

}  // namespace

void add_report(CLI::App& app, absl::Status& result) {
  struct Flags {
    std::string plan, output, trace;
  };
  auto flags = std::make_shared<Flags>();
  CLI::App* verb = app.add_subcommand("report", "a plan as one self-contained HTML page");
  verb->add_option("plan", flags->plan, "plan.json")->required();
  verb->add_option("-o,--output", flags->output, "page to write")->required();
  verb->add_option(
      "--trace", flags->trace,
      "a measured run of the plan (what `partita train --plan … --profile` wrote), beside what is predicted");
  verb->callback([flags, &result] {
    auto run = [&]() -> absl::Status {
      PARTITA_ASSIGN_OR_RETURN(nlohmann::json plan, read_plan(flags->plan));
      PARTITA_ASSIGN_OR_RETURN(Simulation s, plan_simulation(plan));
      const bool whole = plan.contains("predicted") && plan["predicted"].is_object() &&
                         plan["predicted"].contains("breakdown") && plan["predicted"].contains("memory_bytes") &&
                         plan["stages"][0].contains("memory");
      if (!whole) return absl::InvalidArgumentError("the plan lacks its predictions; make it again with partita plan");
      std::string compared;
      if (!flags->trace.empty()) {
        PARTITA_ASSIGN_OR_RETURN(compared, measured(plan, flags->trace));
      }
      return write_file_atomically(flags->output, page(plan, s, compared));
    };
    result = run();
  });
}

}  // namespace partita
