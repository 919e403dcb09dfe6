#include "partitioner/planner/report/sweep.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "base/cat.h"
#include "base/quote.h"
#include "base/status.h"
#include "fmt/format.h"

namespace partita {
namespace {

constexpr double kKnee = 0.8;
constexpr int64_t kMostDevices = int64_t{1} << 20;

absl::StatusOr<int64_t> count(std::string_view text) {
  int64_t n = 0;
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), n);
  if (error != std::errc() || end != text.data() + text.size() || n < 1 || n > kMostDevices)
    return absl::InvalidArgumentError(
        cat("--devices: expected a number of devices from 1 to ", kMostDevices, ", found ", quote(text)));
  return n;
}

}  // namespace

absl::StatusOr<std::vector<int64_t>> parse_sizes(const std::string& text) {
  std::vector<int64_t> out;
  if (size_t dots = text.find(".."); dots != std::string::npos) {
    PARTITA_ASSIGN_OR_RETURN(int64_t low, count(std::string_view(text).substr(0, dots)));
    PARTITA_ASSIGN_OR_RETURN(int64_t high, count(std::string_view(text).substr(dots + 2)));
    for (int64_t n = low; n <= high; n *= 2) out.push_back(n);
    if (out.empty()) return absl::InvalidArgumentError(cat("--devices: expected LOW..HIGH, found ", quote(text)));
    return out;
  }
  for (size_t at = 0; at <= text.size();) {
    size_t comma = std::min(text.find(',', at), text.size());
    PARTITA_ASSIGN_OR_RETURN(int64_t n, count(std::string_view(text).substr(at, comma - at)));
    out.push_back(n);
    at = comma + 1;
  }
  std::sort(out.begin(), out.end());
  out.erase(std::unique(out.begin(), out.end()), out.end());
  return out;
}

absl::StatusOr<Sweep> sweep(const Problem& problem, const SearchOptions& options, const std::vector<int64_t>& devices,
                            double tokens) {
  Sweep s;
  absl::Status none = absl::OkStatus();
  bool any = false;
  for (int64_t n : devices) {
    auto cluster = resized(*problem.cluster, n);
    if (!cluster.ok()) {
      none.Update(cluster.status());
      s.rows.push_back({.devices = n, .note = std::string(cluster.status().message())});
      continue;
    }
    any = true;
    const DeviceGroup &now = cluster->groups[0], &before = problem.cluster->groups[0];
    if (before.nodes == 1 && now.nodes > 1)
      s.assumed =
          fmt::format("between nodes of {}: {} with {:.3g} GB/s a device assumed; `nodes` and `links` say otherwise",
                      now.devices_per_node, before.network.kind, before.network.bandwidth / 1e9);
    Problem p = problem;
    p.cluster = &*cluster;
    CostModel model(p);
    SweepRow row;
    row.devices = n;
    auto found = search(model, options);
    if (!found.ok()) {
      row.note = std::string(found.status().message());
    } else if (found->best) {
      row.best = *found->best;
      double step = row.best->prediction.step_seconds;
      double rate = problem.workload->tokens * static_cast<double>(problem.global_batch) / step;
      row.efficiency = rate / static_cast<double>(n);
      row.days = tokens > 0 ? tokens / rate / 86400 : 0;
      row.dollars = row.days * 24 * cluster->price_per_hour();
    } else {
      row.missing_bytes = found->nearest->prediction.missing_bytes;
      row.note = cat("does not fit: ", gigabytes(row.missing_bytes), " too much a device");
    }
    s.rows.push_back(std::move(row));
  }
  if (!any) return with_context(none, "--devices");
  double best = 0;
  for (const SweepRow& r : s.rows) best = std::max(best, r.efficiency);
  std::optional<size_t> good;
  for (size_t k = 0; k < s.rows.size(); ++k) {
    SweepRow& r = s.rows[k];
    if (!r.best) continue;
    r.efficiency /= best;
    if (r.efficiency >= kKnee) good = k, s.knee.reset();
    if (r.efficiency < kKnee && good) s.knee = good;
  }
  return s;
}

namespace {

// Without exponents where the number is large.
std::string plain(double v) { return v < 1000 ? fmt::format("{:.4g}", v) : fmt::format("{:.0f}", v); }

}  // namespace

