#include "codegen/prepare/offload_activations.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "codegen/prepare/code_graph.h"
#include "codegen/prepare/value_readers.h"
#include "ir/graph/builder.h"
#include "ir/op/op_def.h"

namespace partita {
namespace {

// Copying less takes as long as copying nothing.
constexpr int64_t kSmallBytes = 1024;

class Offloader {
 public:
  Offloader(const Graph& graph, std::vector<int32_t> phases, const std::vector<bool>& blocks, bool strict)
      : graph_(graph),
        blocks_(blocks),
        code_(graph, true, std::move(phases), strict),
        of_samples_(graph.values.size(), false),
        goes_(graph.values.size(), false),
        r_(graph) {
    mark_of_samples();
    choose();
    plan_fetches();
  }

  SidedGraph run() {
    std::set<std::pair<int32_t, int32_t>> entered;
    for (size_t n = 0; n < graph_.nodes.size(); ++n) {
      const Node& node = graph_.nodes[n];
      if (node.segment == Segment::kBackward) {
        const std::pair<int32_t, int32_t> part{code_.phases[n], node.block};
        if (entered.insert(part).second) fetch(part);
        std::vector<ValueId> inputs;
        for (ValueId v : node.inputs) inputs.push_back(in_backward(v, n));
        const std::vector<ValueId> outputs = emit_on(node.device, r_, *node.op, std::move(inputs), node.attrs, node);
        for (size_t k = 0; k < outputs.size(); ++k) {
          r_.replace(node.outputs[k], outputs[k]);
          r_.builder().name(outputs[k], graph_.values[node.outputs[k]].name);
        }
        continue;
      }
      r_.copy(node);
      for (ValueId v : node.outputs) {
        if (!goes_[v]) continue;
        on_host_[v] = emit_on(DeviceKind::kHost, r_, kTransfer, {r_(v)}, {}, node)[0];
        made_.emplace_back(on_host_[v], v);
      }
    }
    SidedGraph out;
    out.same_as = same_values(r_, graph_, made_);
    out.graph = std::move(r_).finish();
    return out;
  }

 private:
  // Gathered or rounded weights are no activations.
  void mark_of_samples() {
    for (const GraphInput& in : graph_.inputs) of_samples_[in.value] = in.kind == InputKind::kData;
    for (const Node& node : graph_.nodes) {
      const bool received = node.op->communicates && node.inputs.empty();
      const bool any = received || std::any_of(node.inputs.begin(), node.inputs.end(),
                                               [&](ValueId v) { return v != kNoValue && of_samples_[v]; });
      for (ValueId v : node.outputs) of_samples_[v] = any;
    }
  }

  // Made again by each of its readers.
  bool is_derived(ValueId v) const {
    const Node* producer = graph_.producer(v);
    return producer != nullptr && producer->segment == Segment::kForward && (producer->op->view || code_.is_free(v)) &&
           !producer->inputs.empty();
  }

  // The values in memory that these are made of where they are read.
  std::set<ValueId> stored_of(std::vector<ValueId> open) const {
    std::set<ValueId> stored;
    while (!open.empty()) {
      const ValueId v = open.back();
      open.pop_back();
      if (v == kNoValue) continue;
      if (is_derived(v)) {
        const std::vector<ValueId>& of = graph_.producer(v)->inputs;
        open.insert(open.end(), of.begin(), of.end());
      } else {
        stored.insert(v);
      }
    }
    return stored;
  }

  void choose() {
    std::vector<bool> stays(graph_.values.size(), false);
    const auto keep = [&](ValueId v) {
      for (ValueId s : stored_of({v})) stays[s] = true;
    };
    for (const GraphOutput& o : graph_.outputs) keep(o.value);
    for (const State& s : graph_.states) keep(s.next);
    for (const Node& node : graph_.nodes) {
      if (node.segment == Segment::kForward) continue;
      for (ValueId v : node.inputs) {
        if (node.segment != Segment::kBackward || node.device == DeviceKind::kHost || !goes_to_host(node, blocks_)) {
          keep(v);
          continue;
        }
        for (ValueId s : stored_of({v})) {
          const Node* producer = graph_.producer(s);
          goes_[s] = producer != nullptr && producer->segment == Segment::kForward && of_samples_[s] &&
                     producer->device != DeviceKind::kHost && byte_size(graph_.type(s)) > kSmallBytes;
        }
      }
    }
    for (size_t v = 0; v < stays.size(); ++v) goes_[v] = goes_[v] && !stays[v];
  }

