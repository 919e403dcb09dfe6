#include "partitioner/shard/place_tensors.h"

#include <algorithm>
#include <map>
#include <set>

#include "base/cat.h"
#include "base/quote.h"
#include "base/status.h"
#include "partitioner/shard/value_pins.h"

namespace partita {
namespace {

constexpr int64_t kSmallestStored = 256;  // elements: smaller parameters are not stored in parts

class Placement {
 public:
  Placement(SplittableGraph graph, const Recipe& recipe, const Layout& layout, const BatchPlan& batch,
            const StageScope& scope)
      : padded_(std::move(graph.padded)),
        axes_(std::move(graph.axes)),
        recipe_(recipe),
        layout_(layout),
        batch_(batch),
        scope_(scope),
        far_(far_axes(axes_.mesh, layout)),
        chooser_(padded_.graph, axes_.mesh, axes_.sample_parts()) {}

  absl::StatusOr<PlannedGraph> run(std::vector<std::string>& warnings) && {
    warn(choose_splits(axes_, batch_, padded_.graph, chooser_), warnings);
    PARTITA_RETURN_IF_ERROR(place_inputs());
    PARTITA_RETURN_IF_ERROR(place_states());
    plan_.slice_axes = axes_.slice;
    if (batch_.fixed_parts > 0)
      plan_.block_axes = axes_.tensor;
    else if (layout_.sequence_parallel)
      plan_.scatter_axes = axes_.tensor;
    plan_.logical = std::move(padded_.logical);
    plan_.micro_batches = batch_.micro_batches / batch_.slice_ranks * batch_.parts;
    plan_.samples_per_step = batch_.graph_batch * batch_.micro_batches;
    plan_.mesh = std::move(axes_.mesh);
    return PlannedGraph{std::move(padded_.graph), std::move(plan_), chooser_.factors()};
  }

 private:
  const Graph& graph() const { return padded_.graph; }

  void warn(const AxisShares& shares, std::vector<std::string>& warnings) const {
    if (axes_.expert >= 0 && shares.expert <= 0)
      warnings.push_back(cat("pin expert: ", layout_.expert,
                             ": no parameters are stacked by experts that it divides; the axis divides samples alone"));
    auto report = [&](std::string_view pin, int64_t size, double share, std::string_view what) {
      if (share > 0) return;
      warnings.push_back(cat("pin ", pin, ": ", size, ": the model has no ", what, " that ", size,
                             " ranks can divide; the ranks of this axis do the same work"));
    };
    if (!axes_.context.empty()) report(kContextAxis, layout_.context, shares.context, "sequence of positions");
    if (!axes_.tensor.empty()) report(kTensorAxis, layout_.tensor, shares.tensor, "features, heads or channels");
  }

  absl::Status place_inputs() {
    for (const GraphInput& in : graph().inputs) {
      Sharding s = chooser_.sharding(in.value);
      if (in.kind == InputKind::kData && !s.dims.empty()) {
        Piece& samples = s.dims[0][0];
        samples.axes.insert(samples.axes.begin(), axes_.batch.begin(), axes_.batch.end());
        if (const int64_t ways = axes_.mesh.ways(samples.axes); samples.size % ways != 0) {
          std::string axes;
          for (int a : samples.axes) append(axes, axes.empty() ? "" : " and ", axes_.mesh.axes[a].name);
          return absl::InvalidArgumentError(cat("input ", quote(in.name), ": the axes ", axes, " would divide its ",
                                                samples.size, " samples in ", ways,
                                                " parts; use fewer ranks along one of them"));
        }
      }
      plan_.inputs.push_back(std::move(s));
    }
    return absl::OkStatus();
  }

  absl::Status place_states() {
    std::map<std::string, Sharding> compute;  // per parameter
    const std::vector<bool> read = scope_.read(graph());
    for (const State& s : graph().states) {
      if (s.kind == StateKind::kOptimizer || s.kind == StateKind::kAccumulator) continue;
      Sharding c = chooser_.sharding(s.value);
      if (read[static_cast<size_t>(s.value)])
        PARTITA_RETURN_IF_ERROR(apply_value_pins(graph(), s, recipe_.pin, axes_, c));
      compute[s.name] = std::move(c);
    }
    for (const State& s : graph().states) {
      const Shape& shape = graph().type(s.value).shape;
      bool own = s.kind != StateKind::kOptimizer && s.kind != StateKind::kAccumulator;
      auto at = compute.find(own ? s.name : s.parameter);
      bool fits = at != compute.end() && at->second.dims.size() == shape.size() && same_shape(at->second, shape);
      Sharding c = fits ? at->second : Sharding::replicated(shape);
      // Parameters are the optimizer's: what stages 1 and 2 keep whole is a copy of the step, in the precision that
      // computes.
      bool parts = ((s.kind == StateKind::kOptimizer || s.kind == StateKind::kParameter) && layout_.zero >= 1) ||
                   (s.kind == StateKind::kAccumulator && layout_.zero >= 2) ||
                   (is_frozen_weight(s) && layout_.zero >= 3);
      Sharding stored = parts ? in_parts(c, shape) : c;
      // In a fixed order, what ranks have of a micro-batch meets before it is added to others, or all of it after.
      const bool meets_first = batch_.fixed_parts > 0 && layout_.zero >= 2;
      if (s.kind == StateKind::kAccumulator && (!parts || !fits || stored == c) && !meets_first) {
        plan_.states.push_back(std::nullopt);
      } else if (own) {
        plan_.states.push_back(StateLayout{stored, c, parts ? gather_time() : GatherTime::kPass, on_host(s)});
      } else {
        plan_.states.push_back(StateLayout{stored, stored, GatherTime::kMicroBatch, on_host(s)});
      }
    }
    if (layout_.offload_fraction < 1) take_from_host();
    return absl::OkStatus();
  }

