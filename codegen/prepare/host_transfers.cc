#include "codegen/prepare/host_transfers.h"

#include <algorithm>
#include <map>
#include <tuple>

#include "base/cat.h"
#include "base/status.h"
#include "codegen/prepare/code_graph.h"
#include "ir/graph/builder.h"
#include "ir/op/op_def.h"

namespace partita {
namespace {

// Moving less than this costs what moving nothing but a scalar does.
constexpr int64_t kSmallBytes = 4096;

absl::StatusOr<std::vector<TensorType>> same_type(const OpView& use) {
  return std::vector<TensorType>(use.inputs.begin(), use.inputs.end());
}

// In the order of this list: what decides a reader's side wins over what does not.
enum class Side : uint8_t { kBoth, kDevice, kHost };

class Inserter {
 public:
  Inserter(const Graph& graph, const std::vector<bool>& host_states)
      : graph_(graph),
        r_(graph),
        sides_(graph.values.size(), Side::kBoth),
        made_of_products_(graph.values.size(), false) {
    for (size_t k = 0; k < graph.states.size(); ++k) sides_[graph.states[k].value] = side_of_state(host_states, k);
    for (const Node& node : graph.nodes) add(node);
    move_next_values(host_states);
  }

  SidedGraph finish() && {
    SidedGraph out;
    out.same_as.assign(r_.builder().graph().values.size(), kNoValue);
    for (size_t v = 0; v < graph_.values.size(); ++v) {
      ValueId old = static_cast<ValueId>(v);
      if (r_.has(old)) out.same_as[r_(old)] = old;
    }
    for (const auto& [key, now] : copies_) out.same_as[now] = std::get<0>(key);
    out.graph = std::move(r_).finish();
    for (const auto& [state, next] : next_) out.graph.states[state].next = next;
    return out;
  }

 private:
  // A value on one side, for readers in a segment's phase.
  using CopyKey = std::tuple<ValueId, Side, Segment, int32_t, bool, int32_t>;

  static Side side_of_state(const std::vector<bool>& host_states, size_t k) {
    return k < host_states.size() && host_states[k] ? Side::kHost : Side::kDevice;
  }

  // Products of what the host's part of the update makes (Muon's), and what is made of them, are the device's.
  bool multiplies(const Node& node) const {
    if (node.segment != Segment::kUpdate) return false;
    return std::any_of(node.inputs.begin(), node.inputs.end(), [&](ValueId v) {
      return v != kNoValue && (made_of_products_[static_cast<size_t>(v)] ||
                               (node.op->work == WorkKind::kMatrix && sides_[v] == Side::kHost));
    });
  }

  Side side(const Node& node) const {
    if (node.op->communicates || multiplies(node)) return Side::kDevice;
    if (node.op->view) return sides_[node.inputs[0]];
    int64_t on_device = 0, made = 0;
    for (ValueId v : node.inputs) {
      if (v == kNoValue) continue;
      if (sides_[v] == Side::kHost && node.segment == Segment::kUpdate) return Side::kHost;
      if (sides_[v] == Side::kDevice) on_device += byte_size(graph_.type(v));
    }
    if (node.device != DeviceKind::kHost) return Side::kDevice;
    // A slice of something large, say, is taken where that lies.
    for (ValueId v : node.outputs) made += byte_size(graph_.type(v));
    return on_device > made + kSmallBytes ? Side::kDevice : Side::kHost;
  }

  void add(const Node& node) {
    const Side at = side(node);
    std::vector<ValueId> inputs;
    for (ValueId v : node.inputs) inputs.push_back(on(at, v, node));
    std::vector<ValueId> outputs = emit(*node.op, std::move(inputs), node, at, node.attrs);
    for (size_t k = 0; k < outputs.size(); ++k) {
      r_.replace(node.outputs[k], outputs[k]);
      r_.builder().name(outputs[k], graph_.values[node.outputs[k]].name);
      sides_[node.outputs[k]] = at;
      made_of_products_[static_cast<size_t>(node.outputs[k])] = multiplies(node);
    }
  }

  // In the place of `reader`, but on that side.
  std::vector<ValueId> emit(const OpDef& op, std::vector<ValueId> inputs, const Node& reader, Side at,
                            const Attrs& attrs) {
    const DeviceKind side = at == Side::kHost ? DeviceKind::kHost : DeviceKind::kDefault;
    return emit_on(side, r_, op, std::move(inputs), attrs, reader);
  }

  ValueId on(Side at, ValueId v, const Node& reader) {
    if (v == kNoValue || at == Side::kBoth || sides_[v] == Side::kBoth || sides_[v] == at) return r_(v);
    ValueId& copy =
        copies_.try_emplace({v, at, reader.segment, reader.chunk, reader.weight_gradient, reader.turn}, kNoValue)
            .first->second;
    if (copy != kNoValue) return copy;
    // What is made of less is made again on this side.
    const Node* producer = graph_.producer(v);
    const bool again = producer != nullptr && (producer->op->view || role_of(*producer->op) == NodeRole::kBroadcast);
    const ValueId made =
        again ? emit(*producer->op, {on(at, producer->inputs[0], reader)}, reader, at, producer->attrs)[0]
              : emit(kTransfer, {r_(v)}, reader, at, {})[0];
    return copy = made;
  }

  void move_next_values(const std::vector<bool>& host_states) {
    for (size_t k = 0; k < graph_.states.size(); ++k) {
      const ValueId next = graph_.states[k].next;
      const Node* producer = next == kNoValue ? nullptr : graph_.producer(next);
      if (producer != nullptr) next_[k] = on(side_of_state(host_states, k), next, *producer);
    }
  }

  const Graph& graph_;
  Rewriter r_;
  std::vector<Side> sides_;             // per value of the given graph
  std::vector<bool> made_of_products_;  // likewise
  std::map<CopyKey, ValueId> copies_;
  std::map<size_t, ValueId> next_;  // by state
};

}  // namespace

extern const OpDef kTransfer = {.name = "transfer", .infer = same_type};

std::vector<ValueId> emit_on(DeviceKind side, Rewriter& r, const OpDef& op, std::vector<ValueId> inputs,
                             const Attrs& attrs, const Node& at) {
  r.at(at);
  r.builder().context().device = side;
  auto made = r.builder().try_emit(op, std::move(inputs), attrs);
  PARTITA_CHECK(made.ok(), cat(op.name, ": ", made.status().message()));
  return *std::move(made);
}

SidedGraph insert_host_transfers(const Graph& graph, const std::vector<bool>& host_states) {
  return Inserter(graph, host_states).finish();
}

}  // namespace partita
