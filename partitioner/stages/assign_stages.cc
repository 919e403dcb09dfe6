// 1. What a value is made of tells which forward nodes need a stage: those that join data with parameters, and heavy
//    ones. The others are masks, tables, transposed weights: made where they are read.
// 2. Pieces of the forward part, in order (a block is one piece, else an ONNX node), are cut into stages. What leads to
//    states alone (a running statistic's new value) is no piece, and follows what it is made of.
// 3. Gradients follow by their origin and by what they read.
// 4. Who reads a parameter first owns it; updates run there.
#include "partitioner/stages/assign_stages.h"

#include <algorithm>
#include <map>

#include "base/cat.h"
#include "base/quote.h"
#include "base/status.h"
#include "ir/recipe/recipe.h"
#include "partitioner/follow/stage_roots.h"
#include "partitioner/layout/balance_stages.h"

namespace partita {
namespace {

// Work of a forward node and its gradients, in floating point operations.
constexpr double kTrainingWork = 3;
constexpr double kOperationsPerByte = 16, kOperationsPerByteSent = 128;

class StageAssigner {
 public:
  StageAssigner(const Graph& graph, int64_t stages, const StateOwners& owners, const std::vector<std::string>& cuts,
                bool ordered)
      : graph_(graph),
        owners_(owners),
        cuts_(cuts),
        ordered_(ordered),
        readers_(uses(graph)),
        dependence_(graph),
        made_of_roots_(made_of_stage_roots(graph, dependence_)),
        value_stage_(graph.values.size(), kAnywhere),
        updates_(graph.values.size()) {
    out_.stages = static_cast<int>(stages);
    out_.node.assign(graph.nodes.size(), kAnywhere);
    out_.state.assign(graph.states.size(), kAnywhere);
    out_.terms.resize(graph.values.size());
    out_.home.assign(graph.values.size(), kAnywhere);
    for (const State& s : graph.states) state_of_[s.value] = &s;
  }

  absl::StatusOr<StageAssignment> run() {
    find_staged();
    PARTITA_RETURN_IF_ERROR(cut_forward());
    find_summed();
    for (size_t n = 0; n < graph_.nodes.size(); ++n) {
      if (graph_.nodes[n].segment == Segment::kBackward && !after_sum_[n]) place_backward(n);
    }
    own_states();
    for (size_t n = 0; n < graph_.nodes.size(); ++n) {
      const Node& node = graph_.nodes[n];
      if (node.op->crosses_stages) continue;
      if (node.op->sums_micro_batches) {
        place_sum(n);
      } else if (after_sum_[n]) {
        place_backward(n);
      } else if (node.segment > Segment::kBackward) {
        place_update(n);
      }
    }
    own_accumulators();
    PARTITA_RETURN_IF_ERROR(refused_);
    return std::move(out_);
  }

 private:
  void find_staged() {
    const std::vector<bool> beyond = read_beyond_forward();
    for (size_t n = 0; n < graph_.nodes.size(); ++n) {
      const Node& node = graph_.nodes[n];
      if (node.segment > Segment::kForward || node.outputs.empty() || !made_of_roots_[node.outputs[0]]) continue;
      const bool leads = std::any_of(node.outputs.begin(), node.outputs.end(), [&](ValueId v) { return beyond[v]; });
      (leads ? staged_ : followers_).push_back(static_cast<NodeId>(n));
    }
  }

  // Per value: whether an output, a gradient or an update is made of it. States may become what is not.
  std::vector<bool> read_beyond_forward() const {
    std::vector<bool> beyond(graph_.values.size(), false);
    for (const GraphOutput& o : graph_.outputs) beyond[o.value] = true;
    for (size_t n = graph_.nodes.size(); n-- > 0;) {
      const Node& node = graph_.nodes[n];
      const bool leads = node.segment > Segment::kForward || node.outputs.empty() ||
                         std::any_of(node.outputs.begin(), node.outputs.end(), [&](ValueId v) { return beyond[v]; });
      for (ValueId v : node.inputs) {
        if (leads && v != kNoValue) beyond[v] = true;
      }
    }
    return beyond;
  }

