#include "partitioner/audit/explain_value.h"

#include <algorithm>
#include <deque>
#include <optional>
#include <set>

#include "base/cat.h"
#include "base/quote.h"
#include "base/status.h"
#include "fmt/format.h"
#include "ir/mesh/factor_split.h"
#include "partitioner/localize/localize.h"

namespace partita {
namespace {

constexpr size_t kFirstHops = 5, kLastHops = 2;  // of a chain that are shown

// A node with its formula cut to how its operands lie.
struct Use {
  Formula formula;
  std::vector<size_t> present;  // input positions that are not absent
};

// An operand that has an axis.
struct Source {
  size_t input;  // position among the node's inputs
  int dimension;
  int factor;  // of the cut formula; -1: the piece starts at no factor
};

int dimension_of(const Sharding& s, int axis) {
  for (size_t d = 0; d < s.dims.size(); ++d) {
    for (const Piece& p : s.dims[d]) {
      if (std::find(p.axes.begin(), p.axes.end(), axis) != p.axes.end()) return static_cast<int>(d);
    }
  }
  return -1;
}

class Explanation {
 public:
  Explanation(const PlannedGraph& planned, std::vector<Sharding> lies, const PinRecipe& pin)
      : g_(planned.graph),
        plan_(planned.plan),
        factors_(planned.factors),
        mesh_(plan_.mesh),
        pin_(pin),
        lies_(std::move(lies)) {}

  std::string of(ValueId v) const {
    const int state = state_of(v);
    const Sharding& s = state >= 0 && plan_.states[static_cast<size_t>(state)]
                            ? plan_.states[static_cast<size_t>(state)]->compute
                            : lies_[static_cast<size_t>(v)];
    std::string text = cat(described(v), "\n  lies as ", to_string(s, mesh_), "; a rank has ",
                           to_string(TensorType{g_.type(v).dtype, local_shape(s, mesh_)}), "\n");
    if (state >= 0) text += padding(static_cast<size_t>(state)) + storage(static_cast<size_t>(state));
    for (int a = 0; a < static_cast<int>(mesh_.axes.size()); ++a) {
      if (mesh_.axes[static_cast<size_t>(a)].size == 1 || a == stage_) continue;
      append(text, "  ", mesh_.axes[static_cast<size_t>(a)].name, " (", mesh_.axes[static_cast<size_t>(a)].size, ")",
             a == mesh_.time ? ", in time" : "", "\n");
      text += s.is_split_by(a) ? trace(v, a) : absence(v, a);
    }
    return text;
  }

 private:
  int state_of(ValueId v) const {
    for (size_t k = 0; k < g_.states.size(); ++k) {
      if (g_.states[k].value == v) return static_cast<int>(k);
    }
    return -1;
  }

  const GraphInput* input_of(ValueId v) const {
    for (const GraphInput& in : g_.inputs) {
      if (in.value == v) return &in;
    }
    return nullptr;
  }

  // "parameter 'w' f32[4,8]", "'y' f32[4,8], made by matmul 'MatMul '/mlp/up''"
  std::string described(ValueId v) const {
    const std::string type = to_string(g_.type(v));
    if (int s = state_of(v); s >= 0)
      return cat(enum_name(g_.states[static_cast<size_t>(s)].kind), " ", quote(g_.states[static_cast<size_t>(s)].name),
                 " ", type);
    if (const GraphInput* in = input_of(v)) return cat("input ", quote(in->name), " ", type);
    const Node* node = g_.producer(v);
    if (node == nullptr) return cat("a constant, ", type);
    const std::string& name = g_.values[static_cast<size_t>(v)].name;
    return cat(name.empty() ? "a value without a name" : quote(name), " ", type, ", made by ", described(*node));
  }

  std::string described(const Node& node) const {
    const bool backward = node.segment == Segment::kBackward;
    return cat(node.op->name, backward ? " of the backward part of " : " of ", g_.origin(node));
  }

  // How messages call a value that something reads.
  std::string called(ValueId v) const {
    if (int s = state_of(v); s >= 0) return quote(g_.states[static_cast<size_t>(s)].name);
    if (const GraphInput* in = input_of(v)) return quote(in->name);
    const std::string& name = g_.values[static_cast<size_t>(v)].name;
    if (!name.empty()) return quote(name);
    const Node* node = g_.producer(v);
    return node == nullptr ? "a constant" : cat("the result of ", described(*node));
  }

