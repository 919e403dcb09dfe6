#include "codegen/prepare/rematerialize.h"

#include <algorithm>
#include <climits>
#include <cstdlib>
#include <map>
#include <utility>
#include <vector>

#include "base/cat.h"
#include "base/status.h"
#include "codegen/prepare/code_graph.h"
#include "codegen/prepare/offload_activations.h"
#include "codegen/prepare/value_readers.h"
#include "ir/graph/builder.h"
#include "ir/graph/storage.h"

namespace partita {
namespace {

// Of values and nodes that are computed whole: in parts of rows values are as much smaller, and nodes as many more.
constexpr int64_t kWorthBytes = 256 << 10;  // smaller values are not worth a step
constexpr int kDeepest = 4;                 // nodes on top of each other that are computed again for one value
constexpr int kNear = 24;                   // nodes: how much longer a source may have to live

class Rematerializer {
 public:
  Rematerializer(const Graph& graph, int64_t row_parts, bool weights_apart, const std::vector<bool>& on_host)
      : graph_(graph),
        worth_bytes_(kWorthBytes / row_parts),
        near_(kNear * static_cast<int>(row_parts)),
        weights_apart_(weights_apart),
        on_host_(on_host),
        first_(graph.values.size(), INT_MAX),
        last_(graph.values.size(), -1),
        last_before_(graph.values.size(), -1),
        at_(graph.values.size(), INT_MAX),
        outside_(graph.values.size(), false),
        levels_(graph.values.size(), 0) {}

  Rematerialized run() {
    index();
    bool any = false;
    for (const Node& node : graph_.nodes) {
      if (!is_candidate(node)) continue;
      const ValueId v = node.outputs[0];
      int at = first_[v], deep = levels(node, at, kDeepest);
      if (deep > kDeepest && is_apart(graph_.nodes[at]) && !goes_to_host(graph_.nodes[at], on_host_)) {
        at = last_with_sources(node, kDeepest);
        if (at < first_[v]) deep = levels(node, at, kDeepest);
      }
      if (deep > kDeepest) continue;
      levels_[v] = deep, at_[v] = at;
      any = true;
    }
    if (any) return rewrite();
    Rematerialized same{graph_, {}};
    for (size_t v = 0; v < graph_.values.size(); ++v) same.same_as.push_back(static_cast<ValueId>(v));
    return same;
  }

 private:
  ValueId storage(ValueId v) const { return storage_of(graph_, v); }
  bool is_chosen(ValueId v) const { return levels_[v] > 0; }
  static bool is_backward(const Node& node) { return node.segment == Segment::kBackward; }
  bool is_apart(const Node& node) const { return weights_apart_ && node.weight_gradient; }

  // Which backward nodes read a value.
  void index() {
    for (size_t n = 0; n < graph_.nodes.size(); ++n) {
      const Node& node = graph_.nodes[n];
      if (node.op->view) continue;
      for (ValueId input : node.inputs) {
        if (input == kNoValue) continue;
        ValueId v = storage(input);
        if (is_backward(node)) {
          first_[v] = std::min(first_[v], static_cast<int>(n));
          last_[v] = static_cast<int>(n);
          if (!is_apart(node)) last_before_[v] = last_[v];
        } else if (node.segment != Segment::kForward) {
          outside_[v] = true;
        }
      }
    }
    for (const GraphOutput& o : graph_.outputs) outside_[storage(o.value)] = true;
    for (const State& s : graph_.states) {
      if (s.next != kNoValue) outside_[storage(s.next)] = true;
    }
  }

  bool is_elementwise(const Node& node) const {
    return node.segment == Segment::kForward && node.outputs.size() == 1 && !node.op->view &&
           role_of(*node.op) == NodeRole::kElementwise;
  }

  bool is_candidate(const Node& node) const {
    if (!is_elementwise(node)) return false;
    ValueId v = node.outputs[0];
    return first_[v] != INT_MAX && !outside_[v] && byte_size(graph_.type(v)) >= worth_bytes_;
  }

  // How many nodes on top of each other are computed again to have `node` at backward node `when`; more than `most`
  // where something it takes is not there.
  int levels(const Node& node, int when, int most) const {
    int deepest = 1;
    for (ValueId input : node.inputs) {
      if (deepest > most) break;
      if (input != kNoValue) deepest = std::max(deepest, 1 + source_levels(storage(input), when, most - 1));
    }
    return deepest;
  }

  int source_levels(ValueId v, int when, int most) const {
    const Node* producer = graph_.producer(v);
    if (producer == nullptr || producer->segment == Segment::kPrologue) return 0;
    const int impossible = most + 1;
    if (producer->segment != Segment::kForward) return impossible;
    if (levels_[v] > 0) return std::abs(at_[v] - when) <= near_ ? levels_[v] : impossible;
    if (last_[v] >= 0) return last_[v] >= when - near_ ? 0 : impossible;
    return most > 0 && repeats_cheaply(*producer) ? levels(*producer, when, most) : impossible;
  }