  absl::Status cut_forward() {
    for (size_t n = 0; n < graph_.nodes.size(); ++n) {
      if (!graph_.nodes[n].op->crosses_stages) continue;
      put(n, static_cast<int>(graph_.nodes[n].attrs.i("to")));
      by_marks_ = true;
    }
    PARTITA_ASSIGN_OR_RETURN(std::vector<int> stages, is_marked()        ? marked()
                                                      : !owners_.empty() ? followed()
                                                      : cuts_.empty()    ? balanced()
                                                                         : pinned());
    for (size_t k = 0; k < staged_.size(); ++k) {
      const Node& node = graph_.nodes[staged_[k]];
      int at = stages[k];
      for (ValueId v : node.inputs) at = std::max(at, v == kNoValue ? 0 : value_stage_[v]);
      put(static_cast<size_t>(staged_[k]), at);
      if (node.origin >= 0) {
        auto [known, fresh] = stage_of_origin_.try_emplace(node.origin, at);
        known->second = std::max(known->second, at);
      }
    }
    // Importers write them behind the whole model: by their place in the graph they would all be the last stage's.
    for (NodeId n : followers_) {
      const Node& node = graph_.nodes[n];
      int at = std::max(node.chunk - 1, 0);
      for (ValueId v : node.inputs) at = std::max(at, v == kNoValue ? 0 : value_stage_[v]);
      put(static_cast<size_t>(n), at);
    }
    return absl::OkStatus();
  }

  bool is_marked() const {
    return std::any_of(staged_.begin(), staged_.end(), [&](NodeId n) { return graph_.nodes[n].chunk > 0; });
  }

  absl::StatusOr<std::vector<int>> marked() const {
    std::vector<int> stages;
    for (NodeId n : staged_) stages.push_back(std::max(graph_.nodes[n].chunk - 1, 0));
    return stages;
  }

  // The stages of the nodes that need one, with cuts as they are pinned.
  absl::StatusOr<std::vector<int>> pinned() const {
    std::vector<int> stages(staged_.size(), 0);
    size_t before = 0;
    for (size_t c = 0; c < cuts_.size(); ++c) {
      size_t at = 0;
      while (at < staged_.size() && !begins(graph_.nodes[staged_[at]], cuts_[c])) ++at;
      if (at == staged_.size())
        return absl::InvalidArgumentError(cat("pin cuts: ", quote(cuts_[c], 200),
                                              ": no forward node reads a parameter, or has a name, that it matches"));
      if (at <= before)
        return absl::InvalidArgumentError(
            cat("pin cuts: ", quote(cuts_[c], 200), " begins at ", graph_.origin(graph_.nodes[staged_[at]]),
                ", which leaves nothing to the stage before; expected cuts in the order of the model"));
      before = at;
      for (; at < staged_.size(); ++at) stages[at] = static_cast<int>(c) + 1;
    }
    return stages;
  }

  bool begins(const Node& node, const std::string& glob) const {
    if (std::string_view name = onnx_name(graph_, node); !name.empty() && glob_match(glob, name)) return true;
    std::vector<const State*> states = states_read(node);
    return std::any_of(states.begin(), states.end(), [&](const State* s) { return glob_match(glob, s->name); });
  }

  // The stages of nodes where the states that they read are.
  absl::StatusOr<std::vector<int>> followed() const {
    std::vector<int> stages;
    for (NodeId n : staged_) {
      int at = 0;
      for (const State* s : states_read(graph_.nodes[n])) {
        if (auto owner = owners_.find(s->name); owner != owners_.end()) at = std::max(at, owner->second);
      }
      stages.push_back(at);
    }
    return stages;
  }

