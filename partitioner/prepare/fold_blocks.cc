//   A0 A1 A2 B3 B4 head   ->   A0 B3 head, repeats 3 0 0 2 0
#include "partitioner/prepare/fold_blocks.h"

#include <algorithm>
#include <map>

#include "ir/graph/builder.h"

namespace partita {
namespace {

class Folder {
 public:
  explicit Folder(const Graph& graph) : g_(graph), stands_for_(graph.nodes.size(), kNoNode) {}

  FoldedGraph run() {
    number_nodes();
    std::vector<int64_t> repeats(blocks_.size(), 0);
    for (size_t k = 0, kept = 0; k < blocks_.size(); ++k) {
      if (k > 0 && equal(kept, k)) {
        for (size_t n = 0; n < blocks_[k].size(); ++n) stands_for_[blocks_[k][n]] = blocks_[kept][n];
      } else {
        kept = k;
      }
      ++repeats[kept];
    }
    return {rebuild(), std::move(repeats)};
  }

 private:
  void number_nodes() {
    place_.assign(g_.nodes.size(), 0);
    is_state_.assign(g_.values.size(), false);
    for (const State& s : g_.states) is_state_[s.value] = true;
    for (size_t n = 0; n < g_.nodes.size(); ++n) {
      int32_t block = g_.nodes[n].block;
      if (block < 0) continue;
      if (static_cast<size_t>(block) >= blocks_.size()) blocks_.resize(static_cast<size_t>(block) + 1);
      place_[n] = blocks_[block].size();
      blocks_[block].push_back(static_cast<NodeId>(n));
    }
  }

  bool equal(size_t a, size_t b) const {
    return std::equal(blocks_[a].begin(), blocks_[a].end(), blocks_[b].begin(), blocks_[b].end(),
                      [&](NodeId x, NodeId y) { return equal_nodes(g_.nodes[x], g_.nodes[y]); });
  }

  bool equal_nodes(const Node& x, const Node& y) const {
    auto same_type = [&](ValueId a, ValueId b) { return g_.type(a) == g_.type(b); };
    auto same_input = [&](ValueId a, ValueId b) {
      if (a == kNoValue || b == kNoValue) return a == b;
      bool inside_a = inside(a, x.block), inside_b = inside(b, y.block);
      if (inside_a != inside_b || is_state_[a] != is_state_[b] || !same_type(a, b)) return false;
      return !inside_a || (place_[g_.values[a].producer] == place_[g_.values[b].producer] &&
                           g_.values[a].output == g_.values[b].output);
    };
    return x.op == y.op && x.attrs == y.attrs &&
           std::equal(x.outputs.begin(), x.outputs.end(), y.outputs.begin(), y.outputs.end(), same_type) &&
           std::equal(x.inputs.begin(), x.inputs.end(), y.inputs.begin(), y.inputs.end(), same_input);
  }

  bool inside(ValueId v, int32_t block) const {
    NodeId n = g_.values[v].producer;
    return n != kNoNode && g_.nodes[n].block == block;
  }

  Graph rebuild() const {
    std::vector<bool> read(g_.values.size(), false);
    for (size_t n = 0; n < g_.nodes.size(); ++n) {
      for (ValueId v : g_.nodes[n].inputs) {
        if (v != kNoValue && stands_for_[n] == kNoNode) read[v] = true;
      }
    }
    for (const GraphOutput& out : g_.outputs) read[out.value] = true;
    Graph kept = g_;
    std::erase_if(kept.states, [&](const State& s) { return !read[s.value]; });
    Rewriter r(kept);
    for (size_t n = 0; n < kept.nodes.size(); ++n) {
      const Node& node = kept.nodes[n];
      if (stands_for_[n] == kNoNode) {
        r.copy(node);
        continue;
      }
      const Node& first = kept.nodes[stands_for_[n]];
      for (size_t k = 0; k < node.outputs.size(); ++k) r.replace(node.outputs[k], r(first.outputs[k]));
    }
    return std::move(r).finish();
  }

  const Graph& g_;
  std::vector<std::vector<NodeId>> blocks_;
  std::vector<size_t> place_;       // per node: its place in its block
  std::vector<bool> is_state_;      // per value
  std::vector<NodeId> stands_for_;  // per node: the one that it is folded into, or kNoNode
};

}  // namespace

FoldedGraph fold_blocks(const Graph& forward) { return Folder(forward).run(); }

}  // namespace partita