  Use use_of(const Node& node) const {
    Use use{bound_formula(g_, node), {}};
    for (size_t k = 0; k < node.inputs.size(); ++k) {
      if (node.inputs[k] != kNoValue) use.present.push_back(k);
    }
    for (size_t k = 0; k < use.present.size(); ++k)
      refine(use.formula, false, k, lies(node.inputs[use.present[k]]), mesh_);
    for (size_t k = 0; k < node.outputs.size(); ++k) refine(use.formula, true, k, lies(node.outputs[k]), mesh_);
    return use;
  }

  // How what reads the value finds it: parameters as they are computed with.
  const Sharding& lies(ValueId v) const {
    const int s = state_of(v);
    const bool placed = s >= 0 && plan_.states[static_cast<size_t>(s)].has_value();
    return placed ? plan_.states[static_cast<size_t>(s)]->compute : lies_[static_cast<size_t>(v)];
  }

  int factor_of(const Formula& formula, const FormulaOperand& operand, const Sharding& s, int axis) const {
    auto find = [&](const auto& asked) {
      for (const auto& [factor, axes] : asked) {
        if (std::find(axes.begin(), axes.end(), axis) != axes.end()) return factor;
      }
      return -1;
    };
    const int taken = find(proposals(formula, operand, s, mesh_));
    return taken >= 0 ? taken : find(split_whole_factors(formula, operand, s, mesh_));
  }

  std::vector<Source> sources(const Node& node, const Use& use, int axis) const {
    std::vector<Source> out;
    for (size_t k = 0; k < use.present.size(); ++k) {
      const Sharding& s = lies(node.inputs[use.present[k]]);
      if (s.is_split_by(axis))
        out.push_back({use.present[k], dimension_of(s, axis), factor_of(use.formula, use.formula.inputs[k], s, axis)});
    }
    return out;
  }

  // Back from a value that the axis splits to where that begins.
  std::string trace(ValueId v, int axis) const {
    std::vector<std::string> hops;
    std::string end;
    for (;;) {
      const Node* node = g_.producer(v);
      if (node == nullptr) {
        end = origin(v, axis);
        break;
      }
      const Use use = use_of(*node);
      const size_t output = static_cast<size_t>(g_.values[static_cast<size_t>(v)].output);
      const int factor = factor_of(use.formula, use.formula.outputs[output], lies(v), axis);
      const std::vector<Source> all = sources(*node, use, axis);
      auto same = std::find_if(all.begin(), all.end(), [&](const Source& s) { return s.factor == factor; });
      if (same == all.end()) {
        end = begun_by(*node, use, all, axis);
        break;
      }
      const ValueId from = node->inputs[same->input];
      hops.push_back(cat("dimension ", dimension_of(lies(v), axis), " of what ", described(*node),
                         " makes is dimension ", same->dimension, " of ", called(from)));
      v = from;
    }
    std::string text;
    for (size_t k = 0; k < hops.size(); ++k) {
      const bool skipped = hops.size() > kFirstHops + kLastHops + 1 && k >= kFirstHops && k + kLastHops < hops.size();
      if (!skipped) append(text, "    ", hops[k], "\n");
      if (skipped && k == kFirstHops) append(text, "    … ", hops.size() - kFirstHops - kLastHops, " more nodes\n");
    }
    return cat(text, "    ", end, "\n");
  }

  // The node has the axis on its result, and no operand of it has it there.
  std::string begun_by(const Node& node, const Use& use, const std::vector<Source>& all, int axis) const {
    if (all.empty()) {
      const std::optional<End> end = nearest_end(g_.values[static_cast<size_t>(node.outputs[0])].producer, axis);
      const bool sum = end && end->role && *end->role != FactorRole::kWhole && *end->role != FactorRole::kParallel;
      if (!sum) return cat(described(node), " is done in parts for what reads it: nothing it reads is split so");
      return cat(described(node), " gets its part of a sum (reduce-scatter): ", summed_by(*end));
    }
    const Source& s = all.front();
    const std::string operand = cat("dimension ", s.dimension, " of ", called(node.inputs[s.input]));
    if (s.factor < 0) return cat(described(node), ": ", operand, " is laid out anew");
    switch (use.formula.factors[static_cast<size_t>(s.factor)].role) {
      case FactorRole::kWhole:
        return cat(described(node), " must have ", operand,
                   " whole, and is exchanged (all-to-all) to parts of this one");
      case FactorRole::kParallel:
        return cat(described(node), ": ", operand, " is exchanged to parts of this one");
      default:
        return cat(described(node), " sums over ", operand, "; the sum is scattered here (reduce-scatter)");
    }
  }

