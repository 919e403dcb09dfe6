#include "partitioner/planner/cluster/device_profile.h"

#include <algorithm>
#include <cmath>

#include "base/cat.h"
#include "base/quote.h"
#include "ir/yaml/yaml_fields.h"
#include "partitioner/planner/cluster/quantity.h"

namespace partita {
namespace {

constexpr std::string_view kOwn = "own";
constexpr double kLeastMemory = 1e6;   // that a device was ever made with
constexpr double kFastestLink = 4e12;  // as kFastestNetwork
constexpr NumberRange kShare = {"a number in [0, 1]", [](double x) { return x >= 0 && x <= 1; }};
constexpr NumberRange kEfficiency = {"a number in (0, 1]", [](double x) { return x > 0 && x <= 1; }};

// {size: fraction, …}
absl::Status parse_curve(const YamlNode& node, const std::string& path, EfficiencyCurve& out) {
  if (node.kind != YamlNode::Kind::kMapping || node.entries.empty())
    return unexpected(node, path, "a mapping from sizes to fractions of the peak");
  out.points.clear();
  for (const YamlEntry& e : node.entries) {
    YamlNode key;
    key.kind = YamlNode::Kind::kScalar, key.text = e.key, key.line = e.line, key.column = e.column;
    PARTITA_ASSIGN_OR_RETURN(double size, read_number(key, path, kPositive));
    PARTITA_ASSIGN_OR_RETURN(double fraction, read_number(*e.value, join_path(path, e.key), kEfficiency));
    if (!out.points.empty() && size <= out.points.back().first)
      return yaml_error(e.line, e.column, cat(path, ": expected sizes in ascending order, found ", e.key));
    out.points.emplace_back(size, fraction);
  }
  return absl::OkStatus();
}

template <typename T>
FieldParser<T> curve(EfficiencyCurve T::*member) {
  return
      [member](const YamlNode& node, const std::string& path, T& out) { return parse_curve(node, path, out.*member); };
}

absl::StatusOr<double> flops_of(const YamlNode& node, const std::string& path) {
  PARTITA_ASSIGN_OR_RETURN(const Quantity q, read_quantity(node, path, Unit::kFlops, kPositive));
  return q.value;
}

absl::Status parse_flops(const YamlNode& node, const std::string& path, DeviceProfile& out) {
  if (node.kind != YamlNode::Kind::kMapping) return unexpected(node, path, "FLOP/s by precision: {bf16: 312e12, …}");
  auto names = enum_names<Precision>();
  for (const YamlEntry& e : node.entries) {
    auto at = std::find(names.begin(), names.end(), e.key);
    if (at == names.end()) return unknown_key(e, path, names);
    PARTITA_ASSIGN_OR_RETURN(out.flops[static_cast<size_t>(at - names.begin())],
                             flops_of(*e.value, join_path(path, e.key)));
  }
  return absl::OkStatus();
}

absl::Status parse_tiles(const YamlNode& node, const std::string& path, DeviceProfile& out) {
  static const Fields<MatrixTile> kFields = {{"m", number(&MatrixTile::m, kPositive)},
                                             {"n", number(&MatrixTile::n, kPositive)},
                                             {"relative", number(&MatrixTile::relative, kEfficiency)}};
  if (node.kind != YamlNode::Kind::kSequence || node.items.empty())
    return unexpected(node, path, "a list of tiles {m, n, relative}");
  out.tiles.clear();
  for (const auto& item : node.items) {
    MatrixTile tile;
    PARTITA_RETURN_IF_ERROR(parse_fields(*item, path, kFields, tile));
    out.tiles.push_back(tile);
  }
  return absl::OkStatus();
}

absl::Status parse_software(const YamlNode& node, const std::string& path, SoftwareProfile& out) {
  using S = SoftwareProfile;
  static const Fields<S> kFields = {
      {"step_seconds", number(&S::step_seconds, kNonNegative)},
      {"micro_batch_seconds", number(&S::micro_batch_seconds, kNonNegative)},
      {"kernel_seconds", number(&S::kernel_seconds, kNonNegative)},
      {"recompute_seconds", number(&S::recompute_seconds, kNonNegative)},
      {"overlap_data", number(&S::overlap_data, kShare)},
      {"overlap_gather", number(&S::overlap_gather, kShare)},
      {"overlap_send", number(&S::overlap_send, kShare)},
      {"overlap_slowdown", number(&S::overlap_slowdown, kNonNegative)},
      {"straggler_per_doubling", number(&S::straggler_per_doubling, kNonNegative)},
      {"gradient_bytes", number(&S::gradient_bytes, kPositive)},
      {"fragmentation", number(&S::fragmentation, kNonNegative)},
      {"math_score_bytes", number(&S::math_score_bytes, kNonNegative)},
      {"math_score_traffic", number(&S::math_score_traffic, kNonNegative)},
      {"fused_softmax_keys", number(&S::fused_softmax_keys, kNonNegative)},
      {"unfused_score_traffic", number(&S::unfused_score_traffic, kNonNegative)},
      {"accumulate_bytes", number(&S::accumulate_bytes, kNonNegative)},
      {"bucket_bytes", number(&S::bucket_bytes, kNonNegative)},
      {"shard_message_bytes", number(&S::shard_message_bytes, kNonNegative)},
      {"gather_message_bytes", number(&S::gather_message_bytes, kNonNegative)},
      {"composed_forward_bytes", number(&S::composed_forward_bytes, kNonNegative)},
      {"composed_backward_bytes", number(&S::composed_backward_bytes, kNonNegative)},
      {"composed_saved_bytes", number(&S::composed_saved_bytes, kNonNegative)},
      {"logit_bytes", number(&S::logit_bytes, kNonNegative)},
      {"gathered_logit_bytes", number(&S::gathered_logit_bytes, kNonNegative)},
      {"memory_traffic", number(&S::memory_traffic, kPositive)},
      {"copies", number(&S::copies, kNonNegative)},
  };
  return parse_fields(node, path, kFields, out);
}

absl::Status parse_lanes(const YamlNode& node, const std::string& path, ProcessorLanes& out) {
  using L = ProcessorLanes;
  static const Fields<L> kFields = {
      {"issue", number(&L::issue, kPositive)},       {"fp32", number(&L::fp32, kPositive)},
      {"fp64", number(&L::fp64, kPositive)},         {"integer", number(&L::integer, kPositive)},
      {"special", number(&L::special, kPositive)},   {"convert", number(&L::convert, kPositive)},
      {"exchange", number(&L::exchange, kPositive)}, {"memory", number(&L::memory, kPositive)},
  };
  return parse_fields(node, path, kFields, out);
}

absl::Status parse_link(const YamlNode& node, const std::string& path, LinkProfile& out) {
  using L = LinkProfile;
  static const Fields<L> kFields = {
      {"source", text(&L::source)},
      {"bandwidth", quantity(&L::bandwidth, Unit::kBytesPerSecond, kPositive)},
      {"latency", quantity(&L::latency, Unit::kSeconds, kNonNegative)},
      {"efficiency", number(&L::efficiency, kEfficiency)},
      {"half_bytes", number(&L::half_bytes, kNonNegative)},
      {"multicast", boolean(&L::multicast)},
      {"multicast_gain", number(&L::multicast_gain, kPositive)},
      {"wait_seconds", number(&L::wait_seconds, kNonNegative)},
  };
  return parse_fields(node, path, kFields, out);
}

absl::Status parse_preset(const YamlNode& node, const std::string& path, NodePreset& out) {
  using N = NodePreset;
  static const Fields<N> kFields = {
      {"source", text(&N::source)},
      {"device", text(&N::device)},
      {"devices", integer(&N::devices, 1, 1 << 10)},
      {"inner_link", text(&N::inner_link)},
      {"outer_link", text(&N::outer_link)},
      {"outer_bandwidth", quantity(&N::outer_bandwidth, Unit::kBytesPerSecond, kPositive)},
      {"price_per_hour", number(&N::price_per_hour, kNonNegative)},
  };
  return parse_fields(node, path, kFields, out);
}

template <typename T, typename Parse>
absl::Status parse_named(const YamlNode& node, const std::string& path, std::map<std::string, T, std::less<>>& out,
                         std::string T::*name, Parse parse) {
  if (node.kind != YamlNode::Kind::kMapping) return unexpected(node, path, "a mapping by name");
  for (const YamlEntry& e : node.entries) {
    T& entry = out[e.key];
    entry.*name = e.key;
    PARTITA_RETURN_IF_ERROR(parse(*e.value, join_path(path, e.key), entry));
  }
  return absl::OkStatus();
}

}  // namespace

double DeviceProfile::peak(Precision precision) const {
  const double named = flops[static_cast<size_t>(precision)];
  return named > 0 ? named : *std::max_element(flops.begin(), flops.begin() + static_cast<size_t>(Precision::kFp8));
}

double EfficiencyCurve::at(double size) const {
  if (points.empty()) return 1;
  if (size <= points.front().first) return points.front().second;
  for (size_t k = 1; k < points.size(); ++k) {
    const auto& [x1, y1] = points[k];
    if (size > x1) continue;
    const auto& [x0, y0] = points[k - 1];
    return y0 + (y1 - y0) * std::log(size / x0) / std::log(x1 / x0);
  }
  return points.back().second;
}

absl::Status parse_device(const YamlNode& node, const std::string& path, DeviceProfile& out) {
  using D = DeviceProfile;
  static const Fields<D> kFields = {
      {"name", text(&D::name)},
      {"source", text(&D::source)},
      {"memory", quantity(&D::memory_bytes, Unit::kBytes, kPositive)},
      {"reserve", quantity(&D::reserve_bytes, Unit::kBytes, kNonNegative)},
      {"reserved_communicators", number(&D::reserved_communicators, kNonNegative)},
      {"communicator_receive", number(&D::communicator_receive_bytes, kNonNegative)},
      {"communicator_send", number(&D::communicator_send_bytes, kNonNegative)},
      {"attention_scratch", quantity(&D::attention_scratch_bytes, Unit::kBytes, kNonNegative)},
      {"bandwidth", quantity(&D::bandwidth, Unit::kBytesPerSecond, kPositive)},
      {"flops", parse_flops},
      {"processors", number(&D::processors, kPositive)},
      {"clock", number(&D::clock, kNonNegative)},
      {"cache", quantity(&D::cache, Unit::kBytes, kNonNegative)},
      {"lanes", [](const YamlNode& n, const std::string& p, D& d) { return parse_lanes(n, p, d.lanes); }},
      {"matrix", curve(&D::matrix)},
      {"matrix_rows", curve(&D::matrix_rows)},
      {"matrix_columns", curve(&D::matrix_columns)},
      {"convolution", curve(&D::convolution)},
      {"convolution_plane", curve(&D::convolution_plane)},
      {"convolution_strided", number(&D::convolution_strided, kEfficiency)},
      {"tiles", parse_tiles},
      {"attention_flash", curve(&D::attention_flash)},
      {"attention_math", curve(&D::attention_math)},
      {"attention_backward", number(&D::attention_backward, kPositive)},
      {"misaligned", number(&D::misaligned, kEfficiency)},
      {"memory_curve", curve(&D::memory)},
      {"launch_seconds", number(&D::launch_seconds, kNonNegative)},
      {"interference", number(&D::interference, kNonNegative)},
      {"host_bandwidth", quantity(&D::host_bandwidth, Unit::kBytesPerSecond, kPositive)},
      {"host_memory", quantity(&D::host_memory_bytes, Unit::kBytes, kNonNegative)},
      {"host_update_rate", number(&D::host_update_rate, kNonNegative)},
      {"price_per_hour", number(&D::price_per_hour, kNonNegative)},
      {"software", [](const YamlNode& n, const std::string& p, D& d) { return parse_software(n, p, d.software); }},
      {"failures", [](const YamlNode& n, const std::string& p, D& d) { return parse_failure_rates(n, p, d.failures); }},
  };
  static const Fields<D> kAndOwn = [] {  // read below, once all that it shares has been
    Fields<D> all = kFields;
    all.push_back({kOwn, [](const YamlNode&, const std::string&, D&) { return absl::OkStatus(); }});
    return all;
  }();
  PARTITA_RETURN_IF_ERROR(parse_fields(node, path, kAndOwn, out));
  const YamlEntry* said = find_entry(node, kOwn);
  if (out.own == nullptr && said == nullptr) return absl::OkStatus();
  // What is said of the device is said of both.
  DeviceProfile own = out.own != nullptr ? *out.own : out;
  own.own.reset(), own.name = out.name;
  PARTITA_RETURN_IF_ERROR(parse_fields(node, path, kAndOwn, own));
  if (said != nullptr) PARTITA_RETURN_IF_ERROR(parse_fields(*said->value, join_path(path, kOwn), kFields, own));
  out.own = std::make_shared<const DeviceProfile>(std::move(own));
  return absl::OkStatus();
}

absl::Status check_device(const YamlNode& node, const std::string& path, const DeviceProfile& device) {
  if (device.memory_bytes <= 0 || device.bandwidth <= 0 ||
      *std::max_element(device.flops.begin(), device.flops.end()) <= 0)
    return yaml_error(node.line, node.column,
                      cat(path, ": expected memory, bandwidth and flops (or `like: DEVICE`), found a part of them"));
  if (device.memory_bytes < kLeastMemory)
    return yaml_error(node.line, node.column,
                      cat(path, ".memory: expected bytes, found ", device.memory_bytes, "; gigabytes? then write ",
                          device.memory_bytes, "e9"));
  return absl::OkStatus();
}

bool is_network(std::string_view kind) { return kind == "infiniband" || kind == "ethernet"; }

absl::Status check_link(const YamlNode& node, const std::string& path, const LinkProfile& link) {
  const double fastest = is_network(link.kind) ? kFastestNetwork : kFastestLink;
  if (link.bandwidth > fastest)
    return yaml_error(
        node.line, node.column,
        cat(path, ".bandwidth: expected bytes per second, device and direction of at most ", fastest, " for ",
            link.kind, ", found ", link.bandwidth, "; bits per second? then write ", link.bandwidth / 8));
  if (link.bandwidth <= 0)
    return yaml_error(node.line, node.column, cat(path, ".bandwidth: expected bytes per second, found nothing"));
  if (link.bandwidth < 1e6)
    return yaml_error(node.line, node.column,
                      cat(path, ".bandwidth: expected bytes per second (25e9 for 200 Gb/s), found ", link.bandwidth,
                          "; gigabytes? then write ", link.bandwidth, "e9"));
  return absl::OkStatus();
}

absl::Status unknown_name(const YamlNode& node, const std::string& path, const std::string& name,
                          const std::vector<std::string>& known) {
  const std::string near = nearest_name(name, known);
  return yaml_error(node.line, node.column,
                    cat(path, ": unknown name ", quote(name), "; ",
                        near.empty() ? cat("known are ", quote_list(known, 20)) : cat("the nearest is ", quote(near))));
}

// `defaults` and `software` are what every device starts from, so they must stand before `devices`.
absl::Status ProfileLibrary::overlay(std::string_view text, const std::string& file) {
  auto root = parse_yaml(text);
  auto in_file = [&](const absl::Status& s) { return absl::Status(s.code(), cat(file, ":", s.message())); };
  if (!root.ok()) return in_file(root.status());
  if ((*root)->kind !=
      YamlNode::Kind::kMapping)  // a file that was cut off, or another one: not a profile without values
    return in_file(
        yaml_error((*root)->line, (*root)->column, "expected devices, links and presets by name, found none"));
  DeviceProfile defaults;
  if (const DeviceProfile* d = device("defaults")) defaults = *d;
  for (const YamlEntry& e : (*root)->entries) {
    absl::Status status;
    if (e.key == "defaults") {
      status = parse_device(*e.value, e.key, defaults);
      devices_["defaults"] = defaults;
    } else if (e.key == "devices") {
      if (e.value->kind != YamlNode::Kind::kMapping) return in_file(unexpected(*e.value, e.key, "devices by name"));
      for (const YamlEntry& d : e.value->entries) {
        auto [at, fresh] = devices_.try_emplace(d.key, defaults);
        at->second.name = d.key;
        status = parse_device(*d.value, join_path(e.key, d.key), at->second);
        if (!status.ok()) break;
      }
    } else if (e.key == "links") {
      status = parse_named(*e.value, e.key, links_, &LinkProfile::kind, parse_link);
    } else if (e.key == "presets") {
      status = parse_named(*e.value, e.key, presets_, &NodePreset::name, parse_preset);
    } else {
      const std::array<std::string_view, 4> known = {"defaults", "devices", "links", "presets"};
      status = unknown_key(e, "", known);
    }
    if (!status.ok()) return in_file(status);
  }
  const absl::Status whole = check_entries(**root);
  return whole.ok() ? whole : in_file(whole);
}

// What a cluster.yaml may name is whole, whether it names it or a preset does: a bandwidth that nothing said would be
// a link that costs nothing.
absl::Status ProfileLibrary::check_entries(const YamlNode& root) const {
  for (const YamlEntry& section : root.entries) {
    for (const YamlEntry& e : section.value->entries) {
      const std::string path = join_path(section.key, e.key);
      if (section.key == "devices") {
        PARTITA_RETURN_IF_ERROR(check_device(*e.value, path, *device(e.key)));
      } else if (section.key == "links") {
        PARTITA_RETURN_IF_ERROR(check_link(*e.value, path, *link(e.key)));
      } else if (section.key == "presets") {
        PARTITA_RETURN_IF_ERROR(check_preset(*e.value, path, *preset(e.key)));
      }
    }
  }
  return absl::OkStatus();
}

absl::Status ProfileLibrary::check_preset(const YamlNode& node, const std::string& path,
                                          const NodePreset& preset) const {
  if (device(preset.device) == nullptr || preset.device == "defaults")
    return unknown_name(node, join_path(path, "device"), preset.device, device_names());
  if (link(preset.inner_link) == nullptr)
    return unknown_name(node, join_path(path, "inner_link"), preset.inner_link, link_kinds());
  if (link(preset.outer_link) == nullptr)
    return unknown_name(node, join_path(path, "outer_link"), preset.outer_link, link_kinds());
  if (preset.outer_bandwidth <= 0) return absl::OkStatus();  // the link's own
  LinkProfile outer = *link(preset.outer_link);
  outer.bandwidth = preset.outer_bandwidth;
  return check_link(node, join_path(path, "outer_link"), outer);
}

absl::StatusOr<ProfileLibrary> ProfileLibrary::load() {
  ProfileLibrary library;
  for (const auto& [name, text] : embedded_profiles()) {
    if (absl::Status s = library.overlay(text, std::string(name)); !s.ok()) return absl::InternalError(s.message());
  }
  return library;
}

namespace {

template <typename M>
auto find_in(const M& map, std::string_view name) {
  auto at = map.find(name);
  return at == map.end() ? nullptr : &at->second;
}

template <typename M>
std::vector<std::string> keys_of(const M& map) {
  std::vector<std::string> out;
  for (const auto& [k, v] : map) {
    if (k != "defaults") out.push_back(k);
  }
  return out;
}

}  // namespace

const DeviceProfile* ProfileLibrary::device(std::string_view name) const { return find_in(devices_, name); }
const LinkProfile* ProfileLibrary::link(std::string_view kind) const { return find_in(links_, kind); }
const NodePreset* ProfileLibrary::preset(std::string_view name) const { return find_in(presets_, name); }
std::vector<std::string> ProfileLibrary::device_names() const { return keys_of(devices_); }
std::vector<std::string> ProfileLibrary::link_kinds() const { return keys_of(links_); }
std::vector<std::string> ProfileLibrary::preset_names() const { return keys_of(presets_); }

}  // namespace partita
