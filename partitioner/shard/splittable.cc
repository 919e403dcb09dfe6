#include "partitioner/shard/splittable.h"

#include <algorithm>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>

#include "base/status.h"
#include "partitioner/prepare/context_axes.h"
#include "partitioner/prepare/split_forms.h"
#include "partitioner/prepare/tensor_blocks.h"

namespace partita {
namespace {

constexpr double kLeastSaving = 0.999;  // of the cost, for an axis to be cut in two

bool is_whole(const Formula& f, const std::vector<int>& dim) {
  return dim.size() == 1 && f.factors[dim[0]].role == FactorRole::kWhole;
}

class Maker {
 public:
  Maker(const Graph& graph, const Layout& layout, const BatchPlan& batch, const StageScope& scope)
      : whole_(graph), layout_(layout), batch_(batch), scope_(scope) {}

  absl::StatusOr<SplittableGraph> run() && {
    AxisCuts cuts = {{layout_.tensor}, {}};
    if (layout_.context > 1) cuts.context = {layout_.context};
    PARTITA_RETURN_IF_ERROR(cut(cuts));
    PaddedGraph best = splittable();
    if (layout_.tensor > 1 && batch_.fixed_parts == 0) PARTITA_RETURN_IF_ERROR(cut_tensor_axis(best));
    if (layout_.context > 1) PARTITA_RETURN_IF_ERROR(fit_context_axis(best));
    return SplittableGraph{std::move(best), std::move(axes_)};
  }

  absl::StatusOr<SplittableGraph> run_like(const Mesh& mesh) && {
    AxisCuts cuts;
    for (const MeshAxis& axis : mesh.axes) {
      if (axis.name.starts_with(kTensorAxis)) cuts.tensor.push_back(axis.size);
      if (axis.name.starts_with(kContextAxis)) cuts.context.push_back(axis.size);
    }
    PARTITA_RETURN_IF_ERROR(cut(cuts));
    PaddedGraph padded = splittable();
    masks_positions_ = layout_.context > 1 && !heads_cut(padded.graph);
    if (masks_positions_) padded = splittable();
    return SplittableGraph{std::move(padded), std::move(axes_)};
  }

 private:
  absl::Status cut(AxisCuts cuts) {
    PARTITA_ASSIGN_OR_RETURN(axes_, mesh_axes(layout_, batch_, cuts));
    cuts_ = std::move(cuts);
    return absl::OkStatus();
  }

  LayoutChooser chosen(const Graph& graph) const {
    LayoutChooser chooser(graph, axes_.mesh, axes_.sample_parts());
    choose_splits(axes_, batch_, graph, chooser);
    return chooser;
  }

  // The tensor axis as two, where that costs a rank less: a factor that it does not divide as one (two key heads for
  // four ranks) is split by the outer axis, and the ranks along the inner one each have the part they need.
  absl::Status cut_tensor_axis(PaddedGraph& best) {
    AxisCuts least_cuts = cuts_;
    double least = chosen(best.graph).cost();
    for (int64_t outer = layout_.tensor / 2; outer > 1; --outer) {
      if (layout_.tensor % outer != 0) continue;
      PARTITA_RETURN_IF_ERROR(cut({{outer, layout_.tensor / outer}, cuts_.context}));
      PaddedGraph other = splittable();
      if (double c = chosen(other.graph).cost(); c < least * kLeastSaving) {
        least = c;
        best = std::move(other);
        least_cuts = cuts_;
      }
    }
    return cut(std::move(least_cuts));
  }

  // The context axis as two, where key heads and the query heads of each divide by them and not by the whole. Where
  // heads do not divide at all, what is causal becomes masked: queries stay in parts and all keys are gathered.
  absl::Status fit_context_axis(PaddedGraph& best) {
    std::optional<std::vector<int64_t>> heads = heads_cut(best.graph);
    masks_positions_ = !heads;
    if (heads && heads->size() == 1) return absl::OkStatus();
    if (heads) PARTITA_RETURN_IF_ERROR(cut({cuts_.tensor, *std::move(heads)}));
    best = splittable();
    return absl::OkStatus();
  }

