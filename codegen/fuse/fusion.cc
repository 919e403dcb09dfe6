// Nodes join the groups that produce what they read, latest producer first, wherever the union has nests and no path
// leads out of it and back in. Free nodes belong to no group (unless they must be stored): they are computed wherever
// they are read, so all dependencies are on what lies behind them.
#include "codegen/fuse/fusion.h"

#include <algorithm>
#include <queue>
#include <set>

#include "base/cat.h"
#include "base/status.h"
#include "ir/nest/reduction_order.h"

namespace partita {
namespace {

constexpr size_t kLargestGroup = 96;
constexpr int kSiblings = 4;  // groups reading the same value that a reduction tries to join
constexpr NodeId kNear = 64;  // nodes between two groups that read the same values at most

class Fuser {
 public:
  Fuser(CodeGraph& code, const FusionOptions& options) : code_(code), graph_(code.graph), options_(options) {}

  std::vector<FusedItem> run() {
    mark_live();
    do {
      find_leaves();
      make_groups();
    } while (store_obstacles());
    if (options_.fuse) grow();
    return ordered();
  }

 private:
  struct Group {
    std::vector<NodeId> nodes;  // ascending; empty once merged away
    bool nests = false;
  };

  bool is_over_stages(const Node& node) const {
    const std::vector<int64_t>& axes = node.attrs.ints("axes");
    return std::count(axes.begin(), axes.end(), options_.stage_axis) > 0;
  }

  void mark_live() {
    live_.assign(graph_.nodes.size(), false);
    std::vector<bool> wanted(graph_.values.size(), false);
    for (const GraphOutput& o : graph_.outputs) wanted[code_.storage(o.value)] = true;
    for (const State& s : graph_.states) {
      if (s.next != kNoValue) wanted[code_.storage(s.next)] = true;
    }
    for (size_t n = graph_.nodes.size(); n-- > 0;) {
      const Node& node = graph_.nodes[n];
      live_[n] = node.outputs.empty();                                        // what is sent is wanted elsewhere
      live_[n] = live_[n] || (node.op->communicates && node.inputs.empty());  // and what comes has to be taken
      live_[n] = live_[n] || (node.op->communicates && options_.stage_axis >= 0 && is_over_stages(node));
      for (ValueId v : node.outputs) live_[n] = live_[n] || wanted[v];
      if (!live_[n]) continue;
      for (ValueId v : node.inputs) {
        if (v != kNoValue) wanted[v] = true;
      }
    }
  }

  bool is_stored(NodeId n) const {
    return code_.roles[n] != NodeRole::kView && (!code_.free[n] || code_.kept[graph_.nodes[n].outputs[0]]);
  }

  // Values behind free nodes that a node reads.
  void find_leaves() {
    std::vector<std::vector<ValueId>> behind(graph_.values.size());
    leaves_.assign(graph_.nodes.size(), {});
    readers_.assign(graph_.values.size(), {});
    auto leaves_of = [&](ValueId v, std::vector<ValueId>& into) {
      NodeId p = code_.producer(v);
      if (p != kNoNode && (code_.free[p] || code_.roles[p] == NodeRole::kView)) {
        into.insert(into.end(), behind[v].begin(), behind[v].end());
      } else {
        into.push_back(v);
      }
    };
    for (size_t n = 0; n < graph_.nodes.size(); ++n) {
      if (!live_[n]) continue;
      const Node& node = graph_.nodes[n];
      std::vector<ValueId> all;
      bool by_address = is_call(code_.roles[n]);
      for (ValueId v : node.inputs) {
        if (v == kNoValue) continue;
        if (by_address) {
          all.push_back(code_.storage(v));
        } else {
          leaves_of(v, all);
        }
      }
      std::sort(all.begin(), all.end());
      all.erase(std::unique(all.begin(), all.end()), all.end());
      if (code_.free[n] || code_.roles[n] == NodeRole::kView) behind[node.outputs[0]] = all;
      if (!is_stored(static_cast<NodeId>(n))) continue;
      for (ValueId v : all) readers_[v].push_back(static_cast<NodeId>(n));
      leaves_[n] = std::move(all);
    }
  }

  void make_groups() {
    group_of_.assign(graph_.nodes.size(), -1);
    groups_.clear();
    after_.clear(), before_.clear(), level_.clear();
    int last_collective = -1;
    for (size_t n = 0; n < graph_.nodes.size(); ++n) {
      if (!live_[n] || !is_stored(static_cast<NodeId>(n))) continue;
      group_of_[n] = static_cast<int>(groups_.size());
      bool nests = !is_call(code_.roles[n]);
      groups_.push_back({{static_cast<NodeId>(n)}, nests});
      after_.push_back(-1), before_.push_back(-1), level_.push_back(static_cast<NodeId>(n));
      if (code_.roles[n] == NodeRole::kCollective) {
        after_.back() = last_collective;
        if (last_collective >= 0) before_[last_collective] = group_of_[n];
        last_collective = group_of_[n];
      }
    }
  }

