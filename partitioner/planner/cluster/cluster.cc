#include "partitioner/planner/cluster/cluster.h"

#include <algorithm>
#include <numeric>

#include "base/cat.h"
#include "base/quote.h"
#include "base/status.h"
#include "base/text_file.h"
#include "fmt/format.h"
#include "ir/yaml/yaml_fields.h"
#include "partitioner/planner/cluster/quantity.h"

namespace partita {
namespace {

constexpr int64_t kMostDevices = int64_t{1} << 20;
constexpr int64_t kUsualNode = 8;  // devices
// Of networks, where no unit is said, one that no card has today (800 Gb/s) is asked for.
constexpr double kFastestCard = 1e11;

struct LinkEntry {
  std::string kind;
  std::optional<Quantity> bandwidth;
  std::optional<double> latency, efficiency, rate;
  std::optional<int64_t> group, nics;
};

// What a message costs beside its bytes takes the same time: half of a slower link's bandwidth is reached by less.
void set_bandwidth(LinkProfile& link, double bandwidth) {
  if (link.bandwidth > 0) link.half_bytes *= bandwidth / link.bandwidth;
  link.bandwidth = bandwidth;
}

absl::Status parse_bandwidth(const YamlNode& node, const std::string& path, LinkEntry& out) {
  PARTITA_ASSIGN_OR_RETURN(out.bandwidth, read_quantity(node, path, Unit::kBytesPerSecond, kPositive));
  return absl::OkStatus();
}

struct GroupEntry {
  int64_t nodes = 1;
  std::optional<int64_t> devices_per_node;
  std::optional<double> price;
  int64_t spare_nodes = 0;
  const YamlNode* device = nullptr;
  const YamlNode* links = nullptr;
  const YamlNode* failures = nullptr;
  std::string preset;
};

struct ClusterEntry {
  const YamlNode* groups = nullptr;
  const YamlNode* between = nullptr;
};

template <typename Entry>
FieldParser<Entry> keep(const YamlNode* Entry::*member) {
  return [member](const YamlNode& node, const std::string&, Entry& out) {
    if (node.kind != YamlNode::Kind::kNull) out.*member = &node;
    return absl::OkStatus();
  };
}

class Reader {
 public:
  explicit Reader(const ProfileLibrary& library) : library_(library) {}

  absl::StatusOr<DeviceGroup> group(const YamlNode& node, const std::string& path) const {
    using G = GroupEntry;
    static const Fields<G> kFields = {
        {"preset", text(&G::preset)},
        {"nodes", integer(&G::nodes, 1, kMostDevices)},
        {"devices_per_node", integer(&G::devices_per_node, 1, 1 << 12)},
        {"device", keep(&G::device)},
        {"links", keep(&G::links)},
        {"price_per_hour", number(&G::price, kNonNegative)},
        {"spare_nodes", integer(&G::spare_nodes, 0, kMostDevices)},
        {"failures", keep(&G::failures)},
    };
    GroupEntry entry;
    PARTITA_RETURN_IF_ERROR(parse_fields(node, path, kFields, entry));
    DeviceGroup out;
    const NodePreset* preset = nullptr;
    if (!entry.preset.empty()) {
      preset = library_.preset(entry.preset);
      if (!preset) return unknown_name(node, join_path(path, "preset"), entry.preset, library_.preset_names());
    }
    out.nodes = entry.nodes;
    out.devices_per_node = entry.devices_per_node.value_or(preset ? preset->devices : 1);
    if (out.devices() > kMostDevices)
      return yaml_error(
          node.line, node.column,
          cat("nodes x devices_per_node: expected at most ", kMostDevices, " devices, found ", out.devices()));
    if (entry.device) {
      PARTITA_ASSIGN_OR_RETURN(out.device, device(*entry.device, join_path(path, "device")));
    } else if (preset) {
      out.device = *library_.device(preset->device);
    } else {
      return yaml_error(node.line, node.column,
                        cat(join_path(path, "device"), ": expected the name of a device (",
                            quote_list(library_.device_names(), 20), "), found nothing"));
    }
    out.price_per_hour =
        entry.price.value_or(preset && preset->price_per_hour > 0 ? preset->price_per_hour : out.device.price_per_hour);
    out.spare_nodes = entry.spare_nodes;
    if (entry.failures) {
      out.device.failures.source.clear();
      PARTITA_RETURN_IF_ERROR(parse_failure_rates(*entry.failures, join_path(path, "failures"), out.device.failures));
    }
    out.network = *library_.link(preset ? preset->outer_link : "ethernet");
    if (preset && preset->outer_bandwidth > 0) set_bandwidth(out.network, preset->outer_bandwidth);
    out.own_links = entry.links != nullptr, out.assumed_links = !entry.links && !preset;
    if (entry.links) {
      PARTITA_RETURN_IF_ERROR(links(*entry.links, join_path(path, "links"), out));
    } else {
      default_links(preset, out);
    }
    return out;
  }

