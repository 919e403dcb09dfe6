#include "partitioner/planner/cluster/write_profile.h"

#include "base/cat.h"
#include "base/quote.h"
#include "fmt/format.h"
#include "ir/recipe/recipe.h"

namespace partita {
namespace {

std::string number(double x) { return fmt::format("{:.6g}", x); }

std::string curve(const EfficiencyCurve& c) {
  std::string text;
  for (auto [size, share] : c.points) append(text, text.empty() ? "" : ", ", number(size), ": ", number(share));
  return cat("{", text, "}");
}

// Lines "      key: value" of one device.
class Lines {
 public:
  explicit Lines(size_t indent) : indent_(indent, ' ') {}
  void add(std::string_view key, const std::string& value) { append(text_, indent_, key, ": ", value, "\n"); }
  void add(std::string_view key, double value) { add(key, number(value)); }
  void add(std::string_view key, const EfficiencyCurve& value) {
    if (!value.points.empty()) add(key, curve(value));
  }
  std::string take() { return std::move(text_); }

 private:
  std::string indent_, text_;
};

std::string device_text(const DeviceProfile& d) {
  Lines l(4);
  l.add("source", quote(d.source));
  l.add("memory", d.memory_bytes), l.add("reserve", d.reserve_bytes), l.add("bandwidth", d.bandwidth);
  l.add("reserved_communicators", d.reserved_communicators);
  l.add("communicator_receive", d.communicator_receive_bytes), l.add("communicator_send", d.communicator_send_bytes);
  l.add("attention_scratch", d.attention_scratch_bytes);
  std::string flops, tiles;
  auto names = enum_names<Precision>();
  for (size_t p = 0; p < d.flops.size(); ++p) {
    if (d.flops[p] > 0) append(flops, flops.empty() ? "" : ", ", names[p], ": ", number(d.flops[p]));
  }
  for (const MatrixTile& t : d.tiles) {
    append(tiles, tiles.empty() ? "" : ", ", "{m: ", number(t.m), ", n: ", number(t.n),
           ", relative: ", number(t.relative), "}");
  }
  l.add("flops", cat("{", flops, "}")), l.add("processors", d.processors);
  if (d.clock > 0) {
    const ProcessorLanes& n = d.lanes;
    l.add("clock", d.clock), l.add("cache", d.cache);
    l.add("lanes", cat("{issue: ", number(n.issue), ", fp32: ", number(n.fp32), ", fp64: ", number(n.fp64),
                       ", integer: ", number(n.integer), ", special: ", number(n.special), ", convert: ",
                       number(n.convert), ", exchange: ", number(n.exchange), ", memory: ", number(n.memory), "}"));
  }
  l.add("matrix", d.matrix), l.add("matrix_rows", d.matrix_rows), l.add("matrix_columns", d.matrix_columns);
  l.add("convolution", d.convolution), l.add("convolution_plane", d.convolution_plane);
  l.add("convolution_strided", d.convolution_strided);
  if (!tiles.empty()) l.add("tiles", cat("[", tiles, "]"));
  l.add("attention_flash", d.attention_flash), l.add("attention_math", d.attention_math);
  l.add("attention_backward", d.attention_backward), l.add("misaligned", d.misaligned);
  l.add("memory_curve", d.memory);
  l.add("launch_seconds", d.launch_seconds), l.add("interference", d.interference);
  if (d.host_bandwidth > 0) l.add("host_bandwidth", d.host_bandwidth);
  l.add("host_memory", d.host_memory_bytes), l.add("host_update_rate", d.host_update_rate);
  if (d.price_per_hour > 0) l.add("price_per_hour", d.price_per_hour);
  const SoftwareProfile& s = d.software;
  Lines software(6);
  software.add("step_seconds", s.step_seconds), software.add("micro_batch_seconds", s.micro_batch_seconds);
  software.add("kernel_seconds", s.kernel_seconds), software.add("recompute_seconds", s.recompute_seconds);
  software.add("overlap_data", s.overlap_data);
  software.add("overlap_gather", s.overlap_gather), software.add("overlap_send", s.overlap_send);
  software.add("overlap_slowdown", s.overlap_slowdown);
  software.add("straggler_per_doubling", s.straggler_per_doubling);
  software.add("gradient_bytes", s.gradient_bytes), software.add("fragmentation", s.fragmentation);
  software.add("math_score_bytes", s.math_score_bytes), software.add("math_score_traffic", s.math_score_traffic);
  software.add("fused_softmax_keys", s.fused_softmax_keys);
  software.add("unfused_score_traffic", s.unfused_score_traffic);
  software.add("accumulate_bytes", s.accumulate_bytes), software.add("bucket_bytes", s.bucket_bytes);
  software.add("shard_message_bytes", s.shard_message_bytes);
  software.add("gather_message_bytes", s.gather_message_bytes);
  software.add("composed_forward_bytes", s.composed_forward_bytes);
  software.add("composed_backward_bytes", s.composed_backward_bytes);
  software.add("composed_saved_bytes", s.composed_saved_bytes), software.add("logit_bytes", s.logit_bytes);
  software.add("gathered_logit_bytes", s.gathered_logit_bytes), software.add("memory_traffic", s.memory_traffic);
  software.add("copies", s.copies);
  return cat("  ", d.name, ":\n", l.take(), "    software:\n", software.take());
}

std::string link_text(const LinkProfile& link) {
  Lines l(4);
  l.add("source", quote(link.source));
  l.add("bandwidth", link.bandwidth), l.add("latency", link.latency), l.add("efficiency", link.efficiency);
  l.add("half_bytes", link.half_bytes), l.add("multicast", link.multicast ? "true" : "false");
  l.add("multicast_gain", link.multicast_gain), l.add("wait_seconds", link.wait_seconds);
  return cat("  ", link.kind, ":\n", l.take());
}

std::string preset_text(const NodePreset& p) {
  Lines l(4);
  l.add("source", quote(p.source));
  l.add("device", p.device), l.add("devices", cat(p.devices)), l.add("inner_link", p.inner_link);
  l.add("outer_link", p.outer_link);
  if (p.outer_bandwidth > 0) l.add("outer_bandwidth", p.outer_bandwidth);
  if (p.price_per_hour > 0) l.add("price_per_hour", p.price_per_hour);
  return cat("  ", p.name, ":\n", l.take());
}

}  // namespace

std::string profile_text(const ProfileSet& profiles) {
  std::string text;
  auto section = [&](std::string_view name, const auto& list, auto entry) {
    if (list.empty()) return;
    append(text, name, ":\n");
    for (const auto& x : list) text += entry(x);
  };
  section("devices", profiles.devices, device_text);
  section("links", profiles.links, link_text);
  section("presets", profiles.presets, preset_text);
  return text;
}

}  // namespace partita