  // Themselves, or through what is made of them alone.
  std::vector<const State*> states_read(const Node& node) const {
    std::vector<const State*> states;
    std::vector<ValueId> open = node.inputs;
    while (!open.empty()) {
      ValueId v = open.back();
      open.pop_back();
      if (v == kNoValue || dependence_.on_data(v)) continue;
      if (const Node* producer = graph_.producer(v)) {
        open.insert(open.end(), producer->inputs.begin(), producer->inputs.end());
      } else if (auto state = state_of_.find(v); state != state_of_.end()) {
        states.push_back(state->second);
      }
    }
    return states;
  }

  // What is never cut: blocks, or what each ONNX node of them became, and single nodes outside of blocks. `piece_of`:
  // of each staged node.
  std::vector<CutPiece> pieces_to_cut(bool whole_blocks, std::vector<int>& piece_of) const {
    std::vector<CutPiece> pieces;
    int32_t block = -1, origin = -1;
    for (NodeId n : staged_) {
      const Node& node = graph_.nodes[n];
      // What the last ONNX node of a block became stays with the block, and with it its gradient.
      const bool same = block >= 0 && node.origin >= 0 && node.origin == origin;
      if (!same && (pieces.empty() || node.block < 0 || !whole_blocks || node.block != block)) pieces.emplace_back();
      if (!same) block = node.block;
      origin = node.origin;
      piece_of[n] = static_cast<int>(pieces.size()) - 1;
      pieces.back().work += work(node);
    }
    return pieces;
  }

  absl::StatusOr<std::vector<int>> balanced() const {
    std::vector<int> piece_of(graph_.nodes.size(), -1);
    std::vector<CutPiece> pieces = pieces_to_cut(true, piece_of);
    if (pieces.size() < static_cast<size_t>(out_.stages)) pieces = pieces_to_cut(false, piece_of);
    if (pieces.size() < static_cast<size_t>(out_.stages)) {
      return absl::InvalidArgumentError(cat("pin pipeline: ", out_.stages,
                                            " stages (times chunks): the model has only ", pieces.size(),
                                            " parts that can be told apart; use fewer stages"));
    }
    measure_crossings(piece_of, pieces);
    std::vector<int> of_piece = balanced_stages(pieces, out_.stages), stages;
    for (NodeId n : staged_) stages.push_back(of_piece[static_cast<size_t>(piece_of[n])]);
    return stages;
  }

  double work(const Node& node) const {
    double bytes = 0;
    for (ValueId v : node.inputs) bytes += v == kNoValue ? 0 : static_cast<double>(byte_size(graph_.type(v)));
    for (ValueId v : node.outputs) bytes += static_cast<double>(byte_size(graph_.type(v)));
    return kTrainingWork * node_flops(graph_, node) + kOperationsPerByte * (node.op->view ? 0 : bytes);
  }

  // What is alive between pieces.
  void measure_crossings(const std::vector<int>& piece_of, std::vector<CutPiece>& pieces) const {
    std::vector<double> change(pieces.size() + 1, 0);
    for (NodeId n : staged_) {
      for (ValueId v : graph_.nodes[n].outputs) {
        int last = piece_of[n];
        for (NodeId r : readers_[v]) last = std::max(last, piece_of[r]);
        double bytes = static_cast<double>(byte_size(graph_.type(v)));
        change[static_cast<size_t>(piece_of[n]) + 1] += bytes;
        change[static_cast<size_t>(last) + 1] -= bytes;
      }
    }
    double alive = 0;
    for (size_t k = 0; k < pieces.size(); ++k) pieces[k].crossing = kOperationsPerByteSent * (alive += change[k]);
  }

  void put(size_t n, int stage) {
    out_.node[n] = stage;
    for (ValueId v : graph_.nodes[n].outputs) value_stage_[v] = stage;
  }