  // A link, and how many devices share it: `devices` where it does not say. `node_devices`: that share a node's cards.
  absl::StatusOr<LinkLevel> level(const YamlNode& item, const std::string& at, int64_t devices,
                                  int64_t node_devices) const {
    using L = LinkEntry;
    static const Fields<L> kFields = {
        {"kind", text(&L::kind)},
        {"bandwidth", parse_bandwidth},
        {"nics", integer(&L::nics, 1, 1 << 10)},
        {"rate", quantity(&L::rate, Unit::kBytesPerSecond, kPositive)},
        {"latency", quantity(&L::latency, Unit::kSeconds, kNonNegative)},
        {"efficiency", number(&L::efficiency, {"a number in (0, 1]", [](double x) { return x > 0 && x <= 1; }})},
        {"group", integer(&L::group, 1, kMostDevices)},
    };
    LinkEntry entry;
    PARTITA_RETURN_IF_ERROR(parse_fields(item, at, kFields, entry));
    const LinkProfile* profile = library_.link(entry.kind);
    if (!profile) return unknown_name(item, join_path(at, "kind"), entry.kind, library_.link_kinds());
    LinkLevel level{*profile, entry.group.value_or(devices)};
    PARTITA_ASSIGN_OR_RETURN(const double said, bandwidth(item, at, entry, *profile, node_devices));
    set_bandwidth(level.link, said);
    level.link.latency = entry.latency.value_or(profile->latency);
    level.link.efficiency = entry.efficiency.value_or(profile->efficiency);
    PARTITA_RETURN_IF_ERROR(check_link(item, at, level.link));
    return level;
  }

 private:
  // Per device: as it is said, or a device's part of a node's cards.
  static absl::StatusOr<double> bandwidth(const YamlNode& item, const std::string& at, const LinkEntry& entry,
                                          const LinkProfile& profile, int64_t node_devices) {
    if (entry.nics.has_value() != entry.rate.has_value() || (entry.nics && entry.bandwidth))
      return yaml_error(item.line, item.column,
                        cat(at,
                            ": expected `nics` and `rate` (of a node's network cards: nics: 4, rate: 200Gb/s), or "
                            "`bandwidth` of a device, found ",
                            entry.bandwidth ? "both" : "one of the two"));
    if (entry.nics) return static_cast<double>(*entry.nics) * *entry.rate / static_cast<double>(node_devices);
    if (!entry.bandwidth) return profile.bandwidth;
    const double said = entry.bandwidth->value;
    if (is_network(entry.kind) && !entry.bandwidth->said && said > kFastestCard && said <= kFastestNetwork)
      return yaml_error(
          item.line, item.column,
          cat(at, ".bandwidth: ", said, " bytes per second of a network card is more than any has; write ", said / 1e9,
              "Gb/s for bits, or ", said / 1e9, "GB/s if it is so"));
    return said;
  }

  // Devices that a name begins: "A100" of "A100-40GB".
  std::vector<std::string> kinds_of(const std::string& name) const {
    std::vector<std::string> kinds;
    for (const std::string& known : library_.device_names()) {
      if (!name.empty() && known.starts_with(name + "-")) kinds.push_back(known);
    }
    return kinds;
  }

  absl::StatusOr<DeviceProfile> device(const YamlNode& node, const std::string& path) const {
    if (node.kind == YamlNode::Kind::kScalar) {
      const DeviceProfile* found = node.text == "defaults" ? nullptr : library_.device(node.text);
      if (found) return *found;
      const std::vector<std::string> kinds = kinds_of(node.text);
      if (kinds.size() == 1) return *library_.device(kinds[0]);
      if (kinds.empty()) return unknown_name(node, path, node.text, library_.device_names());
      return yaml_error(
          node.line, node.column,
          cat(path, ": ", quote(node.text), " comes in several sizes; which is it: ", quote_list(kinds), "?"));
    }
    if (node.kind != YamlNode::Kind::kMapping) return unexpected(node, path, "the name of a device, or a description");
    DeviceProfile out = *library_.device("defaults");
    YamlNode own = node;
    own.entries.clear();
    for (const YamlEntry& e : node.entries) {
      if (e.key != "like") {
        own.entries.push_back(e);
        continue;
      }
      const DeviceProfile* base = library_.device(e.value->text);
      if (!base) return unknown_name(*e.value, join_path(path, "like"), e.value->text, library_.device_names());
      out = *base;
    }
    PARTITA_RETURN_IF_ERROR(parse_device(own, path, out));
    PARTITA_RETURN_IF_ERROR(check_device(node, path, out));
    return out;
  }