  // The host keeps the layout's fraction of the optimizer's states. Of the parameters that are used first it has that
  // fraction, however many they are: so it has about as much of each stage's, wherever stages begin.
  void take_from_host() {
    std::map<std::string, int64_t> bytes;  // of a parameter's states that are there, on a rank
    for (size_t k = 0; k < graph().states.size(); ++k) {
      const State& s = graph().states[k];
      if (!is_hosted(k)) continue;
      bytes[s.parameter] += byte_size({graph().type(s.value).dtype, local_shape(plan_.states[k]->stored, axes_.mesh)});
    }
    std::set<std::string> device;
    double all = 0, host = 0;
    for (const std::string& parameter : parameters_by_use()) {
      const double own = static_cast<double>(bytes[parameter]);
      all += own;
      if (host < layout_.offload_fraction * all)
        host += own;
      else
        device.insert(parameter);
    }
    for (size_t k = 0; k < graph().states.size(); ++k) {
      if (is_hosted(k) && device.contains(graph().states[k].parameter)) plan_.states[k]->host = false;
    }
  }

  bool is_hosted(size_t state) const { return plan_.states[state] && plan_.states[state]->host; }

  // Names, each where the first node reads it; those that none reads come first.
  std::vector<std::string> parameters_by_use() const {
    std::vector<size_t> first(graph().values.size(), 0);
    for (size_t n = graph().nodes.size(); n-- > 0;) {
      for (ValueId v : graph().nodes[n].inputs) {
        if (v != kNoValue) first[static_cast<size_t>(v)] = n;
      }
    }
    std::vector<const State*> parameters;
    for (const State& s : graph().states) {
      if (s.kind == StateKind::kParameter) parameters.push_back(&s);
    }
    std::ranges::stable_sort(parameters, {}, [&](const State* s) { return first[static_cast<size_t>(s->value)]; });
    std::vector<std::string> names;
    for (const State* s : parameters) names.push_back(s->name);
    return names;
  }

  // Kept for a step of one micro-batch, parameters are gathered in forward, where that overlaps.
  GatherTime gather_time() const {
    if (layout_.zero == 3 && layout_.reshard_after_forward) return GatherTime::kPass;
    return batch_.micro_batches / batch_.slice_ranks * batch_.parts > 1 ? GatherTime::kStep : GatherTime::kMicroBatch;
  }

  bool is_frozen_weight(const State& s) const {
    return s.kind == StateKind::kFrozen && is_float(graph().type(s.value).dtype);
  }

  bool on_host(const State& s) const {
    const OffloadMode mode = layout_.offload;
    return (s.kind == StateKind::kOptimizer && !s.parameter.empty() && mode != OffloadMode::kNone) ||
           ((s.kind == StateKind::kParameter || is_frozen_weight(s)) && mode == OffloadMode::kAll);
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
    for (int a : axes_.zero) {
      if (!compute.is_split_by(a)) free.push_back(a);
    }
    for (; !free.empty(); free.erase(free.begin())) {  // all of them, or as many of the innermost as divide
      int64_t n = axes_.mesh.ways(free);
      // Scattered by the first axis first: in levels that is the nearest ranks', which leaves the others a part.
      std::vector<int> order = free;
      std::stable_partition(order.begin(), order.end(),
                            [&](int a) { return std::count(far_.begin(), far_.end(), a) == 0; });
      for (size_t d = 0; d < shape.size(); ++d) {
        for (size_t k = 0; k < compute.dims[d].size(); ++k) {
          // Sums over elements in a fixed order are of as many blocks as there are parts.
          if (local_size(compute.dims[d][k], axes_.mesh) % std::max(n, batch_.fixed_parts) != 0) continue;
          Sharding s = compute;
          auto& axes = s.dims[d][k].axes;
          axes.insert(axes.end(), order.begin(), order.end());
          return normalized(std::move(s));
        }
      }
    }
    return compute;
  }

  PaddedGraph padded_;
  MeshAxes axes_;
  const Recipe& recipe_;
  const Layout& layout_;
  const BatchPlan& batch_;
  const StageScope& scope_;
  const std::vector<int> far_;
  LayoutChooser chooser_;
  ShardingPlan plan_;
};

// An average of weights is stored as an optimizer's state, and read as its parameter is.
void read_as_parameter(const PlannedGraph& training, const std::string& parameter, StateLayout& layout) {
  for (size_t k = 0; k < training.graph.states.size(); ++k) {
    if (training.graph.states[k].name != parameter) continue;
    layout.compute = training.plan.states[k]->compute;
    layout.gather = GatherTime::kPass;
  }
}

}  // namespace

absl::StatusOr<PlannedGraph> place_tensors(SplittableGraph graph, const Recipe& recipe, const Layout& layout,
                                           const BatchPlan& batch, const StageScope& scope,
                                           std::vector<std::string>& warnings) {
  return Placement(std::move(graph), recipe, layout, batch, scope).run(warnings);
}

absl::StatusOr<PlannedGraph> place_tensors_like(const PlannedGraph& training, SplittableGraph graph,
                                                const Recipe& recipe, const Layout& layout, const BatchPlan& batch,
                                                const StageScope& scope) {
  std::vector<std::string> told_already;
  PARTITA_ASSIGN_OR_RETURN(PlannedGraph planned,
                           place_tensors(std::move(graph), recipe, layout, batch, scope, told_already));
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
      if (mine.kind == StateKind::kParameter && other.kind == StateKind::kOptimizer)
        read_as_parameter(training, other.parameter, *planned.plan.states[n]);
    }
  }
  return planned;
}

}  // namespace partita
