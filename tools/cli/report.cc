// One self-contained page: no script, no network; charts are inline SVG.
#include <algorithm>
#include <cmath>
#include <map>

#include "base/atomic_file.h"
#include "base/cat.h"
#include "base/status.h"
#include "fmt/format.h"
#include "partitioner/planner/report/explain.h"
#include "partitioner/planner/report/plan_file.h"
#include "partitioner/planner/report/step_timeline.h"
#include "tools/calibrate/class_time.h"
#include "tools/calibrate/measured_groups.h"
#include "tools/cli/command.h"
#include "tools/flow/plan.h"
#include "tools/page/report_traffic.h"

namespace partita {
namespace {

constexpr int64_t kShownMicroBatches = 24;
constexpr size_t kShownStages = 32;
constexpr size_t kMostTitles = 800;  // of a timeline's passes
constexpr const char* kStyle =
    ":root{color-scheme:light dark;--f:#2f6fb5;--b:#d98024;--w:#7a9a3a;--line:#8886;--text:#222;--page:#fff}"
    "@media(prefers-color-scheme:dark){:root{--text:#e4e4e4;--page:#16181c}}"
    "body{font:15px/1.5 system-ui,sans-serif;max-width:60rem;margin:0 "
    "auto;padding:1rem;color:var(--text);background:var(--page)}"
    "h1{font-size:1.4rem}h2{font-size:1.1rem;margin-top:2rem}.wide{overflow-x:auto}svg{width:100%;min-width:640px;"
    "height:auto}"
    "table{border-collapse:collapse;width:100%}td,th{padding:.25rem .5rem;text-align:left;border-bottom:1px solid "
    "var(--line);vertical-align:top}"
    "@media(max-width:600px){td,th{padding:.2rem .3rem;font-size:13px}}"
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

std::string rect(double x, double y, double w, double h, std::string_view fill, const std::string& title) {
  return fmt::format(
      "<rect x=\"{:.2f}\" y=\"{:.2f}\" width=\"{:.2f}\" height=\"{:.2f}\" fill=\"{}\"><title>{}</title></rect>", x, y,
      std::max(w, 0.2), h, fill, escape(title));
}

// Of the start of a step: enough to see the rhythm.
int64_t shown_micro_batches(const Simulation& s) {
  const int64_t stages = static_cast<int64_t>(s.chunks.size());
  const int64_t shown = std::max(kShownMicroBatches, 2 * stages) / stages * stages;
  return std::max<int64_t>(1, std::min(s.micro_batches, shown > 0 ? shown : s.micro_batches));
}

std::string timeline(const Simulation& s, int64_t planned) {
  Timeline t = simulate(s, true);
  double height = 18.0 * static_cast<double>(std::min<size_t>(s.chunks.size(), kShownStages));
  std::string svg = fmt::format("<svg viewBox=\"0 0 900 {:.0f}\" role=\"img\" aria-label=\"timeline\">", height);
  constexpr const char* kFill[] = {"var(--f)", "var(--b)", "var(--w)"};
  constexpr const char* kNames[] = {"forward", "backward", "weight gradients"};
  // Where there are many, those of a stage and kind are one path.
  const bool single = t.events.size() <= kMostTitles;
  std::map<std::pair<int, StageWork>, std::string> paths;
  for (const Event& e : t.events) {
    if (e.stage >= static_cast<int>(kShownStages) || t.seconds <= 0) continue;
    const double x = 40 + 850 * e.start / t.seconds, width = 850 * (e.end - e.start) / t.seconds - 0.3;
    if (single) {
      const std::string chunk = s.chunks[0].size() > 1 ? cat(", chunk ", e.chunk) : "";
      svg += rect(x, 18.0 * e.stage, width, 15, kFill[static_cast<int>(e.kind)],
                  cat("stage ", e.stage, ", ", kNames[static_cast<int>(e.kind)], " ", e.micro_batch, chunk, ": ",
                      time_text(e.start), " to ", time_text(e.end)));
    } else {
      paths[{e.stage, e.kind}] += fmt::format("M{:.1f} {}h{:.1f}", x, 18 * e.stage, std::max(width, 0.2));
    }
  }
  for (const auto& [of, path] : paths)
    append(svg, "<path stroke=\"", kFill[static_cast<int>(of.second)],
           "\" stroke-width=\"15\" transform=\"translate(0,7.5)\" d=\"", path, "\"><title>stage ", of.first, ", ",
           kNames[static_cast<int>(of.second)], "</title></path>");
  for (size_t k = 0; k < std::min<size_t>(s.chunks.size(), kShownStages); ++k)
    svg += fmt::format("<text x=\"0\" y=\"{}\">{}</text>", 18 * k + 12, k);
  std::string told =
      cat(s.micro_batches < planned ? cat("the first ", s.micro_batches, " of ", planned) : cat(s.micro_batches),
          s.micro_batches == 1 ? " micro-batch, " : " micro-batches, ", time_text(t.seconds));
  if (s.chunks.size() > kShownStages) append(told, "; the first ", kShownStages, " of ", s.chunks.size(), " stages");
  if (s.micro_batches < planned) told += ", as if the step ended with them";
  return cat("<div class=wide>", svg, "</svg></div><p>", told,
             "; blue forward, orange backward, green weight gradients</p>");
}

// What a stage keeps, over the same passes.
std::string memory_over_time(const PlannedStep& step, size_t stage, double capacity) {
  const Timeline t = simulate(step.simulation, true);
  const double fixed = step.stages[stage].memory - step.stages[stage].activations;
  auto height = [&](double bytes) { return 190 - 170 * std::min(1.1, bytes / capacity); };
  std::string points;
  double before = height(fixed);
  for (auto [at, kept] : kept_activations(step, t, stage)) {
    const double x = 40 + 850 * at / t.seconds;
    points += fmt::format("{:.1f},{:.1f} ", x, before);
    before = height(fixed + kept);
    points += fmt::format("{:.1f},{:.1f} ", x, before);
  }
  return fmt::format(
      "<svg viewBox=\"0 0 900 200\" role=\"img\" aria-label=\"memory over time\"><line x1=\"40\" y1=\"20\" x2=\"890\" "
      "y2=\"20\" stroke=\"var(--b)\" stroke-dasharray=\"4\"/>"
      "<text x=\"44\" y=\"14\">{:.1f} GB of the device</text><polyline points=\"{}890,{:.1f}\" fill=\"none\" "
      "stroke=\"var(--f)\" stroke-width=\"1.5\"/><line x1=\"40\" y1=\"190\" x2=\"890\" y2=\"190\" "
      "stroke=\"var(--line)\"/><text x=\"0\" y=\"194\">0</text><text x=\"0\" y=\"{:.1f}\">{:.1f}</text></svg>",
      capacity / 1e9, points, before, std::min(180.0, height(step.stages[stage].memory) + 4),
      step.stages[stage].memory / 1e9);
}

std::string scatter(const Plan& plan) {
  std::vector<std::pair<double, double>> at = {{plan.predicted.step_seconds, 0}};
  for (int64_t bytes : plan.predicted.memory_bytes) at[0].second = std::max(at[0].second, static_cast<double>(bytes));
  std::vector<std::string> names = {plan.layout};
  for (const Plan::Other& c : plan.candidates)
    at.emplace_back(c.step_seconds, c.memory_bytes), names.push_back(c.layout);
  double low = 1e300, high = 0, most = plan.stages[0].capacity;
  for (auto [t, m] : at) low = std::min(low, t), high = std::max(high, t), most = std::max(most, m);
  if (!(high > 0) || !(low > 0)) return "";
  std::string svg = "<svg viewBox=\"0 0 900 260\" role=\"img\" aria-label=\"candidates\">";
  double capacity = 240 - 220 * plan.stages[0].capacity / most;
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
  return svg + fmt::format(
                   "<text x=\"40\" y=\"256\">{:.4g} to {:.4g} seconds a step, logarithmic, against memory; the "
                   "plan is the large point</text></svg>",
                   low, high);
}

std::string candidates(const Plan& plan) {
  std::string rows;
  for (const Plan::Other& c : plan.candidates) {
    rows += fmt::format("<tr><td>{}</td><td class=n>{:.4g} s</td><td>{}</td></tr>", escape(c.layout), c.step_seconds,
                        escape(c.reason));
  }
  return cat("<table><tr><th>layout</th><th>step</th><th>why not</th></tr>", rows, "</table>");
}

// What a group's ranks spent in a training step by class of work, beside what the cost model says of it.
std::string measured_table(const Planning& p, const Layout& layout, const MeasuredGroup& group,
                           const std::string& trace) {
  const MeasuredRanks& all = group.measured;
  const MeasuredRun& run = all.run;
  const DeviceProfile& device = p.cluster.groups[group.group].device;
  std::string rows;
  auto row = [&](std::string_view what, double predicted, double found) {
    if (predicted <= 0 && found <= 0) return;
    rows += fmt::format("<tr><td>{}</td><td class=n>{:.4g} ms</td><td class=n>{:.4g} ms</td><td class=n>{}</td></tr>",
                        what, predicted * 1e3, found * 1e3, found > 0 ? fmt::format("{:.2f}", predicted / found) : "");
  };
  for (int k = 0; k < kWorkClasses; ++k) {
    const WorkClass c = static_cast<WorkClass>(k);
    row(work_class_name(c), class_seconds(c, p.problem, device, layout, group.stage), run.seconds(c));
  }
  row("between kernels", device.software.step_seconds, run.gap_seconds);
  row("the step", CostModel(p.problem).predict(layout, true).step_seconds, run.step_seconds);
  const std::string of = p.cluster.groups.size() > 1 ? describe(group, p.cluster) : "first stage";
  return cat("<h2>Predicted and measured, ", escape(of), "</h2><p>", escape(trace), ": ",
             fmt::format("{:.0f} training steps", run.training_steps),
             all.ranks > 1
                 ? fmt::format("; of {} ranks, rank {} works longest, {:.4g} ms a step beside communication, the "
                               "median rank {:.4g} ms",
                               all.ranks, group.slowest_rank(), all.slowest_work * 1e3, all.median_work * 1e3)
                 : "",
             "</p><div class=wide><table><tr><th>work</th><th>predicted</th><th>measured</th><th>ratio</th></tr>", rows,
             "</table></div>");
}

absl::StatusOr<std::string> measured(const Plan& plan, const std::string& trace) {
  PARTITA_ASSIGN_OR_RETURN(std::unique_ptr<Planning> p, plan_again(plan));
  PARTITA_ASSIGN_OR_RETURN(Layout layout, planned_layout(*p, plan));
  PARTITA_ASSIGN_OR_RETURN(std::vector<MeasuredGroup> groups, read_measured_groups(trace, p->cluster, layout));
  std::string tables;
  for (const MeasuredGroup& group : groups) tables += measured_table(*p, layout, group, trace);
  return tables;
}

std::string page(const Plan& plan, const PlannedStep& step, const std::string& compared) {
  PlannedStep start = step;
  start.simulation.micro_batches = shown_micro_batches(step.simulation);
  const size_t fullest = plan.fullest_stage();
  return cat(
      "<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" "
      "content=\"width=device-width,initial-scale=1\"><title>",
      escape(plan.layout), "</title><style>", kStyle, kTrafficStyle, "</style></head><body><h1>", escape(plan.layout),
      "</h1><div class=wide><pre>", escape(summary(plan)), "</pre></div><h2>Timeline</h2>",
      timeline(start.simulation, step.simulation.micro_batches), "<h2>Memory over time, stage ", fullest,
      "</h2><div class=wide>", memory_over_time(start, fullest, plan.stages[fullest].capacity), "</div>", compared,
      "<h2>Communication</h2>", traffic_section(plan, step), "<h2>Candidates</h2><div class=wide>", scatter(plan),
      "</div><div class=wide>", candidates(plan), "</div></body></html>\n");
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
      PARTITA_ASSIGN_OR_RETURN(const Plan plan, read_plan(flags->plan));
      PARTITA_ASSIGN_OR_RETURN(const PlannedStep step, planned_step(plan));
      std::string compared;
      if (!flags->trace.empty()) {
        PARTITA_ASSIGN_OR_RETURN(compared, measured(plan, flags->trace));
      }
      return write_file_atomically(flags->output, page(plan, step, compared));
    };
    result = run();
  });
}

}  // namespace partita
