#include "partitioner/shard/plan_shardings.h"

#include <algorithm>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <set>

#include "base/cat.h"
#include "base/quote.h"
#include "base/status.h"
#include "partitioner/follow/layout_chooser.h"
#include "partitioner/prepare/context_axes.h"
#include "partitioner/prepare/pad_dimensions.h"
#include "partitioner/prepare/split_forms.h"
#include "partitioner/shard/join_plans.h"

namespace partita {
namespace {

constexpr const char *kTensorAxis = "tensor", *kContextAxis = "context";
constexpr double kLeastSaving = 0.999;    // of the cost, for an axis to be cut in two
constexpr int64_t kSmallestStored = 256;  // elements: smaller parameters are not stored in parts

absl::Status refuse_unbuilt(const Recipe& recipe) {
  if (recipe.compress > Compression::kBf16 && recipe.precision == Precision::kFp16)
    return absl::InvalidArgumentError(
        cat("compress: ", enum_name(recipe.compress),
            ": error feedback carries gradients from step to step, and the loss scale of precision: fp16 changes "
            "between them; use precision: bf16, or compress: bf16"));
  return absl::OkStatus();
}

class Planner {
 public:
  // `stages`: that have this mesh, where others have another one. What they have no node of stays as it is.
  Planner(const Recipe& recipe, const Layout& layout, const BatchPlan& batch, std::vector<std::string>& warnings,
          std::set<int64_t> stages = {})
      : recipe_(recipe), layout_(layout), batch_(batch), warnings_(warnings), stages_(std::move(stages)) {
    if (layout_.context > 1) context_sizes_ = {layout_.context};
  }

  // Chooses how the tensor axis is cut, and gives the graph the forms that the axes can split.
  absl::StatusOr<PaddedGraph> prepare(const Graph& graph) {
    PARTITA_RETURN_IF_ERROR(make_mesh({layout_.tensor}));
    PaddedGraph best = splittable(graph);
    if (layout_.tensor > 1) PARTITA_RETURN_IF_ERROR(cut_tensor_axis(graph, best));
    if (layout_.context > 1) PARTITA_RETURN_IF_ERROR(fit_context_axis(graph, best));
    return best;
  }

  // The same with the tensor and context axes cut as in `training`.
  absl::StatusOr<PaddedGraph> prepare_like(const PlannedGraph& training, const Graph& graph) {
    std::vector<int64_t> tensor;
    context_sizes_.clear();
    for (const MeshAxis& axis : training.plan.mesh.axes) {
      if (axis.name.starts_with(kTensorAxis)) tensor.push_back(axis.size);
      if (axis.name.starts_with(kContextAxis)) context_sizes_.push_back(axis.size);
    }
    PARTITA_RETURN_IF_ERROR(make_mesh(tensor));
    PaddedGraph padded = splittable(graph);
    masks_positions_ = layout_.context > 1 && !heads_cut(padded.graph);
    return masks_positions_ ? splittable(graph) : std::move(padded);
  }

  absl::StatusOr<PlannedGraph> place(PaddedGraph padded) {
    LayoutChooser chooser(padded.graph, plan_.mesh, sample_parts());
    choose(chooser, /*warn=*/true);
    chooser_ = &chooser;
    place_inputs(padded.graph);
    PARTITA_RETURN_IF_ERROR(place_states(padded.graph));
    plan_.logical = std::move(padded.logical);
    plan_.micro_batches = batch_.micro_batches / batch_.slice_ranks * batch_.parts;
    plan_.samples_per_step = batch_.graph_batch * batch_.micro_batches;
    return PlannedGraph{std::move(padded.graph), std::move(plan_)};
  }

