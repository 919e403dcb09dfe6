#include "partitioner/parallel_plan.h"

#include <algorithm>
#include <map>
#include <set>

#include "base/cat.h"
#include "base/quote.h"
#include "base/status.h"
#include "partitioner/pad_dimensions.h"
#include "partitioner/split_forms.h"
#include "partitioner/tensor_layout.h"

namespace partita {

absl::StatusOr<int64_t> samples_of_run(const Graph& graph) {
  int64_t batch = -1;
  std::string first;
  for (const GraphInput& in : graph.inputs) {
    const Shape& shape = graph.type(in.value).shape;
    if (in.kind != InputKind::kData || shape.empty()) continue;
    if (batch >= 0 && shape[0] != batch) {
      return absl::InvalidArgumentError(cat("inputs ", quote(first), " and ", quote(in.name), " have ", batch, " and ",
                                            shape[0], " samples (dimension 0); expected the same number"));
    }
    batch = shape[0];
    first = in.name;
  }
  if (batch < 1) return absl::InvalidArgumentError("the model has no data input with a batch dimension");
  return batch;
}

namespace {

bool has_running_statistics(const Graph& graph) {
  return std::any_of(graph.states.begin(), graph.states.end(),
                     [](const State& s) { return s.kind == StateKind::kRunning && s.next != kNoValue; });
}

}  // namespace

absl::StatusOr<BatchPlan> plan_batch(const Graph& forward, const Recipe& recipe, int64_t ranks) {
  BatchPlan plan;
  PARTITA_ASSIGN_OR_RETURN(plan.graph_batch, samples_of_run(forward));
  int64_t global = recipe.batch.global.value_or(plan.graph_batch);
  if (!recipe.batch.global && recipe.batch.accumulation) {
    int64_t micro = std::max<int64_t>(plan.graph_batch / ranks, 1);
    global = micro * *recipe.batch.accumulation * ranks;
  }
  if (global % plan.graph_batch != 0) {
    return absl::InvalidArgumentError(
        cat("batch.global is ", global, " and the graph takes ", plan.graph_batch,
            " samples at a time: expected a multiple of ", plan.graph_batch,
            "; change batch.global, or export the model with a symbolic batch dimension and bind it"));
  }
  plan.micro_batches = global / plan.graph_batch;
  // PipeDream's micro-batches are optimizer steps, one after the other.
  const bool steps = recipe.pin.schedule == PipelineSchedule::kPipedream;
  bool ordered = steps || (has_running_statistics(forward) && recipe.semantics.batch_norm == BatchNormGroup::kGlobal);
  const int64_t experts = recipe.pin.axis("expert").value_or(1);
  for (int64_t slices = std::min(ranks, plan.micro_batches); slices >= 1; --slices) {
    if (plan.micro_batches % slices != 0 || ranks % slices != 0 || plan.graph_batch % (ranks / slices) != 0 ||
        ranks / slices % experts != 0 || (ordered && slices > 1))
      continue;
    plan.slice_ranks = slices;
    plan.batch_ranks = ranks / slices;
    std::optional<int64_t> micro = recipe.pin.micro_batch ? recipe.pin.micro_batch : recipe.batch.micro;
    int64_t own = plan.graph_batch / plan.batch_ranks;
    if (micro && own % *micro != 0) {
      return absl::InvalidArgumentError(cat("pin micro_batch: ", *micro, ": a data-parallel rank has ", own,
                                            " samples of each run of the graph; expected a divisor of ", own));
    }
    plan.parts = micro ? own / *micro : 1;
    if (steps && plan.parts > 1) {
      return absl::InvalidArgumentError(
          cat("pin schedule: pipedream: a micro-batch is an optimizer step and so a whole run of the graph, ", own,
              " samples a rank; expected micro_batch ", own, " or none, found ", *micro,
              "; export the model with a symbolic batch dimension, or bind it to ", *micro * plan.batch_ranks));
    }
    return plan;
  }
  return absl::InvalidArgumentError(
      cat("cannot divide a global batch of ", global, " (", plan.micro_batches, " runs of a graph with ",
          plan.graph_batch, " samples) over ", ranks, " data-parallel ranks",
          experts > 1 ? cat(", of which ", experts, " (the expert axis) share a run") : "",
          "; use a number of ranks that divides it"));
}

namespace {

constexpr const char* kTensorAxis = "tensor";
constexpr double kLeastSaving = 0.999;    // of the cost, for an axis to be cut in two
constexpr int64_t kDevicesOfANode = 8;    // where no cluster says otherwise
constexpr int64_t kChunks = 2;            // of an interleaved stage
constexpr int64_t kSmallestStored = 256;  // elements: smaller parameters are not stored in parts

// What an asynchronous pipeline's stages, each at its own micro-batch, cannot do together.
absl::Status refuse_with_pipedream(const Recipe& recipe) {
  auto refuse = [](std::string_view what, std::string_view instead) {
    return absl::InvalidArgumentError(
        cat("pin schedule: pipedream updates each stage after each micro-batch, which goes without ", what, "; ",
            instead, ", or use schedule: 1f1b"));
  };
  if (recipe.clip_grad_norm)
    return refuse("clip_grad_norm: the norm over all stages is not known then", "clip_grad_value clips by element");
  if (recipe.precision == Precision::kFp16)
    return refuse("precision: fp16: whether a step overflows is not known on all stages then", "use precision: bf16");
  if (recipe.compress != Compression::kNone) return refuse("compress", "leave it out");
  if (recipe.pin.offload.value_or(OffloadMode::kNone) != OffloadMode::kNone)
    return refuse("offload: weights are stashed on the device", "leave it out");
  return absl::OkStatus();
}

absl::Status refuse_unbuilt(const Recipe& recipe) {
  if (recipe.compress > Compression::kBf16 && recipe.precision == Precision::kFp16)
    return absl::InvalidArgumentError(
        cat("compress: ", enum_name(recipe.compress),
            ": error feedback carries gradients from step to step, and the loss scale of precision: fp16 changes "
            "between them; use precision: bf16, or compress: bf16"));
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<ParallelLayout> pinned_layout(const Recipe& recipe, std::optional<int64_t> ranks,
                                             std::vector<std::string>& warnings) {
  const PinRecipe& pin = recipe.pin;
  ParallelLayout l;
  l.tensor = pin.axis("tensor").value_or(1);
  l.context = pin.axis("context").value_or(1);
  l.expert = pin.axis("expert").value_or(1);
  l.schedule = pin.schedule.value_or(PipelineSchedule::k1f1b);
  l.pipeline = pin.axis("pipeline").value_or(1);
  int64_t inner = l.tensor * l.context * l.expert;
  if (ranks && pin.schedule && !pin.axis("pipeline"))
    l.pipeline = std::max<int64_t>(1, *ranks / (inner * pin.axis("data").value_or(1)));
  inner *= l.pipeline;
  if (pin.axis("data")) {
    l.data = *pin.axis("data");
    if (ranks && *ranks != l.data * inner) {
      return absl::InvalidArgumentError(cat("the pins ask for ", l.data * inner, " ranks (data ", l.data,
                                            " x pipeline ", l.pipeline, " x expert ", l.expert, " x context ",
                                            l.context, " x tensor ", l.tensor, ") and --ranks says ", *ranks,
                                            "; expected the same number"));
    }
  } else if (ranks) {
    if (*ranks % inner != 0) {
      return absl::InvalidArgumentError(cat("the pins need a multiple of ", inner, " ranks (pipeline ", l.pipeline,
                                            " x expert ", l.expert, " x context ", l.context, " x tensor ", l.tensor,
                                            "), and --ranks says ", *ranks));
    }
    l.data = *ranks / inner;
  }
  l.zero = pin.zero.value_or(0);
  l.reshard_after_forward = pin.reshard_after_forward.value_or(true);
  if (l.schedule == PipelineSchedule::kInterleaved) l.chunks = pin.interleave.value_or(kChunks);
  if (l.schedule != PipelineSchedule::kInterleaved && pin.interleave.value_or(1) > 1)
    return absl::InvalidArgumentError(
        cat("pin interleave: ", *pin.interleave, " chunks per stage need schedule: interleaved"));
  if (l.schedule == PipelineSchedule::kPipedream) {
    PARTITA_RETURN_IF_ERROR(refuse_with_pipedream(recipe));
    if (l.pipeline == 1)
      return absl::InvalidArgumentError(
          "pin schedule: pipedream: expected a pipeline of at least 2 stages, found 1; on one stage it is plain "
          "training with a batch of one micro-batch");
  }
  l.cuts = pin.cuts;
  if (const int64_t parts = l.pipeline * l.chunks; !l.cuts.empty() && static_cast<int64_t>(l.cuts.size()) != parts - 1)
    return absl::InvalidArgumentError(cat("pin cuts: ", l.cuts.size(), " cuts make ", l.cuts.size() + 1,
                                          " parts, and there are ", l.pipeline, " stages of ", l.chunks,
                                          " chunks; expected ", parts - 1, " cuts"));
  l.scatter_sums = pin.sequence_parallel.value_or(false) && l.tensor > 1;
  int64_t all = l.sample_ranks(), group = pin.zero_group.value_or(all);
  if (group == PinRecipe::kNode) {
    group = all > kDevicesOfANode ? kDevicesOfANode : all % 2 == 0 ? std::max<int64_t>(all / 2, 1) : all;
    if (l.zero > 0 && group < all) {
      warnings.push_back(cat("zero_group: node: taken as groups of ", group, " of the ", all,
                             " data-parallel ranks; pin zero_group to a number to choose another"));
    }
  }
  if (group < 1 || all % group != 0) {
    return absl::InvalidArgumentError(
        cat("pin zero_group: ", group, " does not divide the ", all, " data-parallel ranks"));
  }
  l.zero_group = group;
  return l;
}

namespace {

class Planner {
 public:
  Planner(const Recipe& recipe, const ParallelLayout& layout, const BatchPlan& batch,
          std::vector<std::string>& warnings)
      : recipe_(recipe), layout_(layout), batch_(batch), warnings_(warnings) {}

  absl::StatusOr<PlannedGraph> run(const Graph& graph) {
    PARTITA_RETURN_IF_ERROR(make_mesh({layout_.tensor}));
    PaddedGraph best = splittable(graph);
    if (layout_.tensor > 1) PARTITA_RETURN_IF_ERROR(cut_tensor_axis(graph, best));
    return place(std::move(best));
  }

  // Inputs and states as in `training`, and padded alike.
  absl::StatusOr<PlannedGraph> run_like(const PlannedGraph& training, const Graph& graph) {
    std::vector<int64_t> tensor;
    for (const MeshAxis& axis : training.plan.mesh.axes) {
      if (axis.name.starts_with(kTensorAxis)) tensor.push_back(axis.size);
    }
    PARTITA_RETURN_IF_ERROR(make_mesh(tensor));
    PARTITA_ASSIGN_OR_RETURN(PlannedGraph planned, place(splittable(graph)));
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
      LayoutChooser chooser(padded, plan_.mesh, batch_.batch_ranks);
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

  absl::StatusOr<PlannedGraph> place(PaddedGraph padded) {
    LayoutChooser chooser(padded.graph, plan_.mesh, batch_.batch_ranks);
    choose(chooser, /*warn=*/true);
    chooser_ = &chooser;
    place_inputs(padded.graph);
    PARTITA_RETURN_IF_ERROR(place_states(padded.graph));
    plan_.logical = std::move(padded.logical);
    plan_.micro_batches = batch_.micro_batches / batch_.slice_ranks * batch_.parts;
    plan_.samples_per_step = batch_.graph_batch * batch_.micro_batches;
    return PlannedGraph{std::move(padded.graph), std::move(plan_)};
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
    for (int64_t cut : {batch_.batch_ranks, layout_.zero > 0 ? layout_.zero_group : int64_t{1}}) {
      if (cut > layout_.expert) cuts.insert(cut);
    }
    std::vector<int64_t> sizes;  // innermost first
    for (auto at = cuts.begin(); std::next(at) != cuts.end(); ++at) {
      if (*std::next(at) % *at != 0) {
        return absl::InvalidArgumentError(
            cat("pin zero_group: groups of ", layout_.zero_group, " ranks do not fit the ", batch_.batch_ranks,
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
    if (layout_.context > 1) context_ = add_axis_of("context", layout_.context);
    for (size_t k = 0; layout_.tensor > 1 && k < tensor.size(); ++k)
      tensor_.push_back(add_axis_of(tensor.size() == 1 ? kTensorAxis : cat(kTensorAxis, k), tensor[k]));
    if (layout_.scatter_sums) plan_.scatter_axes = tensor_;
    if (context_ >= 0) zero_axes_.push_back(context_);
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
    if (inside < layout_.zero_group) zero_axes_.push_back(axis);
  }

  // The graph with batch statistics that the ranks of a batch can share, vocabularies that the tensor axis can split,
  // and sizes that it does not divide padded, where it then splits them.
  PaddedGraph splittable(const Graph& whole) {
    Graph graph =
        use_split_forms(whole, [&](const Node& node) { return keeps_samples(whole, node, batch_.batch_ranks); }).graph;
    if (tensor_.empty()) return {std::move(graph), {}, {}};
    std::set<const Node*> wanted;
    for (const Node& node : graph.nodes) {
      if (node.op->split_form != nullptr && divides(graph, node)) wanted.insert(&node);
    }
    SplitForms forms = use_split_forms(graph, [&](const Node& node) { return wanted.count(&node) > 0; });
    PaddedGraph all = pad_dimensions(forms.graph, layout_.tensor, [](const State&, int) { return true; });
    LayoutChooser chooser(all.graph, plan_.mesh, batch_.batch_ranks);
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
    return pad_dimensions(chosen.graph, layout_.tensor,
                          [&](const State& s, int dim) { return is_split(parameters.at(s.name), dim); });
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
    if (context_ >= 0)
      report("context", layout_.context, chooser.choose(context_, AxisRole::kSequence), "sequence of positions");
    double most = 0;
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
    for (const State& s : graph.states) {
      if (s.kind == StateKind::kOptimizer || s.kind == StateKind::kAccumulator) continue;
      Sharding c = chooser_->sharding(s.value);
      PARTITA_RETURN_IF_ERROR(apply_value_pins(graph, s, c));
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
                   (s.kind == StateKind::kParameter && layout_.zero >= (masters ? 1 : 3));
      Sharding stored = parts ? in_parts(c, shape) : c;
      if (s.kind == StateKind::kAccumulator && (!parts || !fits || stored == c)) {
        plan_.states.push_back(std::nullopt);
      } else if (own) {
        plan_.states.push_back(StateLayout{stored, c, parts ? gather_time() : GatherTime::kPass, on_host(s)});
      } else {
        plan_.states.push_back(StateLayout{stored, stored, GatherTime::kMicroBatch, on_host(s)});
      }
    }
    return absl::OkStatus();
  }

  // Kept for a step of one micro-batch, parameters are gathered in forward, where that overlaps.
  GatherTime gather_time() const {
    if (layout_.zero == 3 && layout_.reshard_after_forward) return GatherTime::kPass;
    return batch_.micro_batches / batch_.slice_ranks * batch_.parts > 1 ? GatherTime::kStep : GatherTime::kMicroBatch;
  }

  bool on_host(const State& s) const {
    OffloadMode mode = recipe_.pin.offload.value_or(OffloadMode::kNone);
    return (s.kind == StateKind::kOptimizer && !s.parameter.empty() && mode != OffloadMode::kNone) ||
           (s.kind == StateKind::kParameter && mode == OffloadMode::kAll);
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
        std::vector<int> named = name == kTensorAxis ? tensor_ : std::vector<int>{plan_.mesh.find(name)};
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
  const ParallelLayout& layout_;
  const BatchPlan& batch_;
  std::vector<std::string>& warnings_;
  ShardingPlan plan_;
  const LayoutChooser* chooser_ = nullptr;
  std::vector<int> batch_axes_, zero_axes_, tensor_;
  int expert_ = -1, context_ = -1;
};

}  // namespace

absl::StatusOr<PlannedGraph> plan_shardings_like(const PlannedGraph& training, const Graph& graph, const Recipe& recipe,
                                                 const ParallelLayout& layout, const BatchPlan& batch) {
  std::vector<std::string> told_already;
  return Planner(recipe, layout, batch, told_already).run_like(training, graph);
}

absl::StatusOr<PlannedGraph> plan_shardings(const Graph& graph, const Recipe& recipe, const ParallelLayout& layout,
                                            const BatchPlan& batch, std::vector<std::string>& warnings) {
  PARTITA_RETURN_IF_ERROR(refuse_unbuilt(recipe));
  for (const ValuePin& pin : recipe.pin.values) {
    bool any = std::any_of(graph.states.begin(), graph.states.end(), [&](const State& s) {
      return s.kind != StateKind::kOptimizer && glob_match(pin.match, s.name);
    });
    if (!any)
      return absl::InvalidArgumentError(cat("pin ", quote(pin.match), ": no parameter has a name that matches"));
  }
  return Planner(recipe, layout, batch, warnings).run(graph);
}

}  // namespace partita
