#include "partitioner/planner/search/fixes.h"

#include <algorithm>

#include "base/cat.h"
#include "fmt/format.h"

namespace partita {
namespace {

constexpr int64_t kAllocatedForFix = 12;  // layouts of one change

std::string link_text(const LinkLevel& level, const ProfileLibrary& library) {
  const LinkProfile &l = level.link, &kind = *library.link(l.kind);
  std::string text = cat("{kind: ", l.kind);
  auto own = [&](const char* key, double value, double usual) {
    if (value != usual) text += fmt::format(", {}: {:.10g}", key, value);
  };
  own("bandwidth", l.bandwidth, kind.bandwidth), own("latency", l.latency, kind.latency);
  own("efficiency", l.efficiency, kind.efficiency);
  return cat(text, ", group: ", level.group, "}");
}

// "nodes: 2; links: [{kind: nvlink4, group: 8}, …]": the lines of a cluster file with which it becomes `after`.
std::string cluster_lines(const Cluster& before, const Cluster& after, const ProfileLibrary& library) {
  std::string text;
  for (size_t k = 0; k < after.groups.size(); ++k) {
    const DeviceGroup &was = before.groups[k], &now = after.groups[k];
    const std::string of = after.groups.size() > 1 ? cat("groups[", k, "].") : "";
    auto line = [&](const char* key, const auto& value) {
      append(text, text.empty() ? "" : "; ", of, key, ": ", value);
    };
    if (now.nodes != was.nodes) line("nodes", now.nodes);
    if (now.devices_per_node != was.devices_per_node) line("devices_per_node", now.devices_per_node);
    if (!was.own_links) continue;
    std::string links;
    for (const LinkLevel& l : now.links) append(links, links.empty() ? "" : ", ", link_text(l, library));
    line("links", cat("[", links, "]"));
  }
  return cat("in the cluster file: ", text);
}

}  // namespace

std::vector<Fix> find_fixes(const Problem& problem, const SearchOptions& options, const ProfileLibrary& library) {
  std::vector<Fix> fixes;
  auto offer = [&](std::string change, const Problem& p, const SearchOptions& o) {
    CostModel model(p);
    SearchOptions own = o;
    own.time_limit = 2, own.gives_up = true;
    own.most_allocated = kAllocatedForFix;
    auto found = search(model, own);
    if (!found.ok() || !found->best) return false;
    const bool same = p.cluster == problem.cluster;
    fixes.push_back({std::move(change), *found->best, p.cluster->price_per_hour(), same});
    return true;
  };
  auto with = [&](const std::string& change, auto set) {
    SearchOptions o = options;
    set(o);
    if (o.pin == options.pin && o.recompute == options.recompute && o.micro == options.micro) return false;
    return offer(change, problem, o);
  };
  auto recompute = [&](RecomputeMode mode) {
    return with(cat("--pin recompute=", enum_name(mode)),
                [&](SearchOptions& o) { o.pin.recompute = mode, o.pin.recompute_blocks.clear(); });
  };
  const std::vector<DeviceGroup>& groups = problem.cluster->groups;
  const bool hosted =
      std::all_of(groups.begin(), groups.end(), [](const DeviceGroup& g) { return g.device.has_host(); });
  if (!recompute(RecomputeMode::kFull) && hosted) recompute(RecomputeMode::kFullOffload);
  const bool sharded = with("--pin zero=3", [](SearchOptions& o) { o.pin.zero = 3; });
  with("--pin micro_batch=1", [](SearchOptions& o) { o.pin.micro_batch = 1; });
  const bool offloaded =
      with("--pin offload=optimizer", [](SearchOptions& o) { o.pin.offload = OffloadMode::kOptimizer; });
  const bool all_offloaded = with("--pin offload=all", [](SearchOptions& o) { o.pin.offload = OffloadMode::kAll; });
  if (!sharded && !offloaded)
    with("--pin zero=3 --pin offload=optimizer",
         [](SearchOptions& o) { o.pin.zero = 3, o.pin.offload = OffloadMode::kOptimizer; });
  if (!sharded && !all_offloaded)
    with("--pin zero=3 --pin offload=all", [](SearchOptions& o) { o.pin.zero = 3, o.pin.offload = OffloadMode::kAll; });
  const std::string unpinned = "without --pin, --like and the recipe's pin, recompute and batch.micro";
  auto leave_free = [](SearchOptions& o) { o.pin = {}, o.recompute = RecomputeMode::kAuto, o.micro.reset(); };
  with(unpinned, leave_free);
  SearchOptions free = options;
  leave_free(free);
  const bool pinned = free.pin != options.pin || free.recompute != options.recompute || free.micro != options.micro;
  // Other hardware with what is pinned, else without it.
  auto offer_hardware = [&](const std::string& change, const Cluster& c) {
    Problem p = problem;
    p.cluster = &c;
    return offer(change, p, options) || (pinned && offer(cat(change, "; ", unpinned), p, free));
  };
  int64_t n = problem.devices();
  for (int64_t devices = 2 * n; devices <= 1024 * n && devices <= problem.global_batch * 64; devices *= 2) {
    auto larger = resized(*problem.cluster, devices);
    if (!larger.ok() || offer_hardware(cluster_lines(*problem.cluster, *larger, library), *larger)) break;
  }
  for (const std::string& name : library.device_names()) {
    const DeviceProfile* d = library.device(name);
    const DeviceGroup& g = problem.cluster->groups[0];
    if (problem.cluster->groups.size() != 1 || d->memory_bytes <= g.device.memory_bytes ||
        d->has_host() != g.device.has_host())
      continue;
    Cluster c = *problem.cluster;
    c.groups[0].device = problem.own_programs ? d->of_own_programs() : *d;
    c.groups[0].price_per_hour = d->price_per_hour;
    offer_hardware(cat("in the cluster file: device: ", name), c);
  }
  std::stable_sort(fixes.begin(), fixes.end(), [](const Fix& a, const Fix& b) {
    if (a.same_hardware != b.same_hardware) return a.same_hardware;
    return a.price_of_step() < b.price_of_step();
  });
  return fixes;
}

}  // namespace partita