  // Stores free values whose index functions some reader cannot follow (a reshape of a transposed value, say).
  bool store_obstacles() {
    bool any = false;
    for (const Group& group : groups_) {
      BuildFailure failure;
      if (!group.nests || build_group(code_, group.nodes, outputs_of(group.nodes), &failure)) continue;
      PARTITA_CHECK(failure.obstacle != kNoValue,
                    cat("no code for ", graph_.nodes[group.nodes[0]].op->name, ": ", failure.why));
      code_.store(code_.producer(failure.obstacle));
      any = true;
    }
    return any;
  }

  template <typename F>
  void each_producer(int g, F f) const {
    for (NodeId n : groups_[g].nodes) {
      for (ValueId v : leaves_[n]) {
        NodeId p = code_.producer(v);
        if (p != kNoNode && group_of_[p] != g) f(group_of_[p], p);
      }
    }
    if (after_[g] >= 0) f(after_[g], groups_[after_[g]].nodes[0]);
  }

  // Whether some third group stands between `from` and `to`: depends on `from`, and `to` on it. A group with nodes far
  // apart can come after `from` though all its nodes stand before those of `from`, so levels tell where to look.
  bool path_around(int from, int to) const {
    std::vector<int> stack;
    std::set<int> seen;
    auto visit = [&](int g) {
      if (g != to && level_[g] >= level_[from] && seen.insert(g).second) stack.push_back(g);
    };
    each_producer(to, [&](int g, NodeId) {
      if (g != from) visit(g);
    });
    while (!stack.empty()) {
      int g = stack.back();
      stack.pop_back();
      bool found = false;
      each_producer(g, [&](int p, NodeId) {
        found = found || p == from;
        if (p != from) visit(p);
      });
      if (found) return true;
    }
    return false;
  }

  // Lifts a group, and what depends on it, to a level.
  void lift(int g, NodeId level) {
    std::vector<int> stack = {g};
    auto visit = [&](int above) {
      if (level_[above] < level) stack.push_back(above);
    };
    while (!stack.empty()) {
      int lifted = stack.back();
      stack.pop_back();
      level_[lifted] = level;
      for (NodeId n : groups_[lifted].nodes) {
        for (ValueId v : graph_.nodes[n].outputs) {
          for (NodeId r : readers_[v]) visit(group_of_[r]);
        }
      }
      if (before_[lifted] >= 0) visit(before_[lifted]);
    }
  }

  std::vector<ValueId> outputs_of(const std::vector<NodeId>& nodes) const {
    std::vector<ValueId> outputs;
    for (NodeId n : nodes) {
      for (ValueId v : graph_.nodes[n].outputs) {
        bool outside = code_.kept[v];
        for (NodeId r : readers_[v]) outside = outside || !std::binary_search(nodes.begin(), nodes.end(), r);
        if (outside) outputs.push_back(v);
      }
    }
    return outputs;
  }

  bool compatible(int a, int b) const {
    const Group &x = groups_[a], &y = groups_[b];
    if (!x.nests || !y.nests || x.nodes.empty() || y.nodes.empty() || x.nodes.size() + y.nodes.size() > kLargestGroup)
      return false;
    if (code_.is_apart(x.nodes[0]) || code_.is_apart(y.nodes[0])) return false;
    const Node &n = graph_.nodes[x.nodes[0]], &m = graph_.nodes[y.nodes[0]];
    return n.segment == m.segment && code_.phases[x.nodes[0]] == code_.phases[y.nodes[0]] && n.device == m.device;
  }

  bool try_merge(int g, int into) {
    if (g == into || !compatible(g, into) || path_around(into, g) || path_around(g, into)) return false;
    std::vector<NodeId> nodes;
    std::merge(groups_[g].nodes.begin(), groups_[g].nodes.end(), groups_[into].nodes.begin(), groups_[into].nodes.end(),
               std::back_inserter(nodes));
    if (!build_group(code_, nodes, outputs_of(nodes))) return false;
    for (NodeId n : groups_[g].nodes) group_of_[n] = into;
    groups_[into].nodes = std::move(nodes);
    groups_[g].nodes.clear();
    lift(into, std::max(level_[g], level_[into]));
    return true;
  }

