#include "partitioner/planner/cluster/cluster.h"

#include <gtest/gtest.h>

namespace partita {
namespace {

const ProfileLibrary& library() {
  static const ProfileLibrary l = *ProfileLibrary::load();
  return l;
}

std::string error_of(std::string_view text) {
  auto c = parse_cluster(text, "cluster.yaml", library());
  EXPECT_FALSE(c.ok()) << text;
  EXPECT_EQ(c.status().code(), absl::StatusCode::kInvalidArgument);
  return c.ok() ? "" : std::string(c.status().message());
}

TEST(Cluster, EveryBuiltInDeviceHasWhatThePlannerNeeds) {
  for (const char* name : {"V100-16GB", "V100-32GB", "A100-40GB", "A100-80GB", "H100-80GB", "H100-96GB-HBM2e", "H200",
                           "B200", "L4", "RTX-4090", "cpu"}) {
    const DeviceProfile* d = library().device(name);
    ASSERT_NE(d, nullptr) << name;
    EXPECT_GT(d->memory_bytes, d->reserve_bytes) << name;
    EXPECT_GT(d->bandwidth, 0) << name;
    for (Precision p : {Precision::kFp32, Precision::kTf32, Precision::kBf16, Precision::kFp16})
      EXPECT_GT(d->flops[static_cast<size_t>(p)], 0) << name;
    EXPECT_GE(d->peak(Precision::kFp8), d->peak(Precision::kBf16)) << name;
    EXPECT_FALSE(d->tiles.empty()) << name;
    EXPECT_FALSE(d->source.empty()) << name;
  }
}

TEST(Cluster, EveryPresetIsACluster) {
  for (const std::string& name : library().preset_names()) {
    auto c = parse_cluster("preset: " + name + "\nnodes: 2\n", "c", library());
    ASSERT_TRUE(c.ok()) << c.status();
    EXPECT_EQ(c->groups[0].links.size(), 2u) << name;
    EXPECT_EQ(c->groups[0].links.back().group, c->devices());
  }
}

TEST(Cluster, LinksTakeWhatTheyDoNotSayFromTheirKind) {
  auto c = parse_cluster(
      "nodes: 4\ndevices_per_node: 8\ndevice: A100-80GB\nlinks:\n- {kind: nvlink3, group: 8}\n- {kind: infiniband, "
      "bandwidth: 12.5e9}\n",
      "c", library());
  ASSERT_TRUE(c.ok()) << c.status();
  EXPECT_EQ(c->devices(), 32);
  EXPECT_EQ(c->groups[0].links[0].link.bandwidth, 300e9);
  EXPECT_EQ(c->groups[0].links[1].link.bandwidth, 12.5e9);
  EXPECT_EQ(c->groups[0].links[1].group, 32);
}

TEST(Cluster, SeveralGroups) {
  auto c = parse_cluster("groups:\n- {preset: dgx-a100, nodes: 2}\n- {preset: dgx-h100, nodes: 1}\n", "c", library());
  ASSERT_TRUE(c.ok()) << c.status();
  EXPECT_EQ(c->devices(), 24);
  EXPECT_EQ(c->group_of(15).device.name, "A100-80GB");
  EXPECT_EQ(c->group_of(16).device.name, "H100-80GB");
}

// Ranks on both groups go over the link between them, in nodes that both are made of, at the pace of the slower device.
TEST(Cluster, GroupsThatWorkAsOne) {
  const std::string list =
      "groups:\n- {device: H100-80GB, devices_per_node: 8, links: [{kind: nvlink4, group: 8}]}\n"
      "- {device: A100-40GB, devices_per_node: 4, links: [{kind: nvlink3, group: 4}]}\n";
  auto c = parse_cluster(list + "between: {kind: infiniband, bandwidth: 20e9}\n", "c", library());
  ASSERT_TRUE(c.ok()) << c.status();
  const DeviceGroup both = c->joined(0, 1, Precision::kBf16);
  EXPECT_EQ(both.devices(), 12);
  EXPECT_EQ(both.devices_per_node, 4);
  ASSERT_EQ(both.links.size(), 2u);
  EXPECT_EQ(both.links[0].link.kind, "nvlink3");
  EXPECT_EQ(both.links[1].link.bandwidth, 20e9);
  EXPECT_EQ(both.links[1].group, 12);
  EXPECT_EQ(both.device.name, "A100-40GB");
  EXPECT_EQ(both.device.memory_bytes, c->groups[1].device.memory_bytes);
  auto open = parse_cluster(list, "c", library());
  ASSERT_TRUE(open.ok()) << open.status();
  EXPECT_EQ(open->joined(0, 1, Precision::kBf16).links[1].link.kind, "ethernet");
}

TEST(Cluster, InlineDevice) {
  auto c = parse_cluster("device: {like: A100-80GB, name: mine, memory: 60e9}\n", "c", library());
  ASSERT_TRUE(c.ok()) << c.status();
  EXPECT_EQ(c->groups[0].device.memory_bytes, 60e9);
  EXPECT_EQ(c->groups[0].device.bandwidth, 2039e9);
}

TEST(Cluster, BadInputNamesPlaceAndWay) {
  EXPECT_NE(error_of("groups:\n- {device: cpu}\nbetween: {kind: infiniband, bandwidth: 200}\n")
                .find("cluster.yaml:3:10: between.bandwidth: expected bytes per second"),
            std::string::npos);
  EXPECT_NE(error_of("groups:\n- {device: cpu}\nlinks: []\n").find("cluster.yaml:3:1: "), std::string::npos);
  EXPECT_NE(error_of("groups: []\n").find("cluster.yaml:1:9: groups: expected a list of groups of devices"),
            std::string::npos);
  EXPECT_EQ(error_of("device: A100-80Gb\n"),
            "cluster.yaml:1:9: device: unknown name 'A100-80Gb'; the nearest is 'A100-80GB'");
  EXPECT_NE(
      error_of("nodes: 1\ndevices_per_node: 8\ndevice: A100-80GB\nlinks:\n- {kind: nvlink3, bandwidth: 0, group: 8}\n")
          .find("cluster.yaml:5:"),
      std::string::npos);
  std::string bits = error_of(
      "nodes: 2\ndevices_per_node: 8\ndevice: A100-80GB\nlinks:\n- {kind: nvlink3, group: 8}\n- {kind: infiniband, "
      "bandwidth: 400e9}\n");
  EXPECT_NE(bits.find("cluster.yaml:6:"), std::string::npos) << bits;
  EXPECT_NE(bits.find("bits per second?"), std::string::npos) << bits;
  std::string group = error_of(
      "nodes: 2\ndevices_per_node: 8\ndevice: A100-80GB\nlinks:\n- {kind: nvlink3, group: 6}\n- {kind: infiniband}\n");
  EXPECT_NE(group.find("found 6"), std::string::npos) << group;
  EXPECT_NE(error_of("nodes: 2\ndevices_per_node: 8\ndevice: A100-80GB\nlinks:\n- {kind: nvlink3, group: 8}\n")
                .find("joins all 16 devices"),
            std::string::npos);
  EXPECT_NE(error_of("nodes: 2\nspeed: 3\ndevice: cpu\n").find("unknown key 'speed'"), std::string::npos);
  EXPECT_NE(error_of("device: {memory: 1e9}\n").find("expected memory, bandwidth and flops"), std::string::npos);
  EXPECT_NE(error_of("device: {like: A100-80GB, memory: 80}\n").find("gigabytes? then write 80e9"), std::string::npos);
  EXPECT_NE(error_of("groups: []\n").find("a list of groups"), std::string::npos);
  EXPECT_NE(error_of("[1, 2]").find("cluster.yaml:1:1"), std::string::npos);
  EXPECT_EQ(load_cluster("/nowhere/cluster.yaml", library()).status().code(), absl::StatusCode::kNotFound);
}

TEST(Cluster, UnitsAndNetworkCards) {
  const std::string nodes = "nodes: 2\ndevices_per_node: 8\ndevice: A100-80GB\nlinks:\n- {kind: nvlink3, group: 8}\n";
  auto outer = [&](const std::string& link) {
    auto c = parse_cluster(nodes + "- {kind: infiniband, " + link + "}\n", "cluster.yaml", library());
    EXPECT_TRUE(c.ok()) << c.status();
    return c.ok() ? c->groups[0].links[1].link : LinkProfile();
  };
  EXPECT_EQ(outer("nics: 4, rate: 200Gb/s").bandwidth, 4 * 25e9 / 8);
  // What a message costs beside its bytes takes as long over a slower wire.
  const LinkProfile whole = outer("bandwidth: 25e9"), quarter = outer("bandwidth: 6.25e9");
  EXPECT_DOUBLE_EQ(quarter.half_bytes / quarter.bandwidth, whole.half_bytes / whole.bandwidth);
  EXPECT_EQ(outer("bandwidth: 200Gb/s").bandwidth, 25e9);
  EXPECT_EQ(outer("bandwidth: 25 GB/s").bandwidth, 25e9);
  EXPECT_EQ(outer("bandwidth: 25e9, latency: 5us").bandwidth, 25e9);
  EXPECT_DOUBLE_EQ(outer("latency: 5us").latency, 5e-6);
  EXPECT_EQ(outer("bandwidth: 120GB/s").bandwidth, 120e9);  // said on purpose
  auto wrong = [&](const std::string& link) { return error_of(nodes + "- {kind: infiniband, " + link + "}\n"); };
  EXPECT_NE(wrong("bandwidth: 200e9").find("write 200Gb/s for bits, or 200GB/s if it is so"), std::string::npos);
  EXPECT_NE(wrong("nics: 4").find("expected `nics` and `rate`"), std::string::npos);
  EXPECT_NE(wrong("nics: 4, rate: 200Gb/s, bandwidth: 1e9").find("found both"), std::string::npos);
  EXPECT_NE(wrong("bandwidth: 200Gbs").find("as in 25GB/s or 200Gb/s"), std::string::npos);
  auto own = parse_cluster("device: {like: A100-80GB, memory: 60GiB, bandwidth: 2TB/s, flops: {bf16: 300TFLOP/s}}\n",
                           "c", library());
  ASSERT_TRUE(own.ok()) << own.status();
  EXPECT_EQ(own->groups[0].device.memory_bytes, 60 * 0x1p30);
  EXPECT_EQ(own->groups[0].device.bandwidth, 2e12);
  EXPECT_EQ(own->groups[0].device.flops[static_cast<size_t>(Precision::kBf16)], 300e12);
}

TEST(Cluster, ANameOfSeveralDevicesIsAQuestion) {
  EXPECT_EQ(error_of("device: A100\n"),
            "cluster.yaml:1:9: device: 'A100' comes in several sizes; which is it: 'A100-40GB', 'A100-80GB'?");
  auto one = parse_cluster("device: RTX\n", "c", library());
  ASSERT_TRUE(one.ok()) << one.status();
  EXPECT_EQ(one->groups[0].device.name, "RTX-4090");
}

TEST(Cluster, Resized) {
  auto c = parse_cluster("preset: dgx-a100\nnodes: 8\n", "c", library());
  ASSERT_TRUE(c.ok());
  EXPECT_EQ(resized(*c, 16)->groups[0].nodes, 2);
  EXPECT_EQ(resized(*c, 4)->groups[0].devices_per_node, 4);
  EXPECT_EQ(resized(*c, 4)->groups[0].links.size(), 1u);
  EXPECT_FALSE(resized(*c, 12).ok());
}

TEST(Cluster, ResizedPastOneNodeIsJoinedByItsNetwork) {
  auto node = parse_cluster("preset: dgx-h100\nnodes: 1\n", "c", library());
  ASSERT_TRUE(node.ok());
  auto pod = resized(*node, 32);
  ASSERT_TRUE(pod.ok()) << pod.status();
  const DeviceGroup& g = pod->groups[0];
  EXPECT_EQ(g.nodes, 4);
  ASSERT_EQ(g.links.size(), 2u);
  EXPECT_EQ(g.links[0].link.kind, "nvlink4");
  EXPECT_EQ(g.links[0].group, 8);
  EXPECT_EQ(g.links[1].link.kind, "infiniband");
  EXPECT_EQ(g.links[1].group, 32);
  // As the same cluster written down.
  auto written = parse_cluster("preset: dgx-h100\nnodes: 4\n", "c", library());
  EXPECT_EQ(written->groups[0].links[1].link.bandwidth, g.links[1].link.bandwidth);

  auto one = parse_cluster("device: RTX-4090\n", "c", library());
  EXPECT_EQ(resized(*one, 4)->groups[0].nodes, 1);
  EXPECT_EQ(resized(*one, 16)->groups[0].nodes, 2);
}

TEST(Cluster, ResizedGroupsKeepTheirShares) {
  auto c = parse_cluster("groups: [{preset: dgx-a100, nodes: 2}, {preset: dgx-h100, nodes: 1}]\n", "c", library());
  ASSERT_TRUE(c.ok()) << c.status();
  EXPECT_EQ(c->hardware(), "16 x A100-80GB + 8 x H100-80GB");
  EXPECT_DOUBLE_EQ(c->peak_flops(Precision::kBf16), 16 * 312e12 + 8 * 989e12);
  EXPECT_EQ(resized(*c, 48)->hardware(), "32 x A100-80GB + 16 x H100-80GB");
  EXPECT_FALSE(resized(*c, 32).ok());
}

TEST(EfficiencyCurve, IsLinearInTheLogarithm) {
  EfficiencyCurve c{{{10, 0.2}, {1000, 0.6}}};
  EXPECT_DOUBLE_EQ(c.at(1), 0.2);
  EXPECT_NEAR(c.at(100), 0.4, 1e-12);
  EXPECT_DOUBLE_EQ(c.at(1e6), 0.6);
}

// What is said of a device counts for our own programs as well, whenever it is said, but for what is said of them.
TEST(DeviceProfile_Own, HasWhatTheDeviceHasBesideItsOwn) {
  ProfileLibrary library = *ProfileLibrary::load();
  absl::Status read = library.overlay(R"(devices:
  X:
    own: {launch_seconds: 5.0e-6, software: {copies: 0}}
    memory: 8.0e9
    bandwidth: 1.0e12
    flops: {fp32: 1.0e13}
    software: {copies: 2, memory_traffic: 1.5})",
                                      "x.yaml");
  ASSERT_TRUE(read.ok()) << read;
  ASSERT_TRUE(library.overlay("devices: {X: {bandwidth: 2.0e12}}", "y.yaml").ok());
  const DeviceProfile &device = *library.device("X"), &own = device.of_own_programs();
  ASSERT_NE(&own, &device);
  EXPECT_EQ(own.name, "X");
  EXPECT_EQ(own.memory_bytes, 8e9);
  EXPECT_EQ(own.bandwidth, 2e12);
  EXPECT_EQ(device.software.copies, 2);
  EXPECT_EQ(own.software.copies, 0);
  EXPECT_EQ(own.software.memory_traffic, 1.5);
  EXPECT_EQ(own.launch_seconds, 5e-6);
  EXPECT_NE(device.launch_seconds, 5e-6);
  EXPECT_EQ(own.own, nullptr);
  const DeviceProfile& cpu = *library.device("cpu");
  EXPECT_EQ(&cpu.of_own_programs(), &cpu);
  EXPECT_FALSE(library.overlay("devices: {X: {own: {copies: 1}}}", "z.yaml").ok());
  EXPECT_FALSE(library.overlay("devices: {X: {own: {own: {memory: 1.0e9}}}}", "z.yaml").ok());
}

struct Unsound {
  std::string text, says;
};

// What a plan would be made of numbers that nobody gave, and what named nothing ended the program.
TEST(ProfileLibrary, IsWholeOrRefused) {
  const Unsound cases[] = {
      {"devices: {X: {memory: 8GB, bandwidth: 1GB/s}}",
       "p.yaml:1:14: devices.X: expected memory, bandwidth and flops (or `like: DEVICE`), found a part of them"},
      {"devices: {cpu: {memory: 8}}",
       "p.yaml:1:16: devices.cpu.memory: expected bytes, found 8; gigabytes? then write 8e9"},
      {"links: {L: {latency: 1us}}", "p.yaml:1:12: links.L.bandwidth: expected bytes per second, found nothing"},
      {"links: {L: {bandwidth: 25}}",
       "p.yaml:1:12: links.L.bandwidth: expected bytes per second (25e9 for 200 Gb/s), found 25; gigabytes? then write "
       "25e9"},
      {"presets: {N: {device: cpo, inner_link: pcie, outer_link: ethernet}}",
       "p.yaml:1:14: presets.N.device: unknown name 'cpo'; the nearest is 'cpu'"},
      {"presets: {N: {device: cpu, inner_link: pcei, outer_link: ethernet}}",
       "p.yaml:1:14: presets.N.inner_link: unknown name 'pcei'; the nearest is 'pcie'"},
      {"presets: {N: {device: cpu, inner_link: pcie, outer_link: ethernet, outer_bandwidth: 3e11}}",
       "p.yaml:1:14: presets.N.outer_link.bandwidth: expected bytes per second, device and direction of at most "
       "200000000000 "
       "for ethernet, found 300000000000; bits per second? then write 37500000000"},
      {"not a profile", "p.yaml:1:1: expected devices, links and presets by name, found none"},
      {"[1, 2]", "p.yaml:1:1: expected devices, links and presets by name, found none"},
      {"", "p.yaml:1:1: expected devices, links and presets by name, found none"},
  };
  for (const Unsound& c : cases) {
    const absl::Status read = ProfileLibrary::load()->overlay(c.text, "p.yaml");
    EXPECT_EQ(std::string(read.message()), c.says) << c.text;
  }
  ProfileLibrary library = *ProfileLibrary::load();
  const absl::Status read = library.overlay(
      "presets: {N: {device: X, devices: 2, inner_link: L, outer_link: L, outer_bandwidth: 200Gb/s}}\n"
      "links: {L: {bandwidth: 2GB/s}}\n"
      "devices: {X: {memory: 8GB, bandwidth: 1GB/s, flops: {fp32: 1TFLOP/s}}}\n",
      "p.yaml");
  ASSERT_TRUE(read.ok()) << read;
  EXPECT_EQ(library.preset("N")->outer_bandwidth, 25e9);
}

}  // namespace
}  // namespace partita
