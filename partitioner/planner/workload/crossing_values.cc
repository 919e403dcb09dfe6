#include "partitioner/planner/workload/crossing_values.h"

#include <map>
#include <set>

namespace partita {

std::vector<CrossingValue> crossing_values(const Graph& graph, const GraphUnits& units, const std::vector<int>& place,
                                           double samples) {
  std::map<ValueId, std::set<int>> readers;  // of what several units share; views are what they are views of
  for (const GraphUnits::Unit& unit : units.units) {
    for (NodeId n : unit.nodes) {
      const Node& node = graph.nodes[n];
      if (node.segment != Segment::kForward) continue;
      for (ValueId v : node.inputs) {
        if (v == kNoValue || !is_float(graph.type(v).dtype)) continue;
        const GraphUnits::Value& value = units.value(v);
        const int reader = units.of_node[n];
        if (value.data && value.learned && units.value(value.source).unit != reader)
          readers[value.source].insert(place[static_cast<size_t>(reader)]);
      }
    }
  }
  std::vector<CrossingValue> out;
  for (const auto& [v, by] : readers) {
    out.push_back({.maker = place[static_cast<size_t>(units.value(v).unit)],
                   .readers = {by.begin(), by.end()},
                   .elements = static_cast<double>(elements(graph.type(v).shape)) / samples,
                   .bytes = static_cast<double>(byte_size(graph.type(v))) / samples});
  }
  return out;
}

}  // namespace partita