  // Inputs and states as in `training`.
  absl::StatusOr<PlannedGraph> place_like(const PlannedGraph& training, PaddedGraph padded) {
    PARTITA_ASSIGN_OR_RETURN(PlannedGraph planned, place(std::move(padded)));
    for (size_t n = 0; n < planned.graph.inputs.size(); ++n) {
      for (size_t k = 0; k < training.graph.inputs.size(); ++k) {
        if (training.graph.inputs[k].name == planned.graph.inputs[n].name)
          planned.plan.inputs[n] = training.plan.inputs[k];
      }
    }
    for (size_t n = 0; n < planned.graph.states.size(); ++n) {
      const State& mine = planned.graph.states[n];
      for (size_t k = 0; k < training.graph.states.size(); ++k) {
        const State& other = training.graph.states[k];
        if (other.name != mine.name) continue;
        if (training.graph.type(other.value) != planned.graph.type(mine.value)) {
          return absl::UnimplementedError(
              cat("state ", quote(mine.name), ": ", to_string(training.graph.type(other.value)),
                  " with padding in training, ", to_string(planned.graph.type(mine.value)),
                  " in evaluation, which must be alike; leave out `evaluate` or pin tensor: 1"));
        }
        planned.plan.states[n] = training.plan.states[k];
      }
    }
    return planned;
  }

 private:
  // The tensor axis as two, where that costs a rank less: a factor that it does not divide as one (two key heads for
  // four ranks) is split by the outer axis, and the ranks along the inner one each have the part they need.
  absl::Status cut_tensor_axis(const Graph& graph, PaddedGraph& best) {
    auto cost = [&](const Graph& padded) {
      LayoutChooser chooser(padded, plan_.mesh, sample_parts());
      choose(chooser, /*warn=*/false);
      return chooser.cost();
    };
    std::vector<int64_t> chosen = {layout_.tensor};
    double least = cost(best.graph);
    for (int64_t outer = layout_.tensor / 2; outer > 1; --outer) {
      if (layout_.tensor % outer != 0) continue;
      std::vector<int64_t> cut = {outer, layout_.tensor / outer};
      PARTITA_RETURN_IF_ERROR(make_mesh(cut));
      PaddedGraph other = splittable(graph);
      if (double c = cost(other.graph); c < least * kLeastSaving) {
        least = c;
        best = std::move(other);
        chosen = std::move(cut);
      }
    }
    return make_mesh(chosen);
  }

  // The context axis as two, where key heads and the query heads of each divide by them and not by the whole. Where
  // heads do not divide at all, what is causal becomes masked: queries stay in parts and all keys are gathered.
  absl::Status fit_context_axis(const Graph& graph, PaddedGraph& best) {
    std::optional<std::vector<int64_t>> cut = heads_cut(best.graph);
    masks_positions_ = !cut;
    if (cut && cut->size() == 1) return absl::OkStatus();
    if (cut) {
      std::vector<int64_t> tensor;
      for (int axis : tensor_) tensor.push_back(plan_.mesh.axes[static_cast<size_t>(axis)].size);
      context_sizes_ = *std::move(cut);
      PARTITA_RETURN_IF_ERROR(make_mesh(tensor));
    }
    best = splittable(graph);
    return absl::OkStatus();
  }

  std::optional<std::vector<int64_t>> heads_cut(const Graph& graph) {
    LayoutChooser chooser(graph, plan_.mesh, sample_parts());
    choose(chooser, /*warn=*/false);
    return cut_for_heads(graph, plan_.mesh, context_, sample_parts(), [&](ValueId v) { return chooser.sharding(v); });
  }