std::string sweep_table(const Sweep& s, double tokens) {
  std::string text = fmt::format("{:>8} {:>10} {:>7} {:>9}{}  layout\n", "devices", "step s", "effic.", "memory",
                                 tokens > 0 ? fmt::format(" {:>9} {:>12}", "days", "$") : "");
  for (size_t k = 0; k < s.rows.size(); ++k) {
    const SweepRow& r = s.rows[k];
    if (!r.best) {
      text += fmt::format("{:>8} {:>10} {}\n", r.devices, "-", r.note);
      continue;
    }
    const Prediction& p = r.best->prediction;
    text += fmt::format(
        "{:>8} {:>10.4g} {:>6.1f}% {:>9}{}  {}{}\n", r.devices, p.step_seconds, 100 * r.efficiency,
        gigabytes(p.most_memory()),
        tokens > 0 ? fmt::format(" {:>9} {:>12}", plain(r.days), r.dollars > 0 ? plain(r.dollars) : "-") : "",
        describe(r.best->layout), k == s.knee ? "   <- the knee" : "");
  }
  double most = 0;
  for (const SweepRow& r : s.rows) most = r.best ? std::max(most, 1 / r.best->prediction.step_seconds) : most;
  if (most > 0) text += "steps a second (logarithmic)\n";
  for (const SweepRow& r : s.rows) {
    if (!r.best) continue;
    double level = 1 + std::log2(1 / r.best->prediction.step_seconds / most) / 12;
    text += fmt::format("{:>8} {}\n", r.devices,
                        std::string(static_cast<size_t>(std::lround(60 * std::clamp(level, 0.02, 1.0))), '#'));
  }
  const bool planned = most > 0;
  if (planned && !s.knee)
    text += fmt::format("no knee: throughput per device stays above {:.0f} % of the best\n", 100 * kKnee);
  if (planned)
    text += fmt::format("{} are expected within {:.0f} % (docs/planning.md)\n",
                        tokens > 0 ? "times, days and $" : "times", 100 * s.band);
  return s.assumed.empty() ? text : cat(text, s.assumed, "\n");
}

std::string sweep_csv(const Sweep& s) {
  std::string text = "devices,step_seconds,low,high,efficiency,memory_bytes,days,dollars,layout\n";
  for (const SweepRow& r : s.rows) {
    if (!r.best) {
      text += fmt::format("{},,,,,,,,\"{}\"\n", r.devices, r.note);
      continue;
    }
    double t = r.best->prediction.step_seconds;
    text += fmt::format("{},{:.6g},{:.6g},{:.6g},{:.4f},{:.0f},{:.5g},{:.6g},\"{}\"\n", r.devices, t, t * (1 - s.band),
                        t * (1 + s.band), r.efficiency, r.best->prediction.most_memory(), r.days, r.dollars,
                        describe(r.best->layout));
  }
  return text;
}

