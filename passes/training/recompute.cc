// Backward nodes are walked in order. One that reads a value which is not kept has the nodes behind it emitted before
// itself, down to kept values, each once for the whole backward part:
//
//   forward    h = norm(x)  a = matmul(h, w)  y = gelu(a)
//   backward   … gelu_grad(dy, a) …           ->  h' = norm(x)  a' = matmul(h', w)  … gelu_grad(dy, a') …
#include "passes/training/recompute.h"

#include <algorithm>
#include <map>
#include <set>

#include "base/cat.h"
#include "base/status.h"
#include "ir/graph/builder.h"

namespace partita {
namespace {

constexpr int64_t kReduces = 8;  // a result so many times smaller than what it is made of is cheaper kept

class Recomputer {
 public:
  Recomputer(const Graph& graph, RecomputeMode mode)
      : graph_(graph), mode_(mode), leaves_(graph.values.size(), false), r_(graph) {
    std::vector<std::vector<NodeId>> readers = uses(graph);
    for (size_t v = 0; v < graph.values.size(); ++v) {
      const Node* producer = graph.producer(static_cast<ValueId>(v));
      leaves_[v] = producer != nullptr && std::any_of(readers[v].begin(), readers[v].end(), [&](NodeId n) {
                     return graph.nodes[n].segment != Segment::kBackward && graph.nodes[n].block != producer->block;
                   });
    }
  }

  Graph run() {
    for (const Node& node : graph_.nodes) {
      if (node.segment != Segment::kBackward) {
        r_.copy(node);
        continue;
      }
      for (ValueId v : node.inputs) make_again(v);
      std::vector<ValueId> outputs = emit(node, node.weight_gradient);
      for (size_t k = 0; k < outputs.size(); ++k) r_.replace(node.outputs[k], outputs[k]);
    }
    return std::move(r_).finish();
  }

 private:
  bool is_kept(ValueId v) const {
    const Node* producer = graph_.producer(v);
    if (producer == nullptr || producer->segment != Segment::kForward || producer->block < 0 || leaves_[v]) return true;
    return mode_ == RecomputeMode::kSelective && (producer->op->kernel || reduces(*producer, v));
  }

  bool reduces(const Node& node, ValueId v) const {
    return std::any_of(node.inputs.begin(), node.inputs.end(), [&](ValueId x) {
      return x != kNoValue && elements(graph_.type(x).shape) >= kReduces * elements(graph_.type(v).shape);
    });
  }

  void make_again(ValueId value) {
    std::set<NodeId> wanted;
    std::vector<ValueId> open{value};
    while (!open.empty()) {
      ValueId v = open.back();
      open.pop_back();
      if (v == kNoValue || is_kept(v) || again_.count(v)) continue;
      NodeId n = graph_.values[v].producer;
      if (wanted.insert(n).second)
        open.insert(open.end(), graph_.nodes[n].inputs.begin(), graph_.nodes[n].inputs.end());
    }
    for (NodeId n : wanted) {
      std::vector<ValueId> outputs = emit(graph_.nodes[n], false);
      for (size_t k = 0; k < outputs.size(); ++k) again_[graph_.nodes[n].outputs[k]] = outputs[k];
    }
  }

  // The node in the backward segment, on what is there.
  std::vector<ValueId> emit(const Node& node, bool weight_gradient) {
    std::vector<ValueId> inputs;
    for (ValueId v : node.inputs) {
      auto at = v == kNoValue || is_kept(v) ? again_.end() : again_.find(v);
      inputs.push_back(at == again_.end() ? r_(v) : at->second);
    }
    r_.at(node);
    r_.builder().context().segment = Segment::kBackward;
    r_.builder().context().weight_gradient = weight_gradient;
    auto outputs = r_.builder().try_emit(*node.op, std::move(inputs), node.attrs);
    PARTITA_CHECK(outputs.ok(), cat(graph_.origin(node), ", made again: ", outputs.status().message()));
    return *std::move(outputs);
  }

  const Graph& graph_;
  const RecomputeMode mode_;
  std::vector<bool> leaves_;  // per value: read by the forward part outside of its block
  Rewriter r_;
  std::map<ValueId, ValueId> again_;  // forward value -> its copy
};

}  // namespace

absl::StatusOr<Graph> recompute(const Graph& graph, const PassContext& context) {
  RecomputeMode mode = context.recipe.pin.recompute.value_or(context.recipe.recompute);
  if (mode != RecomputeMode::kFull && mode != RecomputeMode::kSelective) return graph;
  return Recomputer(graph, mode).run();
}

}  // namespace partita