  // The pipeline's stages are outermost: they talk least. The data axis is cut where whole runs of the graph end and
  // where a ZeRO group ends; the expert axis is inside of it, then context, then tensor: the innermost talk most.
  // `tensor`: the sizes of the axes that the tensor axis is cut into.
  absl::Status make_mesh(const std::vector<int64_t>& tensor) {
    plan_ = {};
    batch_axes_.clear();
    zero_axes_.clear();
    tensor_.clear();
    if (layout_.pipeline > 1) add_axis_of(kStageAxis, layout_.pipeline);
    std::set<int64_t> cuts = {layout_.expert, layout_.sample_ranks()};
    for (int64_t cut : {batch_.batch_ranks, layout_.zero > 0 ? layout_.shard_ranks() : int64_t{1}}) {
      if (cut > layout_.expert) cuts.insert(cut);
    }
    std::vector<int64_t> sizes;  // innermost first
    for (auto at = cuts.begin(); std::next(at) != cuts.end(); ++at) {
      if (*std::next(at) % *at != 0) {
        return absl::InvalidArgumentError(
            cat("pin zero_group: groups of ", layout_.shard_ranks(), " ranks do not fit the ", batch_.batch_ranks,
                " ranks that share one run of the graph; expected one to divide the other"));
      }
      sizes.push_back(*std::next(at) / *at);
    }
    int64_t inside = layout_.sample_ranks();
    for (size_t k = sizes.size(); k-- > 0;) {
      inside /= sizes[k];
      add_sample_axis(sizes.size() == 1 ? "data" : cat("data", sizes.size() - 1 - k), sizes[k], inside);
    }
    if (layout_.expert > 1) {
      expert_ = add_axis_of("expert", layout_.expert);
      take_samples(expert_, 1);
    }
    context_.clear();
    for (size_t k = 0; k < context_sizes_.size(); ++k)
      context_.push_back(add_axis_of(context_sizes_.size() == 1 ? std::string(kContextAxis) : cat(kContextAxis, k),
                                     context_sizes_[k]));
    for (size_t k = 0; layout_.tensor > 1 && k < tensor.size(); ++k)
      tensor_.push_back(add_axis_of(tensor.size() == 1 ? kTensorAxis : cat(kTensorAxis, k), tensor[k]));
    if (layout_.sequence_parallel) plan_.scatter_axes = tensor_;
    zero_axes_.insert(zero_axes_.end(), context_.begin(), context_.end());
    if (batch_.parts > 1) {
      plan_.mesh.time = add_axis_of("micro_batch", batch_.parts);
      batch_axes_.insert(batch_axes_.begin(), plan_.mesh.time);
    }
    return absl::OkStatus();
  }

  int add_axis_of(std::string name, int64_t size) {
    plan_.mesh.axes.push_back({std::move(name), size});
    return static_cast<int>(plan_.mesh.axes.size()) - 1;
  }

  void add_sample_axis(std::string name, int64_t size, int64_t inside) {
    take_samples(add_axis_of(std::move(name), size), inside);
  }

  // `inside`: sample ranks inside of the axis.
  void take_samples(int axis, int64_t inside) {
    (inside < batch_.batch_ranks ? batch_axes_ : plan_.slice_axes).push_back(axis);
    if (inside < layout_.shard_ranks()) zero_axes_.push_back(axis);
  }

  // The graph with batch statistics that the ranks of a batch can share, vocabularies that the tensor axis can split,
  // and sizes that it does not divide padded, where it then splits them.
  PaddedGraph splittable(const Graph& whole) {
    Graph graph = use_split_forms(whole, [&](const Node& node) {
                    return is_here(node) && (keeps_samples(whole, node, batch_.batch_ranks) ||
                                             (masks_positions_ && keeps_positions(whole, node)));
                  }).graph;
    if (tensor_.empty()) return {std::move(graph), {}, {}};
    std::set<const Node*> wanted;
    const std::set<int32_t> tied = tied_origins(graph);
    for (const Node& node : graph.nodes) {
      const bool shares = is_here(node) || (node.origin >= 0 && tied.count(node.origin) > 0);
      if (node.op->split_form != nullptr && shares && divides(graph, node)) wanted.insert(&node);
    }
    SplitForms forms = use_split_forms(graph, [&](const Node& node) { return wanted.count(&node) > 0; });
    PaddedGraph all = pad_dimensions(forms.graph, layout_.tensor, [](const State&, int) { return true; });
    LayoutChooser chooser(all.graph, plan_.mesh, sample_parts());
    choose(chooser, /*warn=*/false);
    auto is_split = [&](ValueId v, int64_t dim) {
      std::vector<int> axes = chooser.sharding(all.now[forms.now[v]]).axes_of(static_cast<int>(dim));
      return std::find_first_of(axes.begin(), axes.end(), tensor_.begin(), tensor_.end()) != axes.end();
    };
    std::set<std::pair<ValueId, int64_t>> split_lookups;  // (indices, rows) of tables that are split
    std::set<ValueId> split_logits;
    for (const Node* node : wanted) {
      Formula f = bound_formula(graph, *node);
      for (size_t k = 0; k < node->inputs.size(); ++k) {
        for (size_t d = 0; d < f.inputs[k].dims.size(); ++d) {
          if (!is_whole(f, f.inputs[k].dims[d]) || !is_split(node->inputs[k], static_cast<int64_t>(d))) continue;
          split_logits.insert(node->inputs[k]);
          split_lookups.insert({node->inputs.back(), graph.type(node->inputs[k]).shape[d]});
        }
      }
    }
    SplitForms chosen = use_split_forms(graph, [&](const Node& node) {
      if (!wanted.count(&node)) return false;
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
    });
    std::map<std::string, ValueId> parameters;
    for (const State& s : graph.states) parameters[s.name] = s.value;
    const std::vector<bool> read = read_here(graph);
    return pad_dimensions(chosen.graph, layout_.tensor, [&](const State& s, int dim) {
      ValueId v = parameters.at(s.name);
      return read[static_cast<size_t>(v)] && is_split(v, dim);
    });
  }