  void grow() {
    for (size_t n = 0; n < graph_.nodes.size(); ++n) {
      if (group_of_[n] < 0 || !groups_[group_of_[n]].nests) continue;
      std::vector<NodeId> producers;
      for (ValueId v : leaves_[n]) {
        if (code_.producer(v) != kNoNode) producers.push_back(code_.producer(v));
      }
      std::sort(producers.rbegin(), producers.rend());
      for (NodeId p : producers) try_merge(group_of_[n], group_of_[p]);
      if (code_.roles[n] == NodeRole::kReduction) join_siblings(static_cast<NodeId>(n));
      if (graph_.nodes[n].segment == Segment::kUpdate && !code_.on_gpu) join_total(static_cast<NodeId>(n));
    }
    for (size_t g = 0; g < groups_.size(); ++g) join_alike(static_cast<int>(g));
  }

  bool is_elementwise(const Group& group) const {
    return std::all_of(group.nodes.begin(), group.nodes.end(),
                       [&](NodeId n) { return code_.roles[n] == NodeRole::kElementwise; });
  }

  // Values of that many elements that the group reads from memory.
  std::vector<ValueId> large_leaves(int g, int64_t size) const {
    std::vector<ValueId> all;
    for (NodeId n : groups_[g].nodes) {
      for (ValueId v : leaves_[n]) {
        const NodeId p = code_.producer(v);
        if ((p == kNoNode || group_of_[p] != g) && elements(graph_.type(v).shape) == size) all.push_back(v);
      }
    }
    std::sort(all.begin(), all.end());
    all.erase(std::unique(all.begin(), all.end()), all.end());
    return all;
  }

  // An elementwise group that reads large values which one near it reads anyway joins that one. On a GPU, whose time is
  // that of its memory traffic, two such values, of an elementwise one before it. On a processor one is enough, in
  // backward, of one before or behind it, sums and all: what is made again is made beside the gradient of the same
  // value, and the exponentials of both are one.
  void join_alike(int g) {
    if (!groups_[g].nests || groups_[g].nodes.empty() || !is_elementwise(groups_[g])) return;
    const NodeId first = groups_[g].nodes[0];
    const int64_t size = elements(graph_.type(graph_.nodes[first].outputs[0]).shape);
    const std::vector<ValueId> mine = large_leaves(g, size);
    const size_t least = code_.on_gpu ? 2 : 1;
    if (mine.size() < least || (!code_.on_gpu && graph_.nodes[first].segment != Segment::kBackward)) return;
    for (size_t k = readers_[mine[0]].size(); k-- > 0;) {
      const NodeId r = readers_[mine[0]][k];
      const int other = group_of_[r];
      const bool near = std::abs(first - r) <= kNear && (r <= first || !code_.on_gpu);
      if (!near || other == g || !compatible(g, other)) continue;
      if (code_.on_gpu ? !is_elementwise(groups_[other]) : !is_divided(other, size)) continue;
      std::vector<ValueId> both;
      const std::vector<ValueId> theirs = large_leaves(other, size);
      std::set_intersection(mine.begin(), mine.end(), theirs.begin(), theirs.end(), std::back_inserter(both));
      if (both.size() >= least && try_merge(g, other)) return;
    }
  }

  // A reduction of a stored value joins a sweep that reads this value anyway.
  void join_siblings(NodeId n) {
    for (ValueId v : leaves_[n]) {
      int tried = 0;
      for (size_t k = readers_[v].size(); k-- > 0 && tried < kSiblings;) {
        NodeId r = readers_[v][k];
        if (r > n || group_of_[r] == group_of_[n] || !compatible(group_of_[r], group_of_[n])) continue;
        ++tried;
        if (try_merge(group_of_[n], group_of_[r])) return;
      }
    }
  }

  // An update joins the sweep that sums up the gradient it reads (for the norm of all gradients, say, where the update
  // does not wait for it): a sweep less over all gradients. Not a sweep that one thread does though there is work for
  // more: the update alone is divided.
  void join_total(NodeId n) {
    if (code_.roles[n] != NodeRole::kElementwise) return;
    const int64_t size = elements(graph_.type(graph_.nodes[n].outputs[0]).shape);
    for (ValueId v : leaves_[n]) {
      if (elements(graph_.type(v).shape) != size) continue;
      for (const NodeId r : readers_[v]) {
        if (r > n || code_.roles[r] != NodeRole::kReduction || !is_divided(group_of_[r], size)) continue;
        if (try_merge(group_of_[n], group_of_[r])) return;
      }
    }
  }