  // Why an input, a state or a constant has the axis.
  std::string origin(ValueId v, int axis) const {
    const int d = dimension_of(lies(v), axis);
    const std::string begins = cat("begins at ", described(v), ", dimension ", d, ": ");
    if (const std::string pinned = pin_of(v); !pinned.empty()) return cat(begins, pinned);
    for (const ChosenFactor& f : factors_) {
      if (f.axis != axis || !std::binary_search(f.values.begin(), f.values.end(), v)) continue;
      return cat(begins, "chosen, because it divides ", fmt::format("{:.3g}", f.flops), " operations of ", f.nodes,
                 " nodes and ", f.parameter_elements, " elements of parameters for ",
                 fmt::format("{:.3g}", f.moved_bytes), " bytes moved; at most ", f.size, " ranks can divide it");
    }
    if (input_of(v) != nullptr) return cat(begins, "ranks along ", axis_name(axis), " take different samples");
    return cat(begins, "the plan places it so");
  }

  std::string pin_of(ValueId v) const {
    const int s = state_of(v);
    std::string match;
    for (const ValuePin& p : pin_.values) {
      if (s >= 0 && glob_match(p.match, g_.states[static_cast<size_t>(s)].name)) match = p.match;
    }
    return match.empty() ? "" : cat("pinned by ", quote(match));
  }

  // Why the value lacks the axis.
  std::string absence(ValueId v, int axis) const {
    if (g_.producer(v) == nullptr) {
      const std::string pinned = pin_of(v);
      const bool divides_model =
          std::any_of(factors_.begin(), factors_.end(), [&](const ChosenFactor& f) { return f.axis == axis; });
      return cat("    all ranks along it have the same: ",
                 !pinned.empty()                      ? pinned
                 : state_of(v) >= 0 && !divides_model ? "they differ in the samples that they take"
                                                      : "no factor of it was chosen for this axis",
                 "\n");
    }
    const NodeId made_by = g_.values[static_cast<size_t>(v)].producer;
    if (const std::optional<End> end = nearest_end(made_by, axis)) {
      return cat("    ",
                 end->node == made_by ? "" : "nothing that makes it here is split by it; the nearest upstream: ",
                 ended_by(*end), "\n");
    }
    return "    all ranks along it compute the same: nothing upstream of it is split by it\n";
  }

  // Where a split ends: an operand that has the axis, and what role it plays in the node.
  struct End {
    NodeId node;
    Source source;
    std::optional<FactorRole> role;
  };

  // Of `from` and all before it, the nearest node that reads something split by the axis.
  std::optional<End> nearest_end(NodeId from, int axis) const {
    std::set<NodeId> seen;
    std::deque<NodeId> open{from};
    while (!open.empty()) {
      const NodeId n = open.front();
      open.pop_front();
      if (!seen.insert(n).second) continue;
      const Node& node = g_.nodes[static_cast<size_t>(n)];
      const Use use = use_of(node);
      if (const std::vector<Source> all = sources(node, use, axis); !all.empty())
        return End{n, all.front(), role_of(use, all.front())};
      for (ValueId in : node.inputs) {
        if (in != kNoValue && g_.producer(in) != nullptr) open.push_back(g_.values[static_cast<size_t>(in)].producer);
      }
    }
    return std::nullopt;
  }

  static std::optional<FactorRole> role_of(const Use& use, const Source& s) {
    if (s.factor < 0) return std::nullopt;
    return use.formula.factors[static_cast<size_t>(s.factor)].role;
  }

  std::string ended_by(const End& end) const {
    const Node& node = g_.nodes[static_cast<size_t>(end.node)];
    const Source& s = end.source;
    const std::string operand = cat("dimension ", s.dimension, " of ", called(node.inputs[s.input]));
    if (!end.role) return cat(described(node), " gathers ", operand, ", whose parts are no parts of what it makes");
    switch (*end.role) {
      case FactorRole::kWhole:
        return cat(described(node), " must have ", operand,
                   " whole, by its formula (docs/architecture.md): ", to_string(bound_formula(g_, node)));
      case FactorRole::kParallel:
        return cat(described(node), " could keep the split of ", operand,
                   ", and does not: how its other operands lie, or the size, is in the way");
      default:
        return cat(summed_by(end), ": partial sums of the ranks are added up (all-reduce)");
    }
  }