  bool is_here(const Node& node) const {
    return stages_.empty() || node.chunk == 0 || stages_.count((node.chunk - 1) % layout_.pipeline) > 0;
  }

  // Where other stages read what these stages read too: a table that is split here has to be in a form there that can
  // be.
  std::set<int32_t> tied_origins(const Graph& graph) const {
    std::set<int32_t> origins;
    if (stages_.empty()) return origins;
    const std::vector<bool> read = read_here(graph);
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

  // Values that forward nodes of these stages read, or what is made of them.
  std::vector<bool> read_here(const Graph& graph) const {
    std::vector<bool> read(graph.values.size(), stages_.empty());
    for (size_t n = graph.nodes.size(); n-- > 0;) {
      const Node& node = graph.nodes[n];
      if (node.segment > Segment::kForward) continue;
      bool reads = node.chunk > 0 ? is_here(node)
                                  : std::any_of(node.outputs.begin(), node.outputs.end(),
                                                [&](ValueId v) { return read[static_cast<size_t>(v)]; });
      for (ValueId v : node.inputs) {
        if (reads && v != kNoValue) read[static_cast<size_t>(v)] = true;
      }
    }
    return read;
  }

  static bool is_whole(const Formula& f, const std::vector<int>& dim) {
    return dim.size() == 1 && f.factors[dim[0]].role == FactorRole::kWhole;
  }

  // Whether the node keeps whole what the tensor axis could divide, padded perhaps: a factor of one operand (a
  // vocabulary), not one in which operands meet.
  bool divides(const Graph& graph, const Node& node) const {
    if (std::count(node.inputs.begin(), node.inputs.end(), kNoValue) > 0) return false;
    Formula f = bound_formula(graph, node);
    bool any = false;
    for (size_t k = 0; k < f.factors.size(); ++k) {
      if (f.factors[k].role != FactorRole::kWhole) continue;
      int operands = 0;
      for (const FormulaOperand& o : f.inputs) operands += has_factor(o, static_cast<int>(k));
      if (operands > 1) return false;
      any = any || f.factors[k].size >= layout_.tensor;
    }
    return any;
  }

  // Parts of a run's samples, over ranks and one after the other.
  int64_t sample_parts() const { return batch_.batch_ranks * batch_.parts; }

  void choose(LayoutChooser& chooser, bool warn) {
    auto report = [&](std::string_view pin, int64_t size, double share, std::string_view what) {
      if (warn && share <= 0) {
        warnings_.push_back(cat("pin ", pin, ": ", size, ": the model has no ", what, " that ", size,
                                " ranks can divide; the ranks of this axis do the same work"));
      }
    };
    if (expert_ >= 0 && chooser.choose(expert_, AxisRole::kExpert) <= 0 && warn) {
      warnings_.push_back(
          cat("pin expert: ", layout_.expert,
              ": no parameters are stacked by experts that it divides; the axis divides samples alone"));
    }
    double most = 0;
    for (int axis : context_) most = std::max(most, chooser.choose(axis, AxisRole::kSequence));
    if (!context_.empty()) report(kContextAxis, layout_.context, most, "sequence of positions");
    most = 0;
    for (int axis : tensor_) most = std::max(most, chooser.choose(axis, AxisRole::kTensor, axis == tensor_[0]));
    if (!tensor_.empty()) report(kTensorAxis, layout_.tensor, most, "features, heads or channels");
  }

  void place_inputs(const Graph& graph) {
    for (const GraphInput& in : graph.inputs) {
      Sharding s = chooser_->sharding(in.value);
      if (in.kind == InputKind::kData && !s.dims.empty()) {
        auto& axes = s.dims[0][0].axes;
        axes.insert(axes.begin(), batch_axes_.begin(), batch_axes_.end());
      }
      plan_.inputs.push_back(std::move(s));
    }
  }

  absl::Status place_states(const Graph& graph) {
    // Where 16 bits compute, f32 parameters are the optimizer's, and what stage 1 and 2 keep whole is a copy of the
    // step.
    bool masters = recipe_.precision == Precision::kBf16 || recipe_.precision == Precision::kFp16;
    std::map<std::string, Sharding> compute;  // per parameter
    const std::vector<bool> read = read_here(graph);
    for (const State& s : graph.states) {
      if (s.kind == StateKind::kOptimizer || s.kind == StateKind::kAccumulator) continue;
      Sharding c = chooser_->sharding(s.value);
      if (read[static_cast<size_t>(s.value)]) PARTITA_RETURN_IF_ERROR(apply_value_pins(graph, s, c));
      compute[s.name] = std::move(c);
    }
    for (const State& s : graph.states) {
      const Shape& shape = graph.type(s.value).shape;
      bool own = s.kind != StateKind::kOptimizer && s.kind != StateKind::kAccumulator;
      auto at = compute.find(own ? s.name : s.parameter);
      bool fits = at != compute.end() && at->second.dims.size() == shape.size() && same_shape(at->second, shape);
      Sharding c = fits ? at->second : Sharding::replicated(shape);
      bool parts = (s.kind == StateKind::kOptimizer && layout_.zero >= 1) ||
                   (s.kind == StateKind::kAccumulator && layout_.zero >= 2) ||
                   (s.kind == StateKind::kParameter && layout_.zero >= (masters ? 1 : 3)) ||
                   (is_frozen_weight(graph, s) && layout_.zero >= 3);
      Sharding stored = parts ? in_parts(c, shape) : c;
      if (s.kind == StateKind::kAccumulator && (!parts || !fits || stored == c)) {
        plan_.states.push_back(std::nullopt);
      } else if (own) {
        plan_.states.push_back(StateLayout{stored, c, parts ? gather_time() : GatherTime::kPass, on_host(graph, s)});
      } else {
        plan_.states.push_back(StateLayout{stored, stored, GatherTime::kMicroBatch, on_host(graph, s)});
      }
    }
    return absl::OkStatus();
  }

  // Kept for a step of one micro-batch, parameters are gathered in forward, where that overlaps.
  GatherTime gather_time() const {
    if (layout_.zero == 3 && layout_.reshard_after_forward) return GatherTime::kPass;
    return batch_.micro_batches / batch_.slice_ranks * batch_.parts > 1 ? GatherTime::kStep : GatherTime::kMicroBatch;
  }

  static bool is_frozen_weight(const Graph& graph, const State& s) {
    return s.kind == StateKind::kFrozen && is_float(graph.type(s.value).dtype);
  }

  bool on_host(const Graph& graph, const State& s) const {
    OffloadMode mode = recipe_.pin.offload.value_or(OffloadMode::kNone);
    return (s.kind == StateKind::kOptimizer && !s.parameter.empty() && mode != OffloadMode::kNone) ||
           ((s.kind == StateKind::kParameter || is_frozen_weight(graph, s)) && mode == OffloadMode::kAll);
  }

  static bool same_shape(const Sharding& s, const Shape& shape) {
    for (size_t d = 0; d < shape.size(); ++d) {
      int64_t n = 1;
      for (const Piece& p : s.dims[d]) n *= p.size;
      if (n != shape[d]) return false;
    }
    return true;
  }

  // Also split by the ZeRO axes that are free: the first dimension, or piece of one, that they divide together.
  Sharding in_parts(const Sharding& compute, const Shape& shape) const {
    int64_t size = 1;
    for (int64_t n : shape) size *= n;
    if (size < kSmallestStored) return compute;
    std::vector<int> free;
    for (int a : zero_axes_) {
      if (!compute.is_split_by(a)) free.push_back(a);
    }
    for (; !free.empty(); free.erase(free.begin())) {  // all of them, or as many of the innermost as divide
      int64_t n = plan_.mesh.ways(free);
      for (size_t d = 0; d < shape.size(); ++d) {
        for (size_t k = 0; k < compute.dims[d].size(); ++k) {
          if (local_size(compute.dims[d][k], plan_.mesh) % n != 0) continue;
          Sharding s = compute;
          auto& axes = s.dims[d][k].axes;
          axes.insert(axes.end(), free.begin(), free.end());
          return normalized(std::move(s));
        }
      }
    }
    return compute;
  }

  // {"layers.*.up.weight": {out: tensor}}: `in` and `out` are the dimensions that a product sums over and keeps, dimN
  // is the N-th dimension.
  absl::Status apply_value_pins(const Graph& graph, const State& s, Sharding& sharding) {
    const ValuePin* pin = nullptr;
    for (const ValuePin& p : recipe_.pin.values) {
      if (glob_match(p.match, s.name)) pin = &p;
    }
    if (pin == nullptr) return absl::OkStatus();
    const Shape& shape = graph.type(s.value).shape;
    Sharding wanted = Sharding::replicated(shape);
    std::set<std::string> used;
    for (const auto& [factor, axes] : pin->factors) {
      int dim = dimension_named(graph, s.value, factor);
      auto refuse = [&](std::string_view why) {
        return absl::InvalidArgumentError(
            cat("pin ", quote(pin->match), ": ", factor, " of ", quote(s.name), " ", to_string(shape), ": ", why));
      };
      if (dim < 0) return refuse("expected a factor that it has: in or out (of a matrix product), or dim0, dim1, …");
      for (const std::string& name : axes) {
        std::vector<int> named = name == kTensorAxis    ? tensor_
                                 : name == kContextAxis ? context_
                                                        : std::vector<int>{plan_.mesh.find(name)};
        if (named.empty() || named[0] < 0)
          return refuse(cat("the layout has no axis ", quote(name), "; pin it to a size above 1"));
        if (!used.insert(name).second) return refuse(cat("axis ", quote(name), " is there twice"));
        Piece& piece = wanted.dims[static_cast<size_t>(dim)][0];
        piece.axes.insert(piece.axes.end(), named.begin(), named.end());
        int64_t ways = plan_.mesh.ways(piece.axes);
        if (piece.size % ways != 0) return refuse(cat("its size ", piece.size, " does not divide by ", ways));
      }
    }
    sharding = normalized(std::move(wanted));
    return absl::OkStatus();
  }

  static int dimension_named(const Graph& graph, ValueId v, const std::string& factor) {
    int rank = graph.type(v).rank();
    for (int d = 0; d < rank; ++d) {
      if (factor == cat("dim", d)) return d;
    }
    for (const Node& node : graph.nodes) {
      auto at = std::find(node.inputs.begin(), node.inputs.end(), v);
      if (at == node.inputs.end() || node.segment > Segment::kForward) continue;
      if (node.segment == Segment::kPrologue) return dimension_named(graph, node.outputs[0], factor);  // its copy
      Formula f = bound_formula(graph, node);
      const FormulaOperand& o = f.inputs[static_cast<size_t>(at - node.inputs.begin())];
      bool product =
          std::any_of(f.factors.begin(), f.factors.end(), [](const Factor& x) { return x.role == FactorRole::kSum; });
      for (int d = 0; product && d < rank; ++d) {
        if (o.dims[d].empty()) continue;
        bool summed = f.factors[o.dims[d][0]].role == FactorRole::kSum;
        if (factor == (summed ? "in" : "out")) return d;
      }
    }
    return -1;
  }

  const Recipe& recipe_;
  const Layout& layout_;
  const BatchPlan& batch_;
  std::vector<std::string>& warnings_;
  const std::set<int64_t> stages_;
  ShardingPlan plan_;
  const LayoutChooser* chooser_ = nullptr;
  std::vector<int> batch_axes_, zero_axes_, context_, tensor_;
  std::vector<int64_t> context_sizes_;  // of the axes that the context axis is cut into
  bool masks_positions_ = false;        // attention under a causal mask is done as masked attention
  int expert_ = -1;
};

absl::Status check_pins(const Graph& graph, const Recipe& recipe) {
  PARTITA_RETURN_IF_ERROR(refuse_unbuilt(recipe));
  for (const ValuePin& pin : recipe.pin.values) {
    bool any = std::any_of(graph.states.begin(), graph.states.end(), [&](const State& s) {
      return s.kind != StateKind::kOptimizer && glob_match(pin.match, s.name);
    });
    if (!any)
      return absl::InvalidArgumentError(cat("pin ", quote(pin.match), ": no parameter has a name that matches"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<PlannedGraph> plan_shardings_like(const PlannedGraph& training, const Graph& graph, const Recipe& recipe,
                                                 const Layout& layout, const BatchPlan& batch) {
  std::vector<std::string> told_already;
  Planner planner(recipe, layout, batch, told_already);
  PARTITA_ASSIGN_OR_RETURN(PaddedGraph padded, planner.prepare_like(training, graph));
  return planner.place_like(training, std::move(padded));
}

absl::StatusOr<PlannedGraph> plan_shardings(const Graph& graph, const Recipe& recipe, const Layout& layout,
                                            const BatchPlan& batch, std::vector<std::string>& warnings) {
  PARTITA_RETURN_IF_ERROR(check_pins(graph, recipe));
  Planner planner(recipe, layout, batch, warnings);
  PARTITA_ASSIGN_OR_RETURN(PaddedGraph padded, planner.prepare(graph));
  return planner.place(std::move(padded));
}

namespace {

// A planner for each kind of stage, and the kind of each stage.
class StagePlanners {
 public:
  StagePlanners(const Recipe& recipe, const Layout& layout, const BatchPlan& batch,
                std::vector<std::string>& warnings) {
    std::vector<std::set<int64_t>> stages;
    std::vector<size_t> first;  // stage of a kind
    for (size_t s = 0; s < layout.stages.size(); ++s) {
      size_t k = 0;
      while (k < first.size() && layout.stages[s] != layout.stages[first[k]]) ++k;
      if (k == first.size()) first.push_back(s), stages.emplace_back();
      stages[k].insert(static_cast<int64_t>(s));
      kind_.push_back(k);
    }
    batches_.assign(first.size(), batch);
    for (size_t k = 0; k < first.size(); ++k) {
      batches_[k].batch_ranks = layout.stages[first[k]].sample_ranks() / batch.slice_ranks;
      layouts_.push_back(layout.of_stage(static_cast<int64_t>(first[k])));
      planners_.emplace_back(recipe, layouts_[k], batches_[k], warnings, stages[k]);
    }
  }

  // prepare(planner, its first stage, graph): one kind after the other; place(planner, its first stage, graph).
  absl::StatusOr<std::vector<PlannedGraph>> run(
      const Graph& graph,
      const std::function<absl::StatusOr<PaddedGraph>(Planner&, size_t stage, const Graph&)>& prepare,
      const std::function<absl::StatusOr<PlannedGraph>(Planner&, size_t stage, PaddedGraph)>& place) {
    PaddedGraph all{graph, {}, {}};
    for (size_t k = 0; k < planners_.size(); ++k) {
      PARTITA_ASSIGN_OR_RETURN(PaddedGraph next, prepare(planners_[k], first_of(k), all.graph));
      if (all.logical.empty()) all.logical = std::move(next.logical);
      all.graph = std::move(next.graph);
    }
    std::vector<PlannedGraph> kinds;
    for (size_t k = 0; k < planners_.size(); ++k) {
      PARTITA_ASSIGN_OR_RETURN(PlannedGraph planned, place(planners_[k], first_of(k), all));
      kinds.push_back(std::move(planned));
    }
    std::vector<PlannedGraph> stages;
    for (size_t k : kind_) stages.push_back(kinds[k]);
    return stages;
  }

 private:
  size_t first_of(size_t kind) const {
    return static_cast<size_t>(std::find(kind_.begin(), kind_.end(), kind) - kind_.begin());
  }

  std::vector<size_t> kind_;
  std::deque<Layout> layouts_;
  std::deque<BatchPlan> batches_;
  std::deque<Planner> planners_;
};

// The graph with its nodes marked by their stages.
absl::StatusOr<Graph> marked(const Graph& graph, const Layout& layout, const StateOwners& owners) {
  PARTITA_ASSIGN_OR_RETURN(StageAssignment stages,
                           assign_stages(graph, layout.pipeline * layout.interleave, owners, layout.cut_names));
  Graph out = graph;
  for (size_t n = 0; n < out.nodes.size(); ++n) out.nodes[n].chunk = std::max(stages.node[n], -1) + 1;
  return out;
}

absl::StatusOr<PlannedStages> joined(std::vector<PlannedGraph> alike, const Layout& layout) {
  PlannedStages out;
  const Graph& graph = alike[0].graph;
  PARTITA_ASSIGN_OR_RETURN(StageAssignment stages, assign_stages(graph, layout.pipeline * layout.interleave, {}));
  std::vector<ShardingPlan> plans;
  for (const PlannedGraph& p : alike) plans.push_back(p.plan);
  plans = on_one_mesh(std::move(plans));
  for (const ShardingPlan& p : plans) {
    if (p.slice_axes != plans[0].slice_axes)
      return absl::InvalidArgumentError(
          "pin stages: a step has several runs of the graph, and the stages do not share them out over the same ranks; "
          "use stages with equally many data ranks, a batch of one run, or an export with a symbolic batch dimension");
  }
  PARTITA_ASSIGN_OR_RETURN(JoinedPlan whole, join_plans(graph, stages, plans));
  out.joined = {std::move(whole.graph), std::move(whole.plan)};
  out.alike = std::move(alike);
  return out;
}

}  // namespace

absl::StatusOr<PlannedStages> plan_stages(const Graph& graph, const Recipe& recipe, const Layout& layout,
                                          const BatchPlan& batch, std::vector<std::string>& warnings) {
  PARTITA_RETURN_IF_ERROR(check_pins(graph, recipe));
  PARTITA_ASSIGN_OR_RETURN(Graph marks, marked(graph, layout, {}));
  StagePlanners planners(recipe, layout, batch, warnings);
  PARTITA_ASSIGN_OR_RETURN(
      std::vector<PlannedGraph> alike,
      planners.run(
          marks, [](Planner& planner, size_t, const Graph& g) { return planner.prepare(g); },
          [](Planner& planner, size_t, PaddedGraph padded) { return planner.place(std::move(padded)); }));
  return joined(std::move(alike), layout);
}

absl::StatusOr<PlannedStages> plan_stages_like(const PlannedStages& training, const Graph& graph, const Recipe& recipe,
                                               const Layout& layout, const BatchPlan& batch,
                                               const StateOwners& owners) {
  std::vector<std::string> told_already;
  PARTITA_ASSIGN_OR_RETURN(Graph marks, marked(graph, layout, owners));
  StagePlanners planners(recipe, layout, batch, told_already);
  PARTITA_ASSIGN_OR_RETURN(
      std::vector<PlannedGraph> alike,
      planners.run(
          marks, [&](Planner& planner, size_t s, const Graph& g) { return planner.prepare_like(training.alike[s], g); },
          [&](Planner& planner, size_t s, PaddedGraph padded) {
            return planner.place_like(training.alike[s], std::move(padded));
          }));
  return joined(std::move(alike), layout);
}

}  // namespace partita
