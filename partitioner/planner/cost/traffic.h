// What ranks send to each other in a step: the collectives and sends that the cost model prices, as messages between
// pairs of ranks.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "partitioner/planner/rates/collective_time.h"

namespace partita {

enum class TrafficKind : uint8_t { kTensor, kContext, kExpert, kData, kPipeline };
inline constexpr size_t kTrafficKinds = 5;
inline constexpr std::array<std::string_view, kTrafficKinds> kTrafficNames = {"tensor", "context", "expert", "data",
                                                                              "pipeline"};

// A collective that all ranks of a stage run, each in its own group of ranks.
struct CollectiveUse {
  TrafficKind kind;
  CollectiveKind collective;
  RankAxis axis;  // as it is priced
  double bytes;   // of the whole value, as collective_time takes them
  double times = 1;
  // The ranks of a group where they lie on two axes: every member of the first for each of the second.
  std::array<RankAxis, 2> members = {axis, RankAxis{}};
};

// Seconds of those of one kind, one after the other.
double collective_seconds(const DeviceGroup& group, const std::vector<CollectiveUse>& collectives, TrafficKind kind);

// Collectives of a step that go the same ways, with the bytes of all of them together.
struct Transfer {
  TrafficKind kind;
  std::string collective, algorithm;  // "all_reduce", "ring"
  std::array<RankAxis, 2> members;
  std::vector<int64_t> levels;  // members that meet at each level of links, innermost first
  double bytes = 0;             // of the whole values, on one rank

  int64_t ranks() const { return members[0].size * members[1].size; }
};
std::vector<Transfer> transfers(const DeviceGroup& group, const std::vector<CollectiveUse>& collectives);

// `message(from, to, bytes)` for each pair of a group's members, which are counted from 0 as `members` says, that
// anything goes between. Ring: to the next member. Tree: two trees between the groups of the outermost level, each with
// half of the bytes, and chains to the first rank of each group. PAT: to members at distances 1, 2, 4, …. Multicast:
// what the switch hands on, where it arrives. All-to-all: to all.
using MessageFunction = std::function<void(int64_t from, int64_t to, double bytes)>;
void messages(const Transfer& transfer, const MessageFunction& message);

// All that the ranks of a plan send in a step.
struct PlanTraffic {
  struct Stage {
    int64_t ranks = 1;
    std::vector<Transfer> transfers;
  };
  // Of parameters that `owner` has and `reader` reads too: bytes from all ranks of the one to the other, and of their
  // gradients back.
  struct Shared {
    int64_t owner = 0, reader = 0;
    double parameters = 0, gradients = 0;
  };
  std::vector<Stage> stages;
  std::vector<Shared> shared;
  int64_t micro_batches = 1, chunks = 1;
  double boundary_bytes = 0;  // of one micro-batch, from all ranks of a stage to the next, and of its gradient back

  int64_t ranks() const;
};

// Ranks of a stage of `from` ranks and of one with `to`, by index in it, that messages between them go between; each
// pair has as much to send.
std::vector<std::pair<int64_t, int64_t>> stage_pairs(int64_t from, int64_t to);

using TrafficFunction = std::function<void(TrafficKind kind, int64_t from, int64_t to, double bytes)>;
void visit_traffic(const PlanTraffic& traffic, const TrafficFunction& visit);

// Bytes between blocks of `block` consecutive ranks each, the last one perhaps smaller, among the first `ranks`.
struct TrafficMatrix {
  int64_t blocks = 0, block = 1;
  std::vector<std::array<double, kTrafficKinds>> cells;  // [from * blocks + to]

  const std::array<double, kTrafficKinds>& at(int64_t from, int64_t to) const {
    return cells[static_cast<size_t>(from * blocks + to)];
  }
};
TrafficMatrix traffic_matrix(const PlanTraffic& traffic, int64_t block, int64_t ranks);

}  // namespace partita
