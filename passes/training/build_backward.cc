// One walk over the forward nodes in reverse. A node's gradient is asked for once all its outputs' gradients are
// summed, which the order guarantees. Only values between a trained parameter and the loss take part.
#include "passes/training/build_backward.h"

#include <algorithm>
#include <utility>

#include "base/cat.h"
#include "base/status.h"
#include "ir/graph/builder.h"
#include "passes/training/accumulate.h"
#include "passes/training/loss_scale.h"

namespace partita {
namespace {

class Backward {
 public:
  Backward(const Graph& graph, const PassContext& context)
      : context_(context), b_(graph), forward_nodes_(graph.nodes.size()) {}

  absl::StatusOr<Graph> build() {
    mark_needed();
    ValueId loss = b_.graph().outputs[0].value;
    if (!needed_[loss]) {
      return absl::InvalidArgumentError(
          "the loss depends on no trainable parameter through differentiable operations; check `trainable`, `frozen` "
          "and `loss` in train.yaml (weights that a file has as Constant nodes are trained where `trainable` names "
          "them)");
    }
    gradient_.assign(needed_.size(), kNoValue);
    b_.context() = {.segment = Segment::kBackward};
    gradient_[loss] = b_.scalar(b_.dtype(loss), context_.update_each ? 1.0 : share_of_run(context_));
    if (has_loss_scale(context_)) {
      ValueId scale = loss_scale(b_, context_.recipe.loss_scale);
      gradient_[loss] = b_.mul(gradient_[loss], b_.cast(scale, b_.dtype(loss)));
    }
    mark_weights();
    for (size_t n = forward_nodes_; n-- > 0;) PARTITA_RETURN_IF_ERROR(pass(static_cast<NodeId>(n)));
    finish_outputs();
    return std::move(b_).finish();
  }

 private:
  // needed: a float value that depends on a trained parameter and that the loss depends on.
  void mark_needed() {
    const Graph& g = b_.graph();
    std::vector<bool> depends(g.values.size(), false), reaches(g.values.size(), false);
    for (const State& s : g.states) depends[s.value] = s.kind == StateKind::kParameter;
    for (const Node& node : g.nodes) {
      bool any =
          std::any_of(node.inputs.begin(), node.inputs.end(), [&](ValueId v) { return v != kNoValue && depends[v]; });
      for (ValueId v : node.outputs) depends[v] = any && is_float(g.type(v).dtype);
    }
    reaches[g.outputs[0].value] = true;
    for (size_t n = g.nodes.size(); n-- > 0;) {
      const Node& node = g.nodes[n];
      if (std::none_of(node.outputs.begin(), node.outputs.end(), [&](ValueId v) { return reaches[v]; })) continue;
      for (ValueId v : node.inputs) {
        if (v != kNoValue) reaches[v] = true;
      }
    }
    needed_.resize(g.values.size());
    for (size_t v = 0; v < needed_.size(); ++v) needed_[v] = depends[v] && reaches[v];
  }

  // Nodes that are made of states and constants alone: copies of weights in other types and layouts.
  void mark_weights() {
    const Graph& g = b_.graph();
    std::vector<bool> of_data(g.values.size(), false);
    for (const GraphInput& in : g.inputs) of_data[in.value] = true;
    readers_.assign(g.values.size(), 0), of_weights_.assign(forward_nodes_, false),
        passed_.assign(forward_nodes_, false);
    finished_.assign(g.values.size(), {}), further_.assign(g.values.size(), {}), trained_.assign(g.values.size(), -1);
    for (size_t k = 0; k < g.states.size(); ++k) {
      if (g.states[k].kind == StateKind::kParameter) trained_[g.states[k].value] = static_cast<int>(k);
    }
    for (size_t n = 0; n < forward_nodes_; ++n) {
      const Node& node = g.nodes[n];
      bool data = node.inputs.empty();  // drawn or made anew
      for (ValueId v : node.inputs) {
        if (v == kNoValue) continue;
        ++readers_[v];
        data = data || of_data[v];
      }
      for (ValueId v : node.outputs) of_data[v] = data;
      of_weights_[n] = !data;
    }
  }

