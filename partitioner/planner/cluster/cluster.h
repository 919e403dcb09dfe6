// cluster.yaml: the machines to plan for (docs/planning.md).
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "partitioner/planner/cluster/device_profile.h"

namespace partita {

// Devices 0…group-1, group…2 group-1, … are joined by links of this kind.
struct LinkLevel {
  LinkProfile link;   // the kind's profile with the cluster's own numbers
  int64_t group = 1;  // devices that share it
};

// Nodes of one kind. Ranks are numbered through the nodes in order.
struct DeviceGroup {
  int64_t nodes = 1, devices_per_node = 1;
  DeviceProfile device;
  std::vector<LinkLevel> links;  // innermost first; the last joins all devices of the group
  LinkProfile network;           // that joins nodes where there are to be more than one (resized)
  double price_per_hour = 0;     // of one device; 0: not known
  int64_t spare_nodes = 0;       // paid for beside `nodes`, for those that fail
  bool own_links = false;        // the file lists them
  bool assumed_links = false;    // neither the file nor a preset says what they are

  int64_t devices() const { return nodes * devices_per_node; }
};

struct Cluster {
  std::vector<DeviceGroup> groups;
  std::optional<LinkProfile> between;  // that joins the groups, where the file says so
  std::string text;                    // as it was read

  int64_t devices() const;
  double price_per_hour() const;                 // of all
  double peak_flops(Precision precision) const;  // of all
  std::string hardware() const;                  // "8 x A100-80GB + 8 x H100-80GB"
  // "nvlink3 300 GB/s among 8, infiniband 25 GB/s among 16"; says what is assumed. Empty for one device.
  std::string wiring() const;
  // The group that a rank is in.
  const DeviceGroup& group_of(int64_t rank) const { return groups[index_of_group(rank)]; }
  size_t index_of_group(int64_t rank) const;
  // Groups first to last as one, for ranks that work in step: every device is as slow (at `precision`) and as small as
  // the worst of them, and the link between groups, or their own network where that is slower, joins nodes of as many
  // devices as divide the nodes of each.
  DeviceGroup joined(size_t first, size_t last, Precision precision) const;
};

// Errors are InvalidArgument "file:line:column: path: expected …, found …" (NotFound for a missing file).
absl::StatusOr<Cluster> parse_cluster(std::string_view text, const std::string& file, const ProfileLibrary& library);
absl::StatusOr<Cluster> load_cluster(const std::string& path, const ProfileLibrary& library);

// The same kind of machines, `devices` of them: part of one node, or whole nodes, which `network` joins where the
// cluster has but one. A single device grows to a node of eight first. Several groups keep their shares.
// InvalidArgument where that cannot be.
absl::StatusOr<Cluster> resized(const Cluster& cluster, int64_t devices);

}  // namespace partita
