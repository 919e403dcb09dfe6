// Gathers A B C of forward, in the order of their last uses, and C' B' A' of backward, with room for two:
//
//   A a B b C c | C' c B' b A' a   becomes   A a B b C c | c b A' a
#include "partitioner/communicate/keep_gathered.h"

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include "ir/graph/builder.h"
#include "partitioner/communicate/deferrable.h"
#include "partitioner/communicate/state_gathers.h"

namespace partita {
namespace {

class Keeping {
 public:
  Keeping(const Graph& graph, int64_t room)
      : graph_(graph), gathers_(graph), same_(graph.values.size(), kNoValue), gone_(graph.nodes.size(), false) {
    for (const State& s : graph.states) same_[s.value] = s.value;
    for (size_t n = 0; n < graph.nodes.size(); ++n) find_same(static_cast<NodeId>(n));
    choose(room);
    find_gone();
  }

  Graph run() && {
    Rewriter r(graph_);
    for (size_t n = 0; n < graph_.nodes.size(); ++n) {
      const Node& node = graph_.nodes[n];
      const auto kept = node.outputs.empty() ? kept_.end() : kept_.find(node.outputs[0]);
      if (kept != kept_.end()) {
        r.replace(node.outputs[0], r(kept->second));
      } else if (!gone_[n]) {
        r.copy(node);
      }
    }
    return std::move(r).finish();
  }

 private:
  // What a node makes of a state, as the first value that is made of it so.
  void find_same(NodeId n) {
    const Node& node = graph_.nodes[n];
    if (node.inputs.size() != 1 || node.outputs.size() != 1 || node.inputs[0] == kNoValue) return;
    const ValueId of = same_[node.inputs[0]];
    if (of == kNoValue || !(DeferrableResults::passes(node) || gathers_.is_gather(node))) return;
    std::vector<NodeId>& made = made_of_[of];
    const auto at = std::find_if(made.begin(), made.end(), [&](NodeId m) {
      const Node& other = graph_.nodes[m];
      return other.op == node.op && other.attrs == node.attrs &&
             graph_.type(other.outputs[0]) == graph_.type(node.outputs[0]);
    });
    same_[node.outputs[0]] = at == made.end() ? node.outputs[0] : graph_.nodes[*at].outputs[0];
    if (at == made.end()) made.push_back(n);
  }

  // As many bytes as there is room for, of what backward reads first and of what forward read last.
  void choose(int64_t room) {
    std::vector<std::pair<NodeId, ValueId>> last_reads, first_uses;  // of forward's gathers, of backward's
    for (const Node& node : graph_.nodes) {
      if (node.outputs.size() != 1 || !gathers_.is_gather(node)) continue;
      const ValueId v = node.outputs[0];
      if (node.segment == Segment::kForward) last_reads.emplace_back(gathers_.last_read(v), v);
      if (node.segment == Segment::kBackward) first_uses.emplace_back(gathers_.first_use(node), v);
    }
    std::sort(last_reads.rbegin(), last_reads.rend());
    std::sort(first_uses.begin(), first_uses.end());
    std::map<ValueId, bool> late;
    int64_t bytes = 0;
    for (const auto& [read, v] : last_reads) late[v] = (bytes += byte_size(graph_.type(v))) <= room;
    bytes = 0;
    for (const auto& [use, v] : first_uses) {
      bytes += byte_size(graph_.type(v));
      if (bytes > room || !late[same_[v]]) return;
      kept_[v] = same_[v];
    }
  }

  // Nodes of backward that make something for kept gathers alone, and those.
  void find_gone() {
    const std::vector<std::vector<NodeId>> readers = uses(graph_);
    for (size_t n = graph_.nodes.size(); n-- > 0 && !kept_.empty();) {
      const Node& node = graph_.nodes[n];
      if (node.segment != Segment::kBackward || node.outputs.size() != 1 || same_[node.outputs[0]] == kNoValue)
        continue;
      const std::vector<NodeId>& by = readers[node.outputs[0]];
      gone_[n] = kept_.contains(node.outputs[0]) ||
                 (!by.empty() && std::all_of(by.begin(), by.end(), [&](NodeId r) { return gone_[r]; }));
    }
  }

  const Graph& graph_;
  const StateGathers gathers_;
  std::vector<ValueId> same_;  // per value; kNoValue: made of more than a state
  std::map<ValueId, std::vector<NodeId>> made_of_;
  std::map<ValueId, ValueId> kept_;  // of backward's gathers: forward's
  std::vector<bool> gone_;           // per node
};

}  // namespace

void keep_gathered(LocalProgram& program, int64_t prefetch_blocks) {
  if (program.stage.axis >= 0) return;
  const int64_t room = (1 + prefetch_blocks) * largest_gathered(program.graph);
  if (room > 0) program.graph = Keeping(program.graph, room).run();
}

}  // namespace partita