std::string sweep_svg(const Sweep& s, double tokens_per_step) {
  double low_x = 1e300, high_x = 0, low_y = 1e300, high_y = 0;
  for (const SweepRow& r : s.rows) {
    if (!r.best) continue;
    double rate = tokens_per_step / r.best->prediction.step_seconds;
    low_x = std::min(low_x, static_cast<double>(r.devices)), high_x = std::max(high_x, static_cast<double>(r.devices));
    low_y = std::min(low_y, rate / (1 + s.band)), high_y = std::max(high_y, rate / (1 - s.band));
  }
  std::string text =
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 640 400\" font-family=\"sans-serif\" "
      "font-size=\"12\">\n<rect width=\"640\" height=\"400\" fill=\"#fff\"/>\n";
  if (high_x == 0) return text + "<text x=\"20\" y=\"30\">nothing fits</text></svg>\n";
  auto place = [](double v, double low, double high, double from, double to) {
    return high > low ? from + (to - from) * std::log(v / low) / std::log(high / low) : (from + to) / 2;
  };
  std::string line, points, over, under;
  for (const SweepRow& r : s.rows) {
    if (!r.best) continue;
    double rate = tokens_per_step / r.best->prediction.step_seconds;
    auto height = [&](double v) { return place(v, low_y, high_y, 340, 40); };
    double x = place(static_cast<double>(r.devices), low_x, high_x, 80, 600), y = height(rate);
    line += fmt::format("{:.1f},{:.1f} ", x, y);
    over += fmt::format("{:.1f},{:.1f} ", x, height(rate / (1 - s.band)));
    under = fmt::format("{:.1f},{:.1f} ", x, height(rate / (1 + s.band))) + under;
    const bool knee = s.knee && &r == &s.rows[*s.knee], left = x < 160;  // there is no room to the left of the first
    points += fmt::format(
        "<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"{}\"><title>{} devices: {:.4g} s a step{}</title></circle><text "
        "x=\"{:.1f}\" "
        "y=\"{:.1f}\"{}>{}/s{}</text><text x=\"{:.1f}\" y=\"370\" text-anchor=\"middle\">{}</text>\n",
        x, y, knee ? 7 : 4, r.devices, r.best->prediction.step_seconds,
        r.days > 0 ? cat(", ", plain(r.days), " days", r.dollars > 0 ? cat(", $", plain(r.dollars)) : "") : "",
        left ? x + 8 : x - 8, left ? y + 14 : y - 8, left ? "" : " text-anchor=\"end\"", plain(rate),
        knee ? ", the knee" : "", x, r.devices);
  }
  // As many times the throughput as devices, from the first size on.
  const auto first = std::find_if(s.rows.begin(), s.rows.end(), [](const SweepRow& r) { return r.best.has_value(); });
  const double start = tokens_per_step / first->best->prediction.step_seconds;
  const double reach = std::min(high_x, low_x * high_y / start);
  text += fmt::format(
      "<line x1=\"{:.1f}\" y1=\"{:.1f}\" x2=\"{:.1f}\" y2=\"{:.1f}\" stroke=\"#888\" stroke-dasharray=\"4\"><title>as "
      "many "
      "times the throughput as devices</title></line>\n",
      place(low_x, low_x, high_x, 80, 600), place(start, low_y, high_y, 340, 40), place(reach, low_x, high_x, 80, 600),
      place(start * reach / low_x, low_y, high_y, 340, 40));
  return text +
         fmt::format(
             "<polygon points=\"{}{}\" fill=\"#36c\" fill-opacity=\"0.15\"/>\n<polyline points=\"{}\" fill=\"none\" "
             "stroke=\"#36c\" stroke-width=\"2\"/>\n{}<text x=\"340\" y=\"392\" "
             "text-anchor=\"middle\">devices</text><text "
             "x=\"10\" y=\"20\">tokens or samples a second; the band is the error to expect, {:.0f} %; dashed: as many "
             "times "
             "as devices</text></svg>\n",
             over, under, line, points, 100 * s.band);
}

std::vector<WhatIf> what_if(const Problem& problem, const SearchOptions& options) {
  std::vector<WhatIf> out;
  auto plan_on = [&](std::string change, const Cluster& c) {
    Problem p = problem;
    p.cluster = &c;
    CostModel model(p);
    auto found = search(model, options);
    WhatIf& w = out.emplace_back(WhatIf{std::move(change), {}, ""});
    if (!found.ok()) {
      w.note = std::string(found.status().message());
    } else if (found->best) {
      w.candidate = *found->best;
    } else {
      w.note = cat("does not fit: ", gigabytes(found->nearest->prediction.missing_bytes), " too much a device");
    }
  };
  auto offer = [&](std::string change, auto set) {
    Cluster c = *problem.cluster;
    for (DeviceGroup& g : c.groups) set(g);
    plan_on(std::move(change), c);
  };
  auto sized = [&](std::string change, int64_t devices) {
    auto c = resized(*problem.cluster, devices);
    if (c.ok() && c->devices() == devices) plan_on(std::move(change), *c);
  };
  const std::vector<DeviceGroup>& groups = problem.cluster->groups;
  auto any = [&](auto has) { return std::any_of(groups.begin(), groups.end(), has); };
  plan_on("as it is", *problem.cluster);
  offer("twice the memory", [](DeviceGroup& g) { g.device.memory_bytes *= 2; });
  const bool nodes = any([](const DeviceGroup& g) { return g.nodes > 1; });
  if (nodes) {
    offer("twice the network", [](DeviceGroup& g) {
      if (g.nodes > 1) g.links.back().link.bandwidth *= 2;
    });
  }
  if (any([](const DeviceGroup& g) { return g.devices_per_node > 1; })) {
    offer("twice the links in a node", [](DeviceGroup& g) {
      if (g.devices_per_node > 1) g.links.front().link.bandwidth *= 2;
    });
  }
  offer("twice the FLOP/s", [](DeviceGroup& g) {
    for (double& f : g.device.flops) f *= 2;
  });
  if (groups.size() > 1) {  // the first holds the first stages
    Cluster c = *problem.cluster;
    std::reverse(c.groups.begin(), c.groups.end());
    plan_on(cat("groups in the order ", c.hardware()), c);
  }
  const int64_t n = problem.devices();
  if (groups.size() == 1 && groups[0].nodes > 1) sized("one more node", n + groups[0].devices_per_node);
  sized("twice the devices", 2 * n);
  return out;
}

}  // namespace partita
