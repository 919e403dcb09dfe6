#include "partitioner/planner/workload/units.h"

#include <algorithm>

#include "absl/container/flat_hash_map.h"

namespace partita {
namespace {

bool is_forward(const Node& node) { return node.segment == Segment::kForward; }

class Cutter {
 public:
  Cutter(const Graph& graph, const Dependence& dependence) : g_(graph), dependence_(dependence) {}

  GraphUnits run() {
    mark();
    place();
    collect();
    own_states();
    return std::move(out_);
  }

 private:
  void mark() {
    out_.values.resize(g_.values.size());
    for (ValueId v = 0; v < static_cast<ValueId>(g_.values.size()); ++v) {
      GraphUnits::Value& value = out_.values[v];
      value.source = v;
      value.data = dependence_.on_data(v), value.learned = dependence_.has_gradient(v);
    }
    for (const State& s : g_.states) {
      GraphUnits::Value& value = out_.values[s.value];
      value.parameter = s.kind == StateKind::kParameter;
      const bool frozen = s.kind == StateKind::kFrozen && is_float(g_.type(s.value).dtype);
      if (value.parameter || frozen) out_.names[s.value] = s.name;
    }
    for (const Node& node : g_.nodes) {
      if (node.op->view && node.outputs.size() == 1 && node.inputs[0] != kNoValue)
        out_.values[node.outputs[0]].source = out_.value(node.inputs[0]).source;
    }
    std::vector<std::vector<NodeId>> readers = uses(g_);
    for (size_t v = 0; v < readers.size(); ++v) out_.values[v].readers = std::move(readers[v]);
  }

  void place() {
    out_.of_node.assign(g_.nodes.size(), -1);
    absl::flat_hash_map<int32_t, int> of_origin;
    for (size_t i = 0; i < g_.nodes.size(); ++i) {
      const Node& node = g_.nodes[i];
      const bool forward = is_forward(node);
      if (!forward && node.segment != Segment::kBackward) continue;
      int unit = 2 * node.block + 1;
      if (node.block < 0) {
        unit = 0;
        auto at = forward ? of_origin.end() : of_origin.find(node.origin);
        if (at != of_origin.end()) {
          unit = at->second;
        } else {
          for (ValueId v : node.inputs) {
            if (v == kNoValue) continue;
            const int made = out_.value(v).unit;
            unit = std::max(unit, forward ? made + (made & 1) : made & ~1);
          }
        }
      }
      out_.of_node[i] = unit;
      for (ValueId v : node.outputs) out_.values[v].unit = unit;
      if (forward) {
        if (node.origin >= 0 && node.block < 0) of_origin[node.origin] = unit;
        continue;
      }
      for (ValueId v : node.inputs) {  // what backward reads of forward is kept
        if (v == kNoValue) continue;
        GraphUnits::Value& kept = out_.values[out_.value(v).source];
        const Node* maker = g_.producer(out_.value(v).source);
        if (maker && is_forward(*maker) && kept.data) kept.saved = true;
      }
    }
  }

  void collect() {
    int last = 0;
    for (int u : out_.of_node) last = std::max(last, u);
    out_.units.resize(static_cast<size_t>(last) + 1);
    for (size_t i = 0; i < g_.nodes.size(); ++i) {
      if (out_.of_node[i] < 0) continue;
      bool varies = false;
      for (ValueId v : g_.nodes[i].outputs) varies = varies || out_.value(v).data;
      if (varies) out_.units[out_.of_node[i]].nodes.push_back(static_cast<NodeId>(i));
    }
  }

  void own_states() {
    std::vector<bool> owned(g_.values.size(), false);
    for (GraphUnits::Unit& unit : out_.units) {
      for (NodeId n : unit.nodes) {
        if (!is_forward(g_.nodes[n])) continue;
        for (ValueId v : g_.nodes[n].inputs) {
          if (v == kNoValue) continue;
          for (ValueId p : out_.states_behind(g_, v)) {
            if (!owned[p]) (out_.value(p).parameter ? unit.parameters : unit.frozen).push_back(p);
            owned[p] = true;
            if (unit.read.empty() || unit.read.back() != p) unit.read.push_back(p);
          }
        }
      }
    }
  }

  const Graph& g_;
  const Dependence& dependence_;
  GraphUnits out_;
};

}  // namespace

std::vector<ValueId> GraphUnits::states_behind(const Graph& graph, ValueId v) const {
  constexpr int kMostSteps = 64;
  std::vector<ValueId> found, open = {v};
  for (int steps = 0; !open.empty() && steps < kMostSteps; ++steps) {
    ValueId x = open.back();
    open.pop_back();
    if (names.count(x)) found.push_back(x);
    const Node* maker = graph.producer(x);
    if (!maker || value(x).data) continue;
    for (ValueId in : maker->inputs) {
      if (in != kNoValue) open.push_back(in);
    }
  }
  return found;
}

GraphUnits cut_into_units(const Graph& graph, const Dependence& dependence) { return Cutter(graph, dependence).run(); }

}  // namespace partita