  // Whether the sum of several stages' terms goes through the node: op(a1 + a2, b1 + b2) = op(a1, b1) + op(a2, b2).
  // Operands that lie anywhere may stand apart from that.
  bool sums_through(const Node& node) const {
    auto staged = [&](ValueId v) { return v != kNoValue && value_stage_[v] != kAnywhere; };
    auto first = std::find_if(node.inputs.begin(), node.inputs.end(), staged);
    if (first == node.inputs.end()) return false;
    std::vector<bool> summed = summed_operands(graph_, node, static_cast<size_t>(first - node.inputs.begin()));
    for (size_t k = 0; k < node.inputs.size(); ++k) {
      if (staged(node.inputs[k]) && (summed.empty() || !summed[k])) return false;
    }
    return true;
  }

  bool is_jointly_linear(const Node& node) const {
    std::vector<bool> summed = summed_operands(graph_, node, 0);
    return !summed.empty() && std::count(summed.begin(), summed.end(), false) == 0;
  }

  // summed_[v]: all that reads the value, through jointly linear nodes, are sums over micro-batches. after_sum_[n]: it
  // is one, or what is left of one with each micro-batch.
  void find_summed() {
    after_sum_.assign(graph_.nodes.size(), false);
    for (size_t n = 0; n < graph_.nodes.size(); ++n) {
      const Node& node = graph_.nodes[n];
      after_sum_[n] = node.op->sums_micro_batches;
      for (ValueId v : node.inputs) {
        NodeId from = v == kNoValue ? kNoNode : graph_.values[v].producer;
        after_sum_[n] = after_sum_[n] || (node.segment == Segment::kBackward && from != kNoNode && after_sum_[from]);
      }
    }
    summed_.assign(graph_.values.size(), false);
    for (size_t n = graph_.nodes.size(); n-- > 0;) {
      const Node& node = graph_.nodes[n];
      if (node.segment != Segment::kBackward || node.outputs.size() != 1) continue;
      ValueId v = node.outputs[0];
      summed_[v] = !readers_[v].empty() && std::all_of(readers_[v].begin(), readers_[v].end(), [&](NodeId r) {
        const Node& reader = graph_.nodes[r];
        return reader.op->sums_micro_batches || (reader.segment == Segment::kBackward && reader.outputs.size() == 1 &&
                                                 summed_[reader.outputs[0]] && is_jointly_linear(reader));
      });
    }
  }

  // Stages that the node's inputs lie on; `partial`: whether one of them is a sum with terms on several.
  std::set<int> stages_of_inputs(const Node& node, bool* partial) const {
    std::set<int> stages;
    *partial = false;
    for (ValueId v : node.inputs) {
      if (v == kNoValue || value_stage_[v] == kAnywhere) continue;
      *partial = *partial || value_stage_[v] == kPartial;
      if (value_stage_[v] != kPartial) stages.insert(value_stage_[v]);
    }
    return stages;
  }

  void make_partial(size_t n) {
    if (ordered_)
      refused_.Update(absl::InvalidArgumentError(cat(
          "reproducible: ", graph_.origin(graph_.nodes[n]),
          ": with each micro-batch stages have parts of its sum, whose order is fixed; use fewer stages, or cut the "
          "model elsewhere")));
    std::set<int> terms;
    int home = kAnywhere;
    for (ValueId v : graph_.nodes[n].inputs) {
      if (value_stage_[v] >= 0) terms.insert(value_stage_[v]);
      if (value_stage_[v] != kPartial) continue;
      terms.insert(out_.terms[v].begin(), out_.terms[v].end());
      home = std::max(home, out_.home[v]);
    }
    put(n, kPartial);
    ValueId out = graph_.nodes[n].outputs[0];
    if (elements(graph_.type(out).shape) > 1) out_.home[out] = home >= 0 ? home : *terms.begin();
    out_.terms[out] = std::move(terms);
  }