  // In each part of the backward pass, a value comes when the block before that of its first reader begins.
  void plan_fetches() {
    std::map<int32_t, std::vector<int32_t>> order;  // by phase: blocks as they begin
    std::set<std::pair<int32_t, ValueId>> planned;
    for (size_t n = 0; n < graph_.nodes.size(); ++n) {
      const Node& node = graph_.nodes[n];
      if (node.segment != Segment::kBackward) continue;
      const int32_t phase = code_.phases[n];
      std::vector<int32_t>& blocks = order[phase];
      auto at = std::find(blocks.begin(), blocks.end(), node.block);
      if (at == blocks.end()) at = blocks.insert(blocks.end(), node.block);
      const int32_t when = at == blocks.begin() ? *at : *std::prev(at);
      for (ValueId v : stored_of(node.inputs)) {
        if (goes_[v] && planned.emplace(phase, v).second) fetches_[{phase, when}].emplace_back(v, n);
      }
    }
  }

  void fetch(const std::pair<int32_t, int32_t>& part) {
    const auto at = fetches_.find(part);
    if (at == fetches_.end()) return;
    for (const auto& [v, reader] : at->second) {
      const ValueId here = emit_on(DeviceKind::kDefault, r_, kTransfer, {on_host_.at(v)}, {}, graph_.nodes[reader])[0];
      again_[{part.first, v}] = here;
      made_.emplace_back(here, v);
    }
  }

  // What a node of the backward part reads in place of `v`.
  ValueId in_backward(ValueId v, size_t reader) {
    if (v == kNoValue) return r_(v);
    const std::pair<int32_t, ValueId> key{code_.phases[reader], v};
    if (const auto at = again_.find(key); at != again_.end()) return at->second;
    if (!is_derived(v)) return r_(v);
    const Node& producer = *graph_.producer(v);
    std::vector<ValueId> inputs;
    bool same = true;
    for (ValueId of : producer.inputs) {
      inputs.push_back(in_backward(of, reader));
      same = same && inputs.back() == r_(of);
    }
    if (same) return r_(v);
    Node again = graph_.nodes[reader];  // in its place, but of the model's node that the forward part has it of
    again.origin = producer.origin, again.block = producer.block;
    const std::vector<ValueId> outputs =
        emit_on(DeviceKind::kDefault, r_, *producer.op, std::move(inputs), producer.attrs, again);
    for (size_t k = 0; k < outputs.size(); ++k) {
      again_[{key.first, producer.outputs[k]}] = outputs[k];
      made_.emplace_back(outputs[k], producer.outputs[k]);
    }
    return again_.at(key);
  }

  const Graph& graph_;
  const std::vector<bool>& blocks_;
  const CodeGraph code_;
  std::vector<bool> of_samples_, goes_;  // per value: made of a micro-batch's samples; waits on the host
  // By phase and block: the values that come as it begins, and their first readers.
  std::map<std::pair<int32_t, int32_t>, std::vector<std::pair<ValueId, size_t>>> fetches_;
  Rewriter r_;
  std::map<ValueId, ValueId> on_host_;                    // old value -> its copy
  std::map<std::pair<int32_t, ValueId>, ValueId> again_;  // by phase: old value -> what the backward part reads
  std::vector<std::pair<ValueId, ValueId>> made_;
};

}  // namespace

bool goes_to_host(const Node& reader, const std::vector<bool>& blocks) {
  const size_t block = static_cast<size_t>(reader.block);
  return reader.block >= 0 && block < blocks.size() && blocks[block];
}

SidedGraph offload_activations(const Graph& graph, std::vector<int32_t> phases, const std::vector<bool>& blocks,
                               bool strict) {
  return Offloader(graph, std::move(phases), blocks, strict).run();
}

}  // namespace partita