  absl::Status links(const YamlNode& node, const std::string& path, DeviceGroup& out) const {
    if (node.kind != YamlNode::Kind::kSequence || node.items.empty())
      return unexpected(node, path, "a list of links, innermost first");
    int64_t inner = 1;
    for (size_t k = 0; k < node.items.size(); ++k) {
      const YamlNode& item = *node.items[k];
      std::string at = cat(path, "[", k, "]");
      PARTITA_ASSIGN_OR_RETURN(LinkLevel level,
                               this->level(item, at, k + 1 == node.items.size() ? out.devices() : out.devices_per_node,
                                           out.devices_per_node));
      if (level.group % inner != 0 || out.devices() % level.group != 0) {
        return yaml_error(item.line, item.column,
                          cat(at, ".group: expected a multiple of the level inside (", inner, ") that divides the ",
                              out.devices(), " devices, found ", level.group));
      }
      inner = level.group;
      out.links.push_back(std::move(level));
    }
    if (inner != out.devices()) {
      return yaml_error(node.line, node.column,
                        cat(path, ": expected a last level that joins all ", out.devices(), " devices, found one of ",
                            inner, "; add a link with group: ", out.devices()));
    }
    return absl::OkStatus();
  }

  void default_links(const NodePreset* preset, DeviceGroup& out) const {
    if (out.devices_per_node > 1 || out.nodes == 1)
      out.links.push_back({*library_.link(preset ? preset->inner_link : "pcie"), out.devices_per_node});
    if (out.nodes > 1) out.links.push_back({out.network, out.devices()});
  }