  void place_backward(size_t n) {
    const Node& node = graph_.nodes[n];
    if (node.op->crosses_stages) return;
    bool partial = false;
    std::set<int> stages = stages_of_inputs(node, &partial);
    if (stages.empty() && !partial) return;
    if (by_marks_ && node.chunk > 0) return put(n, node.chunk - 1);
    if ((partial || (stages.size() > 1 && summed_[node.outputs[0]])) && sums_through(node)) return make_partial(n);
    PARTITA_CHECK(!partial, "what is left of a sum with each micro-batch goes through to its terms");
    int at = *stages.rbegin();
    if (auto known = stage_of_origin_.find(node.origin); known != stage_of_origin_.end()) at = known->second;
    for (ValueId v : node.inputs) {
      const Node* from = v == kNoValue ? nullptr : graph_.producer(v);
      if (from != nullptr && from->segment == Segment::kBackward && value_stage_[v] >= 0)
        at = std::min(at, value_stage_[v]);
    }
    put(n, at);
  }

  void own_states() {
    std::vector<std::set<int>> read(graph_.values.size());
    for (size_t n = graph_.nodes.size(); n-- > 0;) {
      const Node& node = graph_.nodes[n];
      if (node.segment > Segment::kBackward || node.op->sums_micro_batches) continue;
      std::set<int> by;
      if (out_.node[n] >= 0) by.insert(out_.node[n]);
      if (out_.node[n] == kAnywhere) {
        for (ValueId v : node.outputs) by.insert(read[v].begin(), read[v].end());
      }
      for (ValueId v : node.inputs) {
        if (v != kNoValue) read[v].insert(by.begin(), by.end());
      }
    }
    for (size_t k = 0; k < graph_.states.size(); ++k) {
      const State& s = graph_.states[k];
      // What is a small table in evaluation may be a running statistic in training, which one stage has.
      const auto fixed = owners_.find(s.name);
      if (fixed == owners_.end() && !has_one_stage(graph_, s)) continue;
      out_.state[k] = read[s.value].empty() ? 0 : *read[s.value].begin();
      if (s.kind == StateKind::kRunning && s.next != kNoValue) out_.state[k] = std::max(0, stage_of_terms(s.next));
      if (fixed != owners_.end()) out_.state[k] = fixed->second;
      if (s.kind == StateKind::kParameter) owner_[s.name] = out_.state[k];
    }
    for (size_t k = 0; k < graph_.states.size(); ++k) {
      const State& s = graph_.states[k];
      if (auto owner = owner_.find(s.parameter); owner != owner_.end()) out_.state[k] = owner->second;
      value_stage_[s.value] = out_.state[k];
      if (s.next != kNoValue && out_.state[k] >= 0) updates_[s.next].insert(out_.state[k]);
    }
    for (size_t n = graph_.nodes.size(); n-- > 0;) {
      const Node& node = graph_.nodes[n];
      if (node.segment <= Segment::kBackward) break;
      if (node.op->crosses_stages) {
        updates_[node.inputs[0]].insert(static_cast<int>(node.attrs.i("from")));
        continue;
      }
      for (ValueId from : node.outputs) {
        for (ValueId v : node.inputs) {
          if (v != kNoValue) updates_[v].insert(updates_[from].begin(), updates_[from].end());
        }
      }
      if (node.outputs.size() > 1) updates_[node.outputs[0]] = joined(node);
    }
  }

  // Where forward makes what the value is updated by; -1 where it does not.
  int stage_of_terms(ValueId v) const {
    const Node* node = v == kNoValue ? nullptr : graph_.producer(v);
    if (node == nullptr) return -1;
    if (node->segment <= Segment::kBackward && !node->op->sums_micro_batches && value_stage_[v] >= 0)
      return value_stage_[v];
    int stage = -1;
    for (ValueId from : node->inputs) stage = std::max(stage, stage_of_terms(from));
    return stage;
  }

  std::set<int> joined(const Node& node) const {
    std::set<int> all;
    for (ValueId v : node.outputs) all.insert(updates_[v].begin(), updates_[v].end());
    return all;
  }

