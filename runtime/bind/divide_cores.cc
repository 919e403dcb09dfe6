#include "runtime/bind/divide_cores.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <numeric>
#include <set>

namespace partita::runtime {
namespace {

using Processors = std::vector<int>;

Processors common(const Processors& a, const Processors& b) {
  Processors both;
  std::set_intersection(a.begin(), a.end(), b.begin(), b.end(), std::back_inserter(both));
  return both;
}

struct Node {
  int number = -1;
  std::vector<Processors> cores;

  // Part k of so many.
  Processors part(size_t k, size_t parts) const {
    Processors all;
    for (size_t c = k * cores.size() / parts; c < (k + 1) * cores.size() / parts; ++c)
      all.insert(all.end(), cores[c].begin(), cores[c].end());
    std::sort(all.begin(), all.end());
    return all;
  }
};

std::vector<Node> nodes_within(const HostTopology& topology, const Processors& allowed) {
  std::vector<Node> nodes;
  for (const HostTopology::Core& core : topology.cores) {
    Processors usable = common(core.processors, allowed);
    if (usable.empty()) continue;
    auto node = std::find_if(nodes.begin(), nodes.end(), [&](const Node& n) { return n.number == core.node; });
    if (node == nodes.end()) node = nodes.insert(nodes.end(), Node{core.node, {}});
    node->cores.push_back(std::move(usable));
  }
  return nodes;
}

// Whole nodes to each rank, at least one.
std::vector<Processors> whole_nodes(const std::vector<Node>& nodes, size_t ranks) {
  std::vector<Processors> parts(ranks);
  for (size_t r = 0; r < ranks; ++r) {
    for (size_t n = r * nodes.size() / ranks; n < (r + 1) * nodes.size() / ranks; ++n) {
      const Processors all = nodes[n].part(0, 1);
      parts[r].insert(parts[r].end(), all.begin(), all.end());
    }
    std::sort(parts[r].begin(), parts[r].end());
  }
  return parts;
}

// Each rank within one node. The next one always goes to where it gets most, so that the least part is as large as it
// can be.
std::vector<Processors> within_nodes(const std::vector<Node>& nodes, size_t ranks) {
  std::vector<size_t> of_node(nodes.size(), 0);
  for (size_t r = 0; r < ranks; ++r) {
    size_t best = 0;
    for (size_t n = 1; n < nodes.size(); ++n) {
      if (nodes[n].cores.size() * (of_node[best] + 1) > nodes[best].cores.size() * (of_node[n] + 1)) best = n;
    }
    ++of_node[best];
  }
  std::vector<Processors> parts;
  for (size_t n = 0; n < nodes.size(); ++n) {
    for (size_t k = 0; k < of_node[n]; ++k) parts.push_back(nodes[n].part(k, of_node[n]));
  }
  return parts;
}

std::vector<Processors> divide(const HostTopology& topology, const Processors& allowed, size_t ranks) {
  const std::vector<Node> nodes = nodes_within(topology, allowed);
  const size_t cores = std::accumulate(nodes.begin(), nodes.end(), size_t{0},
                                       [](size_t sum, const Node& n) { return sum + n.cores.size(); });
  if (ranks > cores) return std::vector<Processors>(ranks);
  std::vector<Processors> parts = within_nodes(nodes, ranks);
  if (ranks > nodes.size()) return parts;
  auto least = [&](const std::vector<Processors>& all) {
    int fewest = extent_of(topology, all[0]).cores;
    for (const Processors& p : all) fewest = std::min(fewest, extent_of(topology, p).cores);
    return fewest;
  };
  std::vector<Processors> whole = whole_nodes(nodes, ranks);
  return least(whole) >= least(parts) ? whole : parts;
}

}  // namespace

std::vector<Processors> divide_cores(const HostTopology& topology, const Processors& allowed,
                                     const std::vector<int64_t>& cards) {
  std::map<Processors, std::vector<size_t>> ranks_near;
  for (size_t r = 0; r < cards.size(); ++r) {
    const auto card = std::find_if(topology.cards.begin(), topology.cards.end(),
                                   [&](const HostTopology::Card& c) { return c.address == cards[r]; });
    const Processors near = card == topology.cards.end() ? Processors() : common(card->processors, allowed);
    ranks_near[near.empty() ? allowed : near].push_back(r);
  }
  std::vector<Processors> bound(cards.size());
  for (const auto& [near, ranks] : ranks_near) {
    const std::vector<Processors> parts = divide(topology, near, ranks.size());
    for (size_t k = 0; k < ranks.size(); ++k) {
      // More GPUs than cores near them share those.
      bound[ranks[k]] = parts[k].empty() && near != allowed ? near : parts[k];
    }
  }
  return bound;
}

Extent extent_of(const HostTopology& topology, const Processors& processors) {
  Extent extent;
  std::set<int> nodes;
  for (const HostTopology::Core& core : topology.cores) {
    if (common(core.processors, processors).empty()) continue;
    ++extent.cores;
    if (core.node >= 0) nodes.insert(core.node);
  }
  extent.nodes.assign(nodes.begin(), nodes.end());
  return extent;
}

}  // namespace partita::runtime