  bool is_divided(int g, int64_t size) const {
    if (size <= kSerialReduction || !groups_[g].nests) return true;
    const auto code = build_group(code_, groups_[g].nodes, outputs_of(groups_[g].nodes));
    return code && !code->nests.empty() && units(code->nests[0].nest) > 1;
  }

  // The node in whose place a group runs: the first one with a result that is stored. A sum that is accumulated, which
  // comes last in the graph, would keep a group from running that backward goes on from.
  NodeId place_of(const Group& group) const {
    NodeId first = group.nodes.back();
    if (group.nests) {
      for (ValueId v : outputs_of(group.nodes)) first = std::min(first, code_.producer(v));
    }
    return first;
  }

  // What only adds a gradient that a kernel made to those of other micro-batches: at once, so that the gradient need
  // not be kept. What adds a collective's result is left where it is, to give the collective time.
  bool ends_values(int g, const std::vector<int>& then) const {
    const Group& group = groups_[g];
    const Segment segment = graph_.nodes[group.nodes[0]].segment;
    if (!group.nests || segment != Segment::kBackward) return false;
    for (int next : then) {
      const NodeId reader = groups_[next].nodes[0];
      if (graph_.nodes[reader].segment == segment) return false;
    }
    bool received = false;
    each_producer(g, [&](int, NodeId p) { received = received || code_.roles[p] == NodeRole::kCollective; });
    return !received;
  }

  std::vector<FusedItem> ordered() {
    std::vector<FusedItem> items;
    std::vector<int> waiting(groups_.size(), 0);
    std::vector<std::vector<int>> then(groups_.size());
    for (size_t g = 0; g < groups_.size(); ++g) {
      std::set<int> from;
      each_producer(static_cast<int>(g), [&](int p, NodeId) { from.insert(p); });
      waiting[g] = static_cast<int>(from.size());
      for (int p : from) then[p].push_back(static_cast<int>(g));
    }
    using Entry = std::tuple<Segment, int32_t, bool, NodeId, int>;  // segment, phase, on the host, place, group
    std::priority_queue<Entry, std::vector<Entry>, std::greater<>> ready;
    auto push = [&](int g, NodeId now) {
      NodeId first = groups_[g].nodes[0];
      // A device gets its work first: it runs while the host does its own.
      bool host = graph_.nodes[first].device == DeviceKind::kHost && code_.roles[first] != NodeRole::kCopy;
      ready.emplace(graph_.nodes[first].segment, code_.phases[first], host,
                    ends_values(g, then[g]) ? now : place_of(groups_[g]), g);
    };
    size_t alive = 0;
    for (size_t g = 0; g < groups_.size(); ++g) {
      alive += !groups_[g].nodes.empty();
      if (!groups_[g].nodes.empty() && waiting[g] == 0) push(static_cast<int>(g), place_of(groups_[g]));
    }
    while (!ready.empty()) {
      const auto [segment, phase, host, place, g] = ready.top();
      ready.pop();
      items.push_back(make_item(groups_[g]));
      for (int next : then[g]) {
        if (--waiting[next] == 0) push(next, place);
      }
    }
    PARTITA_CHECK(items.size() == alive, "groups that wait for each other");
    return items;
  }

  FusedItem make_item(const Group& group) const {
    FusedItem item{.nodes = group.nodes,
                   .outputs = {},
                   .code = {},
                   .segment = graph_.nodes[group.nodes[0]].segment,
                   .phase = code_.phases[group.nodes[0]],
                   .fused = group.nests};
    if (!group.nests) {
      item.outputs = graph_.nodes[group.nodes[0]].outputs;
      return item;
    }
    item.outputs = outputs_of(group.nodes);
    auto code = build_group(code_, item.nodes, item.outputs);
    PARTITA_CHECK(code.has_value(), "a group that could be built before");
    item.code = *std::move(code);
    return item;
  }

  CodeGraph& code_;
  const Graph& graph_;
  FusionOptions options_;
  std::vector<bool> live_;                    // nodes that lead somewhere
  std::vector<std::vector<ValueId>> leaves_;  // per stored node
  std::vector<std::vector<NodeId>> readers_;  // per value: stored nodes that have it as a leaf
  std::vector<int> group_of_;
  std::vector<Group> groups_;
  std::vector<int> after_, before_;  // per group: the collective that it comes after, or before
  std::vector<NodeId> level_;        // per group: no group depends on one of a higher level
};

}  // namespace

std::vector<FusedItem> fuse(CodeGraph& graph, const FusionOptions& options) { return Fuser(graph, options).run(); }

}  // namespace partita