  // A sum over micro-batches runs where its term is made.
  void place_sum(size_t n) {
    const Node& node = graph_.nodes[n];
    ValueId term = node.inputs.back();
    if (value_stage_[term] == kPartial) {
      put(n, kPartial);
      out_.terms[node.outputs[0]] = out_.terms[term];
      if (elements(graph_.type(term).shape) > 1) out_.home[node.outputs[0]] = value_stage_[node.inputs[0]];
      return;
    }
    put(n, value_stage_[term] >= 0 ? value_stage_[term] : std::max(0, value_stage_[node.inputs[0]]));
  }

  void place_update(size_t n) {
    const Node& node = graph_.nodes[n];
    bool partial = false;
    std::set<int> stages = stages_of_inputs(node, &partial);
    if (by_marks_ && node.chunk > 0 && (partial || !stages.empty())) return put(n, node.chunk - 1);
    bool scalar = node.outputs.size() == 1 && elements(graph_.type(node.outputs[0]).shape) == 1;
    if (!ordered_ && scalar && (partial || stages.size() > 1) && sums_through(node)) return make_partial(n);
    for (ValueId v : node.inputs) {  // sums that become whole here
      if (v == kNoValue || value_stage_[v] != kPartial) continue;
      if (out_.home[v] >= 0) stages.insert(out_.home[v]);
    }
    // In a fixed order sums over parameters go from stage to stage.
    int at = stages.empty() ? kAnywhere : ordered_ ? *stages.rbegin() : *stages.begin();
    if (const std::set<int>& owners = updates_[node.outputs[0]]; at >= 0 && owners.size() == 1) at = *owners.begin();
    put(n, at);
  }

  // An accumulator lies where its sum is.
  void own_accumulators() {
    for (size_t k = 0; k < graph_.states.size(); ++k) {
      const State& s = graph_.states[k];
      if (s.kind != StateKind::kAccumulator || s.next == kNoValue) continue;
      out_.state[k] = value_stage_[s.next] == kPartial ? *out_.terms[s.next].begin() : value_stage_[s.next];
    }
  }

  const Graph& graph_;
  const StateOwners& owners_;
  const std::vector<std::string>& cuts_;
  const bool ordered_;
  std::map<ValueId, const State*> state_of_;
  std::vector<std::vector<NodeId>> readers_;
  const Dependence dependence_;
  const std::vector<bool> made_of_roots_;  // per value
  std::vector<int> value_stage_;           // per value: as StageAssignment::node
  std::vector<NodeId> staged_;             // forward nodes that are cut into stages
  std::vector<NodeId> followers_;          // forward nodes that lead to what states become alone
  std::map<int32_t, int> stage_of_origin_;
  std::vector<bool> summed_, after_sum_;
  absl::Status refused_;
  bool by_marks_ = false;               // all nodes are where they are marked: something crosses stages by an op
  std::vector<std::set<int>> updates_;  // per value: owners of the states that it leads to
  std::map<std::string, int> owner_;    // of parameters
  StageAssignment out_;
};

}  // namespace

std::vector<bool> summed_operands(const Graph& graph, const Node& node, size_t partial) {
  if (node.outputs.size() != 1 || !is_float(graph.type(node.outputs[0]).dtype) ||
      std::count(node.inputs.begin(), node.inputs.end(), kNoValue) > 0)
    return {};
  if (node.op->communicates && (node.inputs.size() != 1 || node.attrs.s("reduce", "sum") != "sum")) return {};
  Formula f = bound_formula(graph, node);
  if (partial >= f.inputs.size() || f.inputs[partial].linear < 0) return {};
  std::vector<bool> summed;
  for (const FormulaOperand& o : f.inputs) summed.push_back(o.linear == f.inputs[partial].linear);
  return summed;
}

absl::StatusOr<StageAssignment> assign_stages(const Graph& graph, int64_t stages, const StateOwners& owners,
                                              const std::vector<std::string>& cuts, bool ordered) {
  return StageAssigner(graph, stages, owners, cuts, ordered).run();
}

}  // namespace partita