  std::string summed_by(const End& end) const {
    const Node& node = g_.nodes[static_cast<size_t>(end.node)];
    return cat(described(node), " sums over dimension ", end.source.dimension, " of ",
               called(node.inputs[end.source.input]));
  }

  std::string padding(size_t state) const {
    if (plan_.logical.empty() || plan_.logical[state] == g_.type(g_.states[state].value).shape) return "";
    return cat("  padded with zeros from ", to_string(plan_.logical[state]), ", so that the axes divide it\n");
  }

  // Between steps, where that differs (ZeRO, offload).
  std::string storage(size_t state) const {
    const std::optional<StateLayout>& s = plan_.states[state];
    if (!s) return "  lies as the gradient that it adds up\n";
    std::string text;
    if (s->host) text += "  kept in host memory between steps\n";
    if (s->stored == s->compute) return text;
    const char* when = s->gather == GatherTime::kStep         ? "once a step"
                       : s->gather == GatherTime::kMicroBatch ? "in forward, and kept for backward"
                                                              : "in forward and again in backward";
    return cat(text, "  stored as ", to_string(s->stored, mesh_), " between steps (ZeRO); gathered ", when, "\n");
  }

  std::string axis_name(int axis) const { return mesh_.axes[static_cast<size_t>(axis)].name; }

  const Graph& g_;
  const ShardingPlan& plan_;
  const std::vector<ChosenFactor>& factors_;
  const Mesh& mesh_;
  const PinRecipe& pin_;
  const std::vector<Sharding> lies_;
  const int stage_ = mesh_.find(kStageAxis);
};

absl::StatusOr<ValueId> find_value(const Graph& graph, std::string_view name) {
  std::vector<std::string> names;
  for (const State& s : graph.states) {
    if (s.name == name) return s.value;
    names.push_back(s.name);
  }
  for (const GraphInput& in : graph.inputs) {
    if (in.name == name) return in.value;
    names.push_back(in.name);
  }
  for (const GraphOutput& out : graph.outputs) {
    if (out.name == name) return out.value;
    names.push_back(out.name);
  }
  for (size_t v = 0; v < graph.values.size(); ++v) {
    if (graph.values[v].name == name) return static_cast<ValueId>(v);
    if (!graph.values[v].name.empty()) names.push_back(graph.values[v].name);
  }
  for (size_t n = graph.nodes.size(); n-- > 0;) {
    const Node& node = graph.nodes[n];
    const std::string_view called = onnx_name(graph, node);
    if (node.segment != Segment::kForward || called.empty()) continue;
    if (called == name) return node.outputs[0];
    names.emplace_back(called);
  }
  const std::string near = nearest_name(name, names);
  return absl::NotFoundError(cat("no value, node, parameter or output of the training graph is called ", quote(name),
                                 near.empty() ? "" : cat("; the nearest is ", quote(near)),
                                 "; what ops that were fused (attention, norms) have inside is gone by then: --dump-ir "
                                 "shows the graph after each pass"));
}

// The stage that makes the value, or reads it first; 0: none does.
size_t stage_of(const Graph& graph, ValueId v, const Layout& layout) {
  const Node* node = graph.producer(v);
  for (size_t n = 0; node == nullptr && n < graph.nodes.size(); ++n) {
    const std::vector<ValueId>& in = graph.nodes[n].inputs;
    if (std::find(in.begin(), in.end(), v) != in.end()) node = &graph.nodes[n];
  }
  return node == nullptr ? 0 : static_cast<size_t>(node->chunk) % static_cast<size_t>(layout.pipeline);
}

}  // namespace

absl::StatusOr<std::string> explain_value(const PlannedStages& planned, const Layout& layout, const PinRecipe& pin,
                                          std::string_view name) {
  const PlannedGraph& any = planned.alike.empty() ? planned.joined : planned.alike.front();
  PARTITA_ASSIGN_OR_RETURN(const ValueId v, find_value(any.graph, name));
  std::string text;
  const PlannedGraph* own = &any;
  if (!planned.alike.empty()) {
    const size_t stage = stage_of(any.graph, v, layout);
    own = &planned.alike[stage];
    text = cat("on stage ", stage, ", whose ranks divide other things than those of other stages: ");
  }
  PARTITA_ASSIGN_OR_RETURN(std::vector<Sharding> lies, value_shardings(own->graph, own->plan));
  return text + Explanation(*own, std::move(lies), pin).of(v);
}

}  // namespace partita
