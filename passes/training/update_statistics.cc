#include "passes/training/update_statistics.h"

#include <algorithm>
#include <map>

#include "base/cat.h"
#include "ir/graph/builder.h"
#include "passes/training/accumulate.h"

namespace partita {
namespace {

// The forward nodes on the way from a state's value to its next one, in order.
std::vector<NodeId> moving_nodes(const Graph& g, const State& s) {
  std::vector<bool> follows(g.values.size(), false), leads(g.values.size(), false);
  follows[s.value] = leads[s.next] = true;
  for (const Node& node : g.nodes) {
    bool any = std::any_of(node.inputs.begin(), node.inputs.end(), [&](ValueId v) { return v >= 0 && follows[v]; });
    for (ValueId v : node.outputs) follows[v] = any;
  }
  std::vector<NodeId> nodes;
  for (size_t n = g.nodes.size(); n-- > 0;) {
    const Node& node = g.nodes[n];
    auto on_the_way = [&](ValueId v) { return follows[v] && leads[v]; };
    if (std::none_of(node.outputs.begin(), node.outputs.end(), on_the_way)) continue;
    nodes.push_back(static_cast<NodeId>(n));
    for (ValueId v : node.inputs) {
      if (v != kNoValue) leads[v] = true;
    }
  }
  std::reverse(nodes.begin(), nodes.end());
  return nodes;
}

class StatisticsUpdate {
 public:
  StatisticsUpdate(const Graph& graph, const PassContext& context) : old_(graph), b_(graph), context_(context) {}

  Graph run() {
    for (size_t k = 0; k < old_.states.size(); ++k) {
      const State& s = old_.states[k];
      const Node* last = s.kind == StateKind::kRunning && s.next != kNoValue ? old_.producer(s.next) : nullptr;
      if (last != nullptr && last->segment == Segment::kForward) move(k);
    }
    return std::move(b_).finish();
  }

 private:
  // The state's nodes once more in the update, on the step's mean of what is computed from the samples.
  void move(size_t state) {
    const State& s = old_.states[state];
    std::map<ValueId, ValueId> now = {{s.value, s.value}};
    bool any = false;
    std::vector<NodeId> nodes = moving_nodes(old_, s);
    for (NodeId n : nodes) {
      for (ValueId v : old_.nodes[n].outputs) now[v] = kNoValue;  // made below
    }
    for (NodeId n : nodes) {
      const Node& node = old_.nodes[n];
      std::vector<ValueId> inputs;
      for (ValueId v : node.inputs) {
        if (v != kNoValue && !now.count(v) && old_.producer(v) != nullptr) {
          now[v] = over_step(cat(s.name, any ? cat("/", v) : std::string()), v, node.origin);
          any = true;
        }
        inputs.push_back(v == kNoValue || !now.count(v) ? v : now.at(v));
      }
      b_.context() = {.segment = Segment::kUpdate, .origin = node.origin, .block = node.block};
      std::vector<ValueId> outputs = *b_.try_emit(*node.op, std::move(inputs), node.attrs);
      for (size_t k = 0; k < outputs.size(); ++k) now[node.outputs[k]] = outputs[k];
    }
    if (any) b_.set_next_of(state, now.at(s.next));
  }

  ValueId over_step(const std::string& name, ValueId term, int32_t origin) {
    if (!context_.accumulate || context_.update_each) return term;
    b_.context() = {.segment = Segment::kBackward, .origin = origin};
    if (context_.micro_batches > 1) term = b_.scale(term, 1.0 / static_cast<double>(context_.micro_batches));
    return accumulate(b_, context_, name, {}, term);
  }

  const Graph& old_;
  Builder b_;
  const PassContext& context_;
};

}  // namespace

absl::StatusOr<Graph> update_statistics(const Graph& graph, const PassContext& context) {
  if (context.recipe.semantics.batch_norm == BatchNormGroup::kGlobal) return graph;
  return StatisticsUpdate(graph, context).run();
}

}  // namespace partita