  // The last node before the gradients of weights at which all that `node` takes is there anyway; INT_MAX: none.
  int last_with_sources(const Node& node, int most) const {
    int last = INT_MAX;
    for (ValueId input : node.inputs) {
      if (input == kNoValue) continue;
      const ValueId v = storage(input);
      const Node* producer = graph_.producer(v);
      if (producer == nullptr || producer->segment != Segment::kForward) continue;
      if (levels_[v] > 0) {
        last = std::min(last, at_[v]);
      } else if (last_[v] < 0) {
        if (most > 1 && repeats_cheaply(*producer)) last = std::min(last, last_with_sources(*producer, most - 1));
      } else if (last_[v] == last_before_[v]) {
        last = std::min(last, last_[v]);
      }
    }
    return last;
  }

  bool repeats_cheaply(const Node& node) const {
    return is_elementwise(node) || role_of(*node.op) == NodeRole::kBroadcast;
  }

  Rematerialized rewrite() {
    Rewriter r(graph_);
    rewriter_ = &r;
    again_.clear();
    std::multimap<int, ValueId> before;  // their first readers, by node
    for (size_t v = 0; v < at_.size(); ++v) {
      if (at_[v] < first_[v]) before.emplace(at_[v], static_cast<ValueId>(v));
    }
    for (size_t n = 0; n < graph_.nodes.size(); ++n) {
      const Node& node = graph_.nodes[n];
      reader_ = &node;
      for (auto [at, end] = before.equal_range(static_cast<int>(n)); at != end; ++at) backward_value(at->second);
      bool reads = is_backward(node) && std::any_of(node.inputs.begin(), node.inputs.end(),
                                                    [&](ValueId v) { return v != kNoValue && is_chosen(storage(v)); });
      if (reads) {
        emit(node, node.segment);
        for (size_t k = 0; k < node.outputs.size(); ++k) r.replace(node.outputs[k], emitted_[k]);
      } else {
        r.copy(node);
      }
    }
    Rematerialized out;
    std::vector<std::pair<ValueId, ValueId>> made;
    for (const auto& [old, now] : again_) made.emplace_back(now, old);
    out.same_as = same_values(r, graph_, made);
    out.graph = std::move(r).finish();
    return out;
  }

  // A value as the backward part has it.
  ValueId backward_value(ValueId v) {
    if (v == kNoValue) return v;
    if (auto at = again_.find(v); at != again_.end()) return at->second;
    const Node* producer = graph_.producer(v);
    bool forward = producer != nullptr && producer->segment == Segment::kForward;
    ValueId s = storage(v);
    bool again = forward && (producer->op->view ? is_chosen(s) || is_repeated(s) : is_chosen(v) || is_repeated(v));
    if (!again) return (*rewriter_)(v);
    emit(*producer, Segment::kBackward);
    return again_[v] = emitted_[0];
  }

  // A part of a chosen value that no backward node reads: the chain behind it.
  bool is_repeated(ValueId v) const {
    const Node* producer = graph_.producer(v);
    return producer != nullptr && last_[v] < 0 && producer->segment == Segment::kForward && repeats_cheaply(*producer);
  }

  // `node` on backward values; its results are in emitted_.
  void emit(const Node& node, Segment segment) {
    std::vector<ValueId> inputs;
    for (ValueId v : node.inputs) inputs.push_back(backward_value(v));
    rewriter_->at(node);
    rewriter_->builder().context().segment = segment;
    rewriter_->builder().context().weight_gradient = reader_->weight_gradient;
    rewriter_->builder().context().turn = reader_->turn;
    auto made = rewriter_->builder().try_emit(*node.op, std::move(inputs), node.attrs);
    PARTITA_CHECK(made.ok(), cat(node.op->name, " computed again: ", made.status().message()));
    emitted_ = *std::move(made);
  }

  const Graph& graph_;
  const int64_t worth_bytes_;
  const int near_;
  const bool weights_apart_;
  const std::vector<bool>& on_host_;  // by block
  std::vector<int> first_, last_;     // per value: the first and the last backward node that reads it
  std::vector<int> last_before_;  // per value: the last that reads it before the gradients of weights that run apart
  std::vector<int> at_;           // per value that is computed again: the backward node that it is there for
  std::vector<bool> outside_;     // per value: read by others than the forward and backward parts
  std::vector<int> levels_;       // per value: 0, or it is computed again, over that many nodes
  Rewriter* rewriter_ = nullptr;
  std::map<ValueId, ValueId> again_;
  std::vector<ValueId> emitted_;
  const Node* reader_ = nullptr;  // of the graph: what is computed again is there for it
};

}  // namespace

Rematerialized rematerialize(const Graph& graph, int64_t row_parts, bool weights_apart,
                             const std::vector<bool>& on_host) {
  return Rematerializer(graph, row_parts, weights_apart, on_host).run();
}

}  // namespace partita
