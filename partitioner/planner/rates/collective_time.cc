// Ring all-reduce of B bytes over n ranks moves 2 (n-1)/n B through each rank in 2 (n-1) steps. A ring over nodes
// leaves each node through the network cards of all its members, so the network's share of a rank grows with them.
//
//   16 ranks as 2 nodes of 8, 25 GB/s a card, 300 GB/s inside: min(300, 8 x 25) = 200 GB/s
//
// Those are NCCL's. Ranks of hosts send to each other directly: what is summed leaves a node as often as there are
// ranks on others that add up a part of it, so that levels are worth more there (docs/parallelism.md).
#include "partitioner/planner/rates/collective_time.h"

#include <algorithm>
#include <cmath>
#include <vector>

namespace partita {
namespace {

struct Level {
  const LinkProfile* link;
  double members;  // ranks of the axis, or groups of them, that meet at this level
};

std::vector<Level> levels(const DeviceGroup& group, RankAxis axis) {
  std::vector<Level> out;
  double inside = 1;
  for (const LinkLevel& l : group.links) {
    double reach =
        std::min<double>(static_cast<double>(axis.size),
                         std::max<double>(1, static_cast<double>(l.group) / static_cast<double>(axis.stride)));
    if (&l == &group.links.back()) reach = static_cast<double>(axis.size);
    if (reach > inside) out.push_back({&l.link, reach / inside});
    inside = std::max(inside, reach);
  }
  return out;
}

// Seconds a byte at a link for messages of `bytes` a step.
double inverse_bandwidth(const LinkProfile& link, double bytes) {
  double reached = link.efficiency * (link.half_bytes > 0 ? bytes / (bytes + link.half_bytes) : 1);
  return 1 / (link.bandwidth * std::max(reached, 1e-6));
}

// Seconds that the first bytes take once round a ring over all levels, which leaves each group of a level once.
double ring_latency(const std::vector<Level>& at, double n) {
  double seconds = 0, inside = 1;
  for (const Level& l : at) {
    seconds += n / inside * (1 - 1 / l.members) * l.link->latency;
    inside *= l.members;
  }
  return seconds;
}

// One pass (all-gather or reduce-scatter) as one ring over all levels.
double flat_ring(const std::vector<Level>& at, double n, double bytes) {
  double inverse = 0, inside = 1;
  for (const Level& l : at) {
    inverse = std::max(inverse, inverse_bandwidth(*l.link, bytes) / inside);
    inside *= l.members;
  }
  return (n - 1) / n * bytes * inverse + ring_latency(at, n);
}

// Both passes of a reduction and broadcast along trees between the outermost groups, a chain inside.
double tree(const std::vector<Level>& at, double bytes) {
  double seconds = 0, inside = 1, inverse = 0;
  for (const Level& l : at) {
    double hops = &l == &at.back() ? std::ceil(std::log2(l.members)) : l.members - 1;
    seconds += 2 * hops * l.link->latency;
    inverse = std::max(inverse, inverse_bandwidth(*l.link, bytes) / inside);
    inside *= l.members;
  }
  return seconds + 2 * bytes * inverse;
}

// One pass by parallel aggregated trees, in log2(n) steps and work of each rank's own for all the others. NCCL's own
// terms (src/graph/tuning.cc of 2.23 and later; its hop is 3.5 times shorter there than a ring's): 3/4 of the
// bandwidth, and 2.8 us a rank.
double pat(const Level& l, double bytes) {
  constexpr double kBandwidth = 0.75, kHop = 3.5, kRank = 2.8e-6;
  const double n = l.members;
  return (n - 1) / n * bytes * inverse_bandwidth(*l.link, bytes) / kBandwidth + std::log2(n) * l.link->latency / kHop +
         n * kRank;
}

// Of hosts (runtime/communicate/collective_algorithms.h): every rank to every other, each link with what goes over it.
// A gather or a scatter sends 1/n of the bytes to each, a short sum all of them.
double direct(const std::vector<Level>& at, double bytes, double each) {
  double seconds = 0, latency = 0, inside = 1;
  for (const Level& l : at) {
    const double peers = inside * (l.members - 1);
    seconds = std::max(seconds, peers * each * inverse_bandwidth(*l.link, bytes));
    latency += peers * l.link->latency;
    inside *= l.members;
  }
  return seconds + latency;
}

}  // namespace

CollectiveTime collective_time(const DeviceGroup& group, CollectiveKind kind, RankAxis axis, double bytes) {
  if (axis.size <= 1 || bytes <= 0) return {};
  std::vector<Level> at = levels(group, axis);
  if (at.empty()) return {};
  double n = static_cast<double>(axis.size);
  CollectiveTime best{-1, "none"};
  auto offer = [&](double seconds, std::string_view name) {
    if (best.seconds < 0 || seconds < best.seconds) best = {seconds, name};
  };
  const LinkProfile& outer = *at.back().link;
  const bool hosts = group.device.host_update_rate == 0;
  if (hosts && kind != CollectiveKind::kSend && kind != CollectiveKind::kAllToAll) {
    constexpr double kShort = 4096;  // kSmallReduceBytes
    const bool sum = kind == CollectiveKind::kAllReduce;
    offer(sum && bytes <= kShort ? direct(at, bytes, bytes) : (sum ? 2 : 1) * direct(at, bytes, bytes / n), "direct");
    best.seconds += outer.wait_seconds;
    return best;
  }
  switch (kind) {
    case CollectiveKind::kSend: {
      offer(bytes * inverse_bandwidth(outer, bytes) + outer.latency, "send");
      return best;
    }
    case CollectiveKind::kAllToAll: {
      double seconds = 0, inside = 1;
      for (const Level& l : at) {
        double peers = inside * (l.members - 1);
        seconds =
            std::max(seconds, peers / n * bytes * inverse_bandwidth(*l.link, bytes / n) + peers * l.link->latency);
        inside *= l.members;
      }
      offer(seconds, "all-to-all");
      break;
    }
    case CollectiveKind::kAllReduce:
      offer(2 * flat_ring(at, n, bytes), "ring");
      offer(tree(at, bytes), "tree");
      if (at.size() == 1 && outer.multicast)
        offer(bytes * inverse_bandwidth(outer, bytes) * 2 / outer.multicast_gain + 4 * outer.latency, "multicast");
      break;
    case CollectiveKind::kAllGather:
    case CollectiveKind::kReduceScatter:
      offer(flat_ring(at, n, bytes), "ring");
      // NCCL has it for one rank a node.
      if (group.nodes > 1 && axis.stride >= group.devices_per_node) offer(pat(at.back(), bytes), "pat");
      break;
  }
  best.seconds += outer.wait_seconds;
  return best;
}

double best_message(const DeviceGroup& group, CollectiveKind kind, RankAxis axis, double bytes, double least) {
  double best = least, shortest = -1;
  for (double message = least; shortest < 0 || message < 2 * bytes; message *= 2) {
    const double seconds =
        (std::max(1., bytes / message) + 1) * collective_time(group, kind, axis, std::min(message, bytes)).seconds;
    if (shortest < 0 || seconds < shortest) best = message, shortest = seconds;
  }
  return best;
}

std::vector<double> level_members(const DeviceGroup& group, RankAxis axis) {
  std::vector<double> out;
  for (const Level& l : levels(group, axis)) out.push_back(l.members);
  return out;
}

}  // namespace partita
