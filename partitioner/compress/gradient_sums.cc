#include "partitioner/compress/gradient_sums.h"

#include <algorithm>
#include <map>
#include <set>

namespace partita {

GradientSums::GradientSums(const LocalProgram& program, const std::vector<int>& axes, bool accumulated)
    : program_(program), graph_(program.graph), readers_(uses(program.graph)) {
  DeferrableResults results(program);
  for (const Node& node : graph_.nodes) is_sum_.push_back(is_sum(results, node, axes, accumulated));
}

bool GradientSums::is_sum(const DeferrableResults& results, const Node& node, const std::vector<int>& axes,
                          bool accumulated) const {
  if (node.segment < Segment::kBackward || node.segment > Segment::kUpdate || !results.is_joint(node)) return false;
  if (node.attrs.s("reduce", "") != "sum") return false;
  const std::vector<int64_t>& over = node.attrs.ints("axes");
  bool samples = std::any_of(axes.begin(), axes.end(), [&](int a) { return std::count(over.begin(), over.end(), a); });
  const TensorType& type = graph_.type(node.outputs[0]);
  bool wide = type.dtype == DType::kF32 || type.dtype == DType::kF64;
  // In backward, the others are of activations: something there computes with them.
  return samples && wide && elements(type.shape) > 1 &&
         (node.segment > Segment::kBackward || results.are_deferrable(node) ||
          (accumulated && results.are_accumulated(node)));
}

bool GradientSums::is_summed_on(NodeId n) const {
  const auto& next = readers_[graph_.nodes[n].outputs[0]];
  return !next.empty() && std::all_of(next.begin(), next.end(), [&](NodeId r) { return contains(r); });
}

GradientSum GradientSums::from(NodeId n) const {
  GradientSum sum;
  while (true) {
    const Node& node = graph_.nodes[n];
    sum.nodes.push_back(n);
    sum.group_size *= node.attrs.i("parts");
    const std::vector<int64_t>& axes = node.attrs.ints("axes");
    sum.axes.insert(sum.axes.end(), axes.begin(), axes.end());
    const auto& next = readers_[node.outputs[0]];
    if (next.size() != 1 || !contains(next[0])) break;
    n = next[0];
  }
  std::sort(sum.axes.begin(), sum.axes.end());
  return sum;
}

std::string GradientSums::parameter_of(const GradientSum& sum) const {
  std::map<ValueId, const State*> written;
  for (const State& s : graph_.states) {
    if (s.next != kNoValue && (s.kind == StateKind::kParameter || !s.parameter.empty())) written[s.next] = &s;
  }
  std::vector<ValueId> front = graph_.nodes[sum.nodes.back()].outputs;
  const int64_t size = elements(graph_.type(front[0]).shape);
  std::set<ValueId> seen(front.begin(), front.end());
  for (size_t k = 0; k < front.size(); ++k) {
    if (auto at = written.find(front[k]); at != written.end())
      return at->second->parameter.empty() ? at->second->name : at->second->parameter;
    for (NodeId n : readers_[front[k]]) {
      for (ValueId v : graph_.nodes[n].outputs) {
        if (elements(graph_.type(v).shape) == size && seen.insert(v).second) front.push_back(v);
      }
    }
  }
  return "";
}

}  // namespace partita