  // A node's part of backward. A weight's gradient is finished where the last one that adds to it is there, and not at
  // the end: sharded and summed over micro-batches at once, it need not be kept whole.
  absl::Status pass(NodeId n) {
    if (passed_[n]) return absl::OkStatus();
    passed_[n] = true;
    PARTITA_RETURN_IF_ERROR(differentiate(n));
    const std::vector<ValueId> inputs = b_.graph().nodes[n].inputs;
    for (ValueId v : inputs) {
      if (v == kNoValue || --readers_[v] > 0) continue;
      if (trained_[v] >= 0) whole_.push_back(v);
      const NodeId made_by = b_.graph().values[v].producer;
      if (made_by == kNoNode || !of_weights_[made_by]) continue;
      const std::vector<ValueId>& made = b_.graph().nodes[made_by].outputs;
      if (std::all_of(made.begin(), made.end(), [&](ValueId x) { return readers_[x] == 0; }))
        PARTITA_RETURN_IF_ERROR(pass(made_by));
    }
    // A bias waits for the product before it, which may sum up its gradient.
    if (of_weights_[n] || b_.graph().nodes[n].op->work == WorkKind::kMemory) return absl::OkStatus();
    for (ValueId v : std::exchange(whole_, {})) finish_gradient(v);
    return absl::OkStatus();
  }

  void finish_gradient(ValueId parameter) {
    const State s = b_.graph().states[static_cast<size_t>(trained_[parameter])];
    if (gradient_[parameter] == kNoValue) return;
    std::vector<ValueId>& terms = finished_[parameter] = {gradient_[parameter]};
    terms.insert(terms.end(), further_[parameter].begin(), further_[parameter].end());
    b_.context() = {.segment = Segment::kBackward, .origin = b_.origin("accumulate")};
    if (!context_.accumulate || context_.update_each) return;
    for (size_t k = 0; k < terms.size(); ++k)
      terms[k] = accumulate(b_, context_, cat("grad/", s.name, k == 0 ? "" : cat("@", k)), s.name, terms[k]);
  }

  // The gradient itself. Where sums over samples have a fixed order, its terms are added up last: with each of them
  // summed, stages of a pipeline that have one each need not meet before.
  ValueId whole_gradient(const std::vector<ValueId>& terms) {
    if (terms.size() == 1) return terms[0];
    b_.context() = {.segment = Segment::kUpdate, .origin = b_.origin("accumulate")};
    ValueId g = terms[0];
    for (size_t k = 1; k < terms.size(); ++k) g = b_.add(g, terms[k]);
    return g;
  }

  absl::Status differentiate(NodeId n) {
    Node node = b_.graph().nodes[n];  // a copy: the builder's nodes move as it grows
    std::vector<ValueId> output_gradients;
    bool any = false;
    for (ValueId v : node.outputs) {
      output_gradients.push_back(gradient_[v]);
      any |= gradient_[v] != kNoValue;
    }
    if (!any ||
        std::none_of(node.inputs.begin(), node.inputs.end(), [&](ValueId v) { return v != kNoValue && needed_[v]; }))
      return absl::OkStatus();
    if (node.op->gradient == nullptr) {
      return absl::UnimplementedError(cat(b_.graph().origin(node), ": '", node.op->name,
                                          "' lies between a trained parameter and the loss and has no gradient"));
    }
    size_t first = b_.graph().nodes.size();
    b_.context() = {.segment = Segment::kBackward,
                    .origin = node.origin,
                    .block = node.block,
                    .weight_gradient = false,
                    .device = node.device};
    std::vector<TensorType> types = input_types(b_.graph(), node);
    std::vector<ValueId> gradients =
        node.op->gradient({b_, node.attrs, types, node.inputs, node.outputs, output_gradients});
    PARTITA_CHECK(gradients.size() == node.inputs.size(),
                  cat("gradient of ", node.op->name, " has ", gradients.size(), " results"));
    mark_weight_gradients(first, node, gradients);
    for (size_t k = 0; k < gradients.size(); ++k) {
      ValueId v = node.inputs[k];
      if (v == kNoValue || gradients[k] == kNoValue || !needed_[v]) continue;
      PARTITA_CHECK(b_.type(gradients[k]) == b_.type(v),
                    cat("gradient ", k, " of ", node.op->name, ": expected ", to_string(b_.type(v)), ", found ",
                        to_string(b_.type(gradients[k]))));
      if (gradient_[v] != kNoValue && trained_[v] >= 0 && context_.recipe.reproducible) {
        further_[v].push_back(gradients[k]);
      } else {
        gradient_[v] = gradient_[v] == kNoValue ? gradients[k] : b_.add(gradient_[v], gradients[k]);
      }
    }
    return absl::OkStatus();
  }

