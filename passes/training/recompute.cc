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
#include "passes/forward/biased_product.h"

namespace partita {
namespace {

constexpr int64_t kReduces = 8;  // a result so many times smaller than what it is made of is cheaper kept

// Which values of a block are kept.
class KeptValues {
 public:
  // `modes`: of each block.
  KeptValues(const Graph& graph, std::vector<RecomputeMode> modes)
      : graph_(graph), modes_(std::move(modes)), leaves_(graph.values.size(), false), dependence_(graph) {
    std::vector<std::vector<NodeId>> readers = uses(graph);
    for (size_t v = 0; v < graph.values.size(); ++v) {
      const Node* producer = graph.producer(static_cast<ValueId>(v));
      leaves_[v] = producer != nullptr && std::any_of(readers[v].begin(), readers[v].end(), [&](NodeId n) {
                     return graph.nodes[n].segment != Segment::kBackward && graph.nodes[n].block != producer->block;
                   });
    }
    const bool halves = std::any_of(modes_.begin(), modes_.end(), [](RecomputeMode mode) {
      return mode == RecomputeMode::kAttention || mode == RecomputeMode::kMlp;
    });
    if (halves) mark_attention(readers);
  }

  bool holds(ValueId v) const {
    const Node* producer = graph_.producer(v);
    if (producer == nullptr || producer->segment != Segment::kForward || producer->block < 0 || leaves_[v]) return true;
    switch (on_device(modes_[static_cast<size_t>(producer->block)])) {
      case RecomputeMode::kSelective:
        return producer->op->kernel || reduces(*producer, v) || is_biased_product(graph_, dependence_, *producer);
      case RecomputeMode::kAttention:
        return !to_attention_[graph_.values[v].producer];
      case RecomputeMode::kMlp:
        return to_attention_[graph_.values[v].producer];
      case RecomputeMode::kAllButAttention:
        return producer->op->work == WorkKind::kAttention;
      case RecomputeMode::kFull:
        return false;
      default:
        return true;
    }
  }

  // The nodes behind a value that is not kept, down to kept ones and to those in `known`, in order.
  std::set<NodeId> behind(ValueId value, const std::map<ValueId, ValueId>& known) const {
    std::set<NodeId> wanted;
    std::vector<ValueId> open{value};
    while (!open.empty()) {
      const ValueId v = open.back();
      open.pop_back();
      if (v == kNoValue || holds(v) || known.count(v)) continue;
      const NodeId n = graph_.values[v].producer;
      if (wanted.insert(n).second)
        open.insert(open.end(), graph_.nodes[n].inputs.begin(), graph_.nodes[n].inputs.end());
    }
    return wanted;
  }

 private:
  // Forward nodes are in order: readers stand behind what they read.
  void mark_attention(const std::vector<std::vector<NodeId>>& readers) {
    to_attention_.assign(graph_.nodes.size(), false);
    for (size_t n = graph_.nodes.size(); n-- > 0;) {
      const Node& node = graph_.nodes[n];
      if (node.segment != Segment::kForward || node.block < 0) continue;
      bool leads = node.op->work == WorkKind::kAttention;
      for (ValueId v : node.outputs) {
        for (NodeId reader : readers[v])
          leads = leads || (to_attention_[reader] && graph_.nodes[reader].block == node.block);
      }
      to_attention_[n] = leads;
    }
  }

  bool reduces(const Node& node, ValueId v) const {
    return std::any_of(node.inputs.begin(), node.inputs.end(), [&](ValueId x) {
      return x != kNoValue && elements(graph_.type(x).shape) >= kReduces * elements(graph_.type(v).shape);
    });
  }

  const Graph& graph_;
  const std::vector<RecomputeMode> modes_;
  std::vector<bool> leaves_;        // per value: read by the forward part outside of its block
  std::vector<bool> to_attention_;  // per node: attention of its block, or what leads to it
  const Dependence dependence_;
};

class Recomputer {
 public:
  Recomputer(const Graph& graph, std::vector<RecomputeMode> modes)
      : graph_(graph), kept_(graph, std::move(modes)), r_(graph) {}

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
  void make_again(ValueId value) {
    for (NodeId n : kept_.behind(value, again_)) {
      std::vector<ValueId> outputs = emit(graph_.nodes[n], false);
      for (size_t k = 0; k < outputs.size(); ++k) again_[graph_.nodes[n].outputs[k]] = outputs[k];
    }
  }

  // The node in the backward segment, on what is there.
  std::vector<ValueId> emit(const Node& node, bool weight_gradient) {
    std::vector<ValueId> inputs;
    for (ValueId v : node.inputs) {
      auto at = v == kNoValue || kept_.holds(v) ? again_.end() : again_.find(v);
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
  const KeptValues kept_;
  Rewriter r_;
  std::map<ValueId, ValueId> again_;  // forward value -> its copy
};

size_t blocks_of(const Graph& graph) {
  int32_t last = -1;
  for (const Node& node : graph.nodes) last = std::max(last, node.block);
  return static_cast<size_t>(last + 1);
}

}  // namespace

absl::StatusOr<Graph> recompute(const Graph& graph, const PassContext& context) {
  const size_t blocks = blocks_of(graph), named = context.recipe.pin.recompute_blocks.size();
  if (named > blocks)
    return absl::InvalidArgumentError(
        cat("pin recompute: block ", named - 1, " is named, and the model has ", blocks, " blocks, numbered from 0"));
  std::vector<RecomputeMode> modes(blocks);
  for (size_t b = 0; b < blocks; ++b) modes[b] = context.recipe.recompute_of(static_cast<int32_t>(b));
  const bool any = std::any_of(modes.begin(), modes.end(),
                               [](RecomputeMode mode) { return on_device(mode) > RecomputeMode::kNone; });
  return any ? Recomputer(graph, std::move(modes)).run() : graph;
}

std::vector<bool> recomputed_nodes(const Graph& graph, RecomputeMode mode) {
  const KeptValues kept(graph, std::vector<RecomputeMode>(blocks_of(graph), mode));
  std::vector<bool> again(graph.nodes.size(), false);
  std::map<ValueId, ValueId> known;
  for (const Node& node : graph.nodes) {
    if (node.segment != Segment::kBackward) continue;
    for (ValueId v : node.inputs) {
      for (NodeId n : kept.behind(v, known)) {
        again[n] = true;
        for (ValueId made : graph.nodes[n].outputs) known[made] = made;
      }
    }
  }
  return again;
}

}  // namespace partita