  std::optional<std::vector<int64_t>> heads_cut(const Graph& graph) const {
    const LayoutChooser chooser = chosen(graph);
    return cut_for_heads(graph, axes_.mesh, axes_.context, axes_.sample_parts(),
                         [&](ValueId v) { return chooser.sharding(v); });
  }

  PaddedGraph splittable() const {
    Graph graph = use_split_forms(whole_, [&](const Node& node) {
                    return scope_.has(node) && (keeps_samples(whole_, node, batch_.batch_ranks) ||
                                                (masks_positions_ && keeps_positions(whole_, node)));
                  }).graph;
    // In a fixed order of sums, the graph is what all layouts divide: its own forms, and its own sizes.
    if (batch_.tensor_blocks > 1 || (axes_.tensor.empty() && layout_.row_bytes == 1)) return {std::move(graph), {}, {}};
    const std::set<const Node*> wanted = divisible(graph);
    const SplitForms forms = use_split_forms(graph, [&](const Node& node) { return wanted.count(&node) > 0; });
    const PaddedGraph all =
        pad_dimensions(forms.graph, {.parts = layout_.tensor, .is_split = [](const State&, int) { return true; }});
    const LayoutChooser chooser = chosen(all.graph);
    const IsSplit is_split = [&](ValueId v, int64_t dim) {
      std::vector<int> axes = chooser.sharding(all.now[forms.now[v]]).axes_of(static_cast<int>(dim));
      return std::find_first_of(axes.begin(), axes.end(), axes_.tensor.begin(), axes_.tensor.end()) != axes.end();
    };
    Padding padding{.parts = layout_.tensor, .row_bytes = layout_.row_bytes};
    std::map<std::string, ValueId> parameters;
    for (const State& s : graph.states) parameters[s.name] = s.value;
    const std::vector<bool> read = scope_.read(graph);
    padding.is_split = [&](const State& s, int dim) {
      ValueId v = parameters.at(s.name);
      return read[static_cast<size_t>(v)] && is_split(v, dim);
    };
    return padded(graph, forms, padding, is_split, wanted);
  }

  using IsSplit = std::function<bool(ValueId, int64_t dim)>;

  // The graph with longer dimensions, and with the other forms of those `wanted` nodes that keep whole what the tensor
  // axis splits, or what they could not keep whole if it is longer.
  PaddedGraph padded(const Graph& graph, const SplitForms& forms, const Padding& padding, const IsSplit& is_split,
                     const std::set<const Node*>& wanted) const {
    const PaddedGraph longer = pad_dimensions(forms.graph, padding);
    const auto changes = [&](ValueId v, int64_t dim) {
      const auto d = static_cast<size_t>(dim);
      return is_split(v, dim) || longer.graph.type(longer.now[forms.now[v]]).shape[d] != graph.type(v).shape[d];
    };
    const std::set<const Node*> changed = keeping_whole(graph, wanted, changes);
    const SplitForms split = use_split_forms(
        graph, [&](const Node& node) { return node.op->lengthened == nullptr && changed.count(&node) > 0; });
    PaddedGraph out = pad_dimensions(split.graph, padding);
    std::set<ValueId> lookups;  // results of those that are split
    for (const Node* node : keeping_whole(graph, wanted, is_split)) {
      if (node->op->lengthened != nullptr) lookups.insert(out.now[split.now[node->outputs[0]]]);
    }
    if (!lookups.empty())
      out.graph =
          use_split_forms(out.graph, [&](const Node& node) { return lookups.count(node.outputs[0]) > 0; }).graph;
    return out;
  }