  // Of the nodes just made, those that no activation's gradient needs compute a weight's gradient (zero-bubble
  // schedules run them later).
  void mark_weight_gradients(size_t first, const Node& node, const std::vector<ValueId>& gradients) {
    const std::vector<Node>& nodes = b_.graph().nodes;
    std::vector<bool> for_input(nodes.size() - first, false);
    auto mark = [&](ValueId v) {
      if (v == kNoValue) return;
      NodeId p = b_.graph().values[v].producer;
      if (p >= static_cast<NodeId>(first)) for_input[static_cast<size_t>(p) - first] = true;
    };
    for (size_t k = 0; k < gradients.size(); ++k) {
      if (node.inputs[k] != kNoValue && !is_weight(node.inputs[k])) mark(gradients[k]);
    }
    for (size_t n = nodes.size(); n-- > first;) {
      b_.mark_weight_gradient(static_cast<NodeId>(n), !for_input[n - first]);
      if (for_input[n - first]) {
        for (ValueId v : nodes[n].inputs) mark(v);
      }
    }
  }

  // A parameter, or its copy in the type that is computed in.
  bool is_weight(ValueId v) const {
    const Node* producer = b_.graph().producer(v);
    return producer == nullptr || producer->segment == Segment::kPrologue;
  }

  // Outputs: the loss, the metrics and the gradients, averaged (or summed) over runs through accumulators where there
  // are several. Where each run is an optimizer step, the gradients are those of the last one.
  void finish_outputs() {
    b_.context() = {.segment = Segment::kBackward, .origin = b_.origin("accumulate")};
    std::vector<GraphOutput> outputs = reported_of_step(b_, context_);
    size_t states = b_.graph().states.size();
    for (size_t k = 0; k < states; ++k) {
      const State s = b_.graph().states[k];
      if (s.kind != StateKind::kParameter) continue;
      if (finished_[s.value].empty()) {
        if (gradient_[s.value] == kNoValue)  // trained, yet without influence on the loss
          gradient_[s.value] = b_.full(b_.dtype(s.value), b_.shape(s.value), 0);
        finish_gradient(s.value);
      }
    }
    for (size_t k = 0; k < states; ++k) {
      const State s = b_.graph().states[k];
      if (s.kind == StateKind::kParameter)
        outputs.push_back({cat("grad/", s.name), whole_gradient(finished_[s.value])});
    }
    b_.set_outputs(std::move(outputs));
  }

  const PassContext& context_;
  Builder b_;
  size_t forward_nodes_;
  std::vector<bool> needed_;
  std::vector<ValueId> gradient_;
  std::vector<int> readers_;                   // per value: nodes whose part of backward is not there yet
  std::vector<int> trained_;                   // per value: the parameter's number among the states, else -1
  std::vector<bool> of_weights_, passed_;      // per forward node
  std::vector<ValueId> whole_;                 // parameters whose gradients are there
  std::vector<std::vector<ValueId>> further_;  // per parameter: terms of its gradient that stay by themselves
  // Per parameter: the terms of its gradient, summed over micro-batches where there are some.
  std::vector<std::vector<ValueId>> finished_;
};

}  // namespace

absl::StatusOr<Graph> build_backward(const Graph& graph, const PassContext& context) {
  return Backward(graph, context).build();
}

}  // namespace partita