  const ProfileLibrary& library_;
};

}  // namespace

int64_t Cluster::devices() const {
  int64_t n = 0;
  for (const DeviceGroup& g : groups) n += g.devices();
  return n;
}

double Cluster::price_per_hour() const {
  double price = 0;
  for (const DeviceGroup& g : groups) price += g.price_per_hour * static_cast<double>(g.devices());
  return price;
}

double Cluster::peak_flops(Precision precision) const {
  double flops = 0;
  for (const DeviceGroup& g : groups) flops += g.device.peak(precision) * static_cast<double>(g.devices());
  return flops;
}

std::string Cluster::hardware() const {
  std::string text;
  for (const DeviceGroup& g : groups) append(text, text.empty() ? "" : " + ", g.devices(), " x ", g.device.name);
  return text;
}

std::string Cluster::wiring() const {
  std::string text;
  bool assumed = false;
  auto link = [&](const LinkProfile& l, int64_t among) {
    append(text, text.empty() ? "" : ", ", fmt::format("{} {:.3g} GB/s among {}", l.kind, l.bandwidth / 1e9, among));
  };
  for (const DeviceGroup& g : groups) {
    if (groups.size() > 1) append(text, text.empty() ? "" : "; ", g.device.name, ": ");
    std::string own;
    std::swap(own, text);
    for (const LinkLevel& l : g.links) {
      if (l.group > 1) link(l.link, l.group);
    }
    text = own + text;
    assumed = assumed || (g.assumed_links && g.devices() > 1);
  }
  if (groups.size() > 1) {
    const LinkProfile network = joined(0, groups.size() - 1, Precision::kFp32).links.back().link;
    append(text, "; between the groups: ", fmt::format("{} {:.3g} GB/s", network.kind, network.bandwidth / 1e9));
  }
  if (assumed) text += " (assumed: the cluster file names neither a preset nor links)";
  return text;
}

size_t Cluster::index_of_group(int64_t rank) const {
  size_t k = 0;
  while (k + 1 < groups.size() && rank >= groups[k].devices()) rank -= groups[k++].devices();
  return k;
}

DeviceGroup Cluster::joined(size_t first, size_t last, Precision precision) const {
  DeviceGroup out = groups[first];
  if (first == last) return out;
  LinkProfile inner = out.links.front().link, network = between.value_or(out.network);
  auto slower = [](const LinkProfile& a, const LinkProfile& b) { return a.bandwidth <= b.bandwidth ? a : b; };
  int64_t devices = 0;
  for (size_t k = first; k <= last; ++k) {
    const DeviceGroup& g = groups[k];
    DeviceProfile device = g.device.peak(precision) < out.device.peak(precision) ? g.device : out.device;
    for (size_t f = 0; f < device.flops.size(); ++f) device.flops[f] = std::min(g.device.flops[f], out.device.flops[f]);
    device.bandwidth = std::min(g.device.bandwidth, out.device.bandwidth);
    device.memory_bytes = std::min(g.device.memory_bytes, out.device.memory_bytes);
    device.reserve_bytes = std::max(g.device.reserve_bytes, out.device.reserve_bytes);
    out.device = std::move(device);
    out.devices_per_node = std::gcd(out.devices_per_node, g.devices_per_node);
    devices += g.devices();
    inner = slower(inner, g.links.front().link);
    network = slower(network, g.nodes > 1 ? g.links.back().link : between.value_or(g.network));
  }
  out.nodes = devices / out.devices_per_node;
  out.links.clear();
  if (out.devices_per_node > 1) out.links.push_back({inner, out.devices_per_node});
  out.links.push_back({network, devices});
  out.network = network;
  return out;
}

absl::StatusOr<Cluster> parse_cluster(std::string_view text, const std::string& file, const ProfileLibrary& library) {
  auto in_file = [&](const absl::Status& s) { return absl::Status(s.code(), cat(file, ":", s.message())); };
  auto root = parse_yaml(text);
  if (!root.ok()) return in_file(root.status());
  Cluster out;
  out.text = std::string(text);
  Reader reader(library);
  const YamlNode& node = **root;
  auto has = [&](std::string_view key) {
    return node.kind == YamlNode::Kind::kMapping &&
           std::any_of(node.entries.begin(), node.entries.end(), [&](const YamlEntry& e) { return e.key == key; });
  };
  if (!has("groups")) {
    auto group = reader.group(node, "");
    if (!group.ok()) return in_file(group.status());
    out.groups.push_back(*std::move(group));
    return out;
  }
  static const Fields<ClusterEntry> kFields = {{"groups", keep(&ClusterEntry::groups)},
                                               {"between", keep(&ClusterEntry::between)}};
  ClusterEntry entry;
  if (absl::Status read = parse_fields(node, "", kFields, entry); !read.ok()) return in_file(read);
  if (!entry.groups || entry.groups->kind != YamlNode::Kind::kSequence || entry.groups->items.empty())
    return in_file(unexpected(entry.groups ? *entry.groups : node, "groups", "a list of groups of devices"));
  for (size_t k = 0; k < entry.groups->items.size(); ++k) {
    auto group = reader.group(*entry.groups->items[k], cat("groups[", k, "]"));
    if (!group.ok()) return in_file(group.status());
    out.groups.push_back(*std::move(group));
  }
  if (entry.between) {
    auto link = reader.level(*entry.between, "between", out.devices(), out.groups[0].devices_per_node);
    if (!link.ok()) return in_file(link.status());
    out.between = std::move(link->link);
  }
  return out;
}

absl::StatusOr<Cluster> load_cluster(const std::string& path, const ProfileLibrary& library) {
  PARTITA_ASSIGN_OR_RETURN(std::string text, read_text_file(path, kMaxYamlBytes));
  return parse_cluster(text, shown_path(path), library);
}

namespace {

absl::StatusOr<DeviceGroup> resized(DeviceGroup g, int64_t devices) {
  if (g.devices() == 1 && devices > 1) g.devices_per_node = std::min(devices, kUsualNode);
  if (devices < 1 || (devices > g.devices_per_node && devices % g.devices_per_node != 0)) {
    return absl::InvalidArgumentError(
        cat("expected whole nodes of ", g.devices_per_node, " devices, or part of one, found ", devices, " devices"));
  }
  const bool first_network = g.nodes == 1 && devices > g.devices_per_node;
  g.nodes = std::max<int64_t>(1, devices / g.devices_per_node);
  g.devices_per_node = std::min(devices, g.devices_per_node);
  if (first_network) {
    if (!g.links.empty()) g.links.back().group = g.devices_per_node;
    g.links.push_back({g.network, devices});
  }
  std::vector<LinkLevel> links;
  for (LinkLevel level : g.links) {
    level.group = std::min(level.group, devices);
    while (level.group > 1 && devices % level.group != 0) --level.group;
    if (links.empty() || links.back().group < devices) links.push_back(std::move(level));
  }
  if (!links.empty()) links.back().group = devices;
  g.links = std::move(links);
  return g;
}

}  // namespace

absl::StatusOr<Cluster> resized(const Cluster& cluster, int64_t devices) {
  Cluster out = cluster;
  const int64_t all = cluster.devices();
  for (DeviceGroup& g : out.groups) {
    const int64_t share = g.devices() * devices;
    if (share % all != 0)
      return absl::InvalidArgumentError(cat("expected a number of devices that the ", cluster.groups.size(),
                                            " groups can share as they share ", all, ", found ", devices));
    PARTITA_ASSIGN_OR_RETURN(g, resized(std::move(g), share / all));
  }
  return out;
}

}  // namespace partita