  // Those of `wanted` that keep whole what is to be split, or longer, and the gradients of their lookups.
  std::set<const Node*> keeping_whole(const Graph& graph, const std::set<const Node*>& wanted,
                                      const IsSplit& changes) const {
    std::set<std::pair<ValueId, int64_t>> split_lookups;  // (indices, rows) of tables that are split
    std::set<ValueId> split_logits;
    for (const Node* node : wanted) {
      Formula f = bound_formula(graph, *node);
      for (size_t k = 0; k < node->inputs.size(); ++k) {
        for (size_t d = 0; d < f.inputs[k].dims.size(); ++d) {
          if (!is_whole(f, f.inputs[k].dims[d]) || !changes(node->inputs[k], static_cast<int64_t>(d))) continue;
          split_logits.insert(node->inputs[k]);
          split_lookups.insert({node->inputs.back(), graph.type(node->inputs[k]).shape[d]});
        }
      }
    }
    const auto is_changed = [&](const Node& node) {
      Formula f = bound_formula(graph, node);
      for (size_t k = 0; k < node.inputs.size(); ++k) {
        for (const auto& dim : f.inputs[k].dims) {
          if (is_whole(f, dim) && split_logits.count(node.inputs[k])) return true;
        }
      }
      for (const auto& dim : f.outputs[0].dims) {  // a lookup's gradient
        if (is_whole(f, dim) && split_lookups.count({node.inputs.back(), f.factors[dim[0]].size})) return true;
      }
      return false;
    };
    std::set<const Node*> changed;
    for (const Node* node : wanted) {
      if (is_changed(*node)) changed.insert(node);
    }
    return changed;
  }

  // Nodes that have another form in which the tensor axis could divide more.
  std::set<const Node*> divisible(const Graph& graph) const {
    std::set<const Node*> found;
    const std::set<int32_t> tied = tied_origins(graph);
    for (const Node& node : graph.nodes) {
      const bool shares = scope_.has(node) || (node.origin >= 0 && tied.count(node.origin) > 0);
      if (shares && keeps_divisible(graph, node, layout_.tensor)) found.insert(&node);
    }
    return found;
  }

  // Where other stages read what these stages read too: a table that is split here has to be in a form there that can
  // be.
  std::set<int32_t> tied_origins(const Graph& graph) const {
    std::set<int32_t> origins;
    if (scope_.is_whole()) return origins;
    const std::vector<bool> read = scope_.read(graph);
    std::set<ValueId> states;
    for (const State& s : graph.states) {
      if (read[static_cast<size_t>(s.value)]) states.insert(s.value);
    }
    for (const Node& node : graph.nodes) {
      if (node.segment == Segment::kForward &&
          std::any_of(node.inputs.begin(), node.inputs.end(), [&](ValueId v) { return states.count(v) > 0; }))
        origins.insert(node.origin);
    }
    return origins;
  }

  const Graph& whole_;
  const Layout& layout_;
  const BatchPlan& batch_;
  const StageScope& scope_;
  AxisCuts cuts_;
  MeshAxes axes_;                 // of these cuts
  bool masks_positions_ = false;  // attention under a causal mask is done as masked attention
};

}  // namespace

absl::StatusOr<SplittableGraph> make_splittable(const Graph& graph, const Layout& layout, const BatchPlan& batch,
                                                const StageScope& scope) {
  return Maker(graph, layout, batch, scope).run();
}

absl::StatusOr<SplittableGraph> make_splittable_like(const Mesh& mesh, const Graph& graph, const Layout& layout,
                                                     const BatchPlan& batch, const StageScope& scope) {
  return Maker(graph, layout, batch, scope).run_like(mesh);
}

AxisShares choose_splits(const MeshAxes& axes, const BatchPlan& batch, const Graph& graph, LayoutChooser& chooser) {
  std::function<bool(const PropagatedFactor&)> keeps_sums;
  if (batch.fixed_parts > 0 && !axes.tensor.empty()) keeps_sums = keeps_tensor_blocks(graph);
  AxisShares shares;
  if (axes.expert >= 0) shares.expert = chooser.choose(axes.expert, AxisRole::kExpert);
  for (int axis : axes.context) shares.context = std::max(shares.context, chooser.choose(axis, AxisRole::kSequence));
  for (int axis : axes.tensor)
    shares.tensor =
        std::max(shares.tensor, chooser.choose(axis, AxisRole::kTensor, axis == axes.tensor[0], keeps_sums));
  return shares;
}

}  // namespace partita
