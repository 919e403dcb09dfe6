#include "partitioner/planner/report/sweep.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "base/cat.h"
#include "base/quote.h"
#include "base/status.h"
#include "fmt/format.h"
#include "partitioner/planner/failures/failing_run.h"
#include "partitioner/planner/report/missing.h"

namespace partita {
namespace {

constexpr int64_t kMostDevices = int64_t{1} << 20;

absl::StatusOr<int64_t> count(std::string_view text) {
  int64_t n = 0;
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), n);
  if (error != std::errc() || end != text.data() + text.size() || n < 1 || n > kMostDevices)
    return absl::InvalidArgumentError(
        cat("--devices: expected a number of devices from 1 to ", kMostDevices, ", found ", quote(text)));
  return n;
}

FailingRun failing(const Problem& problem, const Candidate& c, double steps) {
  double parameters = 0;
  for (int k : problem.workload->units) {
    const TensorParts& p = problem.workload->kinds[static_cast<size_t>(k)].parameters;
    parameters += p[0] + p[1];
  }
  return failing_run(*problem.cluster, c.prediction.step_seconds, steps, parameters, to_pins(c.layout));
}

double goodput(const FailingRun& run) {
  constexpr int kReplays = 100;
  return expected(run, best_interval(run, kReplays, 1), kReplays, 1).goodput(run);
}

// As a cluster file with twice the bandwidth has it.
void double_bandwidth(LinkProfile& link) { link.bandwidth *= 2, link.half_bytes *= 2; }

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
                            double tokens, bool failures) {
  Sweep s;
  s.failures = failures;
  const double in_step = problem.workload->tokens * static_cast<double>(problem.global_batch);
  if (failures && tokens > kMostSteps * in_step)
    return absl::InvalidArgumentError(cat("--tokens: expected at most ", kMostSteps, " steps of ", in_step,
                                          " to be played with failures, found ", std::ceil(tokens / in_step)));
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
      double price = cluster->price_per_hour();
      if (failures) {
        const FailingRun run = failing(p, *row.best, std::ceil(tokens > 0 ? tokens / in_step : 30 * 86400 / step));
        row.goodput = goodput(run), price += run.spares_per_hour;
      }
      double rate = in_step / step * row.goodput;
      row.efficiency = rate / static_cast<double>(n);
      row.days = tokens > 0 ? tokens / rate / 86400 : 0;
      row.dollars = row.days * 24 * price;
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
    if (r.efficiency >= Sweep::kKnee) good = k, s.knee.reset();
    if (r.efficiency < Sweep::kKnee && good) s.knee = good;
  }
  return s;
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
  if (groups.size() > 1 || groups[0].nodes > 1) {
    Cluster c = *problem.cluster;
    if (c.between) double_bandwidth(*c.between);
    for (DeviceGroup& g : c.groups) {
      double_bandwidth(g.network);  // joins it to the other groups where the file has no `between`
      if (g.nodes > 1) double_bandwidth(g.links.back().link);
    }
    plan_on("twice the network", c);
  }
  if (any([](const DeviceGroup& g) { return g.devices_per_node > 1; })) {
    offer("twice the links in a node", [](DeviceGroup& g) {
      if (g.devices_per_node > 1) double_bandwidth(g.links.front().link);
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
