// Nodes are visited in order; each value is kept with how it lies (Sharding) in one or more variants. For a node: its
// formula is cut to its operands' pieces, a split of its factors is chosen, operands are resharded to it, and the op is
// emitted on local shapes. What it leaves (a reduced factor that is split = a partial sum) is the output's sharding. A
// partial operand passes through an op that is linear in it; otherwise it is reduced first.
//
// A node whose operands are all whole (masks, position tables, random indices, gradients' seeds) is put off until
// somebody asks for its value, and then made directly at the sharding asked for: nothing is computed at full size only
// to be sliced.
#include "partitioner/localize/localize.h"

#include <algorithm>

#include "partitioner/localize/localizer.h"

namespace partita {

Localizer::Localizer(const Graph& graph, const ShardingPlan& plan)
    : graph_(graph),
      plan_(plan),
      mesh_(plan.mesh),
      resharder_(b_, mesh_),
      uses_(uses(graph)),
      splitter_(graph, plan, uses_),
      variants_(graph.values.size()),
      put_off_(graph.values.size(), 0) {}

absl::StatusOr<LocalProgram> Localizer::run() {
  start();
  walk();
  if (refused_.ok()) finish_states();
  if (!refused_.ok()) return refused_;
  return finish();
}

absl::StatusOr<std::vector<Sharding>> Localizer::shardings() {
  start();
  walk();
  if (!refused_.ok()) return refused_;
  std::vector<Sharding> all;
  for (size_t v = 0; v < variants_.size(); ++v) {
    all.push_back(variants_[v].empty() ? Sharding::replicated(graph_.values[v].type.shape) : variants_[v][0].sharding);
    all.back().partial.clear();
  }
  return all;
}

// To the first refusal: what stands in for a value then need not lie as readers expect.
void Localizer::walk() {
  for (size_t n = 0; n < graph_.nodes.size() && refused_.ok(); ++n) visit(static_cast<NodeId>(n));
}

void Localizer::start() {
  b_.take_names(graph_);
  result_.mesh = mesh_;
  result_.micro_batches = plan_.micro_batches;
  result_.samples_per_step = plan_.samples_per_step;
  for (size_t k = 0; k < graph_.inputs.size(); ++k) {
    const GraphInput& in = graph_.inputs[k];
    if (in.kind == InputKind::kMicroBatch) {
      micro_batch_ = k;
      continue;
    }
    place_input(in, plan_.inputs[k]);
    input_of_[in.value] = k;
  }
  for (size_t k = 0; k < graph_.states.size(); ++k) {
    if (plan_.states[k]) {
      declare_state(k, plan_.states[k]->stored);
      layout_of_[graph_.states[k].value] = &*plan_.states[k];
    } else {
      free_state_of_[graph_.states[k].value] = k;
    }
  }
  for (const Constant& c : graph_.constants) {
    variants_[c.value].push_back({b_.constant(c.literal, graph_.values[c.value].name),
                                  Sharding::replicated(c.literal.type.shape), Segment::kPrologue});
  }
  if (micro_batch_ || mesh_.time >= 0) place_micro_batch();
}

void Localizer::place_input(const GraphInput& in, const Sharding& sharding) {
  Sharding s = normalized(sharding);
  Shape logical = graph_.type(in.value).shape;
  ValueId local = b_.input(in.name, {graph_.type(in.value).dtype, local_shape(s, mesh_)}, in.kind);
  variants_[in.value].push_back({local, s, Segment::kPrologue});
  PlacedTensor placed{logical, s};
  if (!plan_.slice_axes.empty() && !logical.empty()) {  // ranks along these axes hold whole different micro-batches:
                                                        // blocks of a longer first dimension
    int64_t slices = 1;
    for (int a : plan_.slice_axes) slices *= mesh_.axes[a].size;
    placed.logical[0] *= slices;
    placed.sharding.dims[0].insert(placed.sharding.dims[0].begin(), Piece{slices, plan_.slice_axes});
  }
  placed_inputs_.push_back(std::move(placed));
}

// A rank's micro-batch m is part m % parts of run m / parts of the graph, and that run is number (m / parts) * slices
// + coordinate of the step.
void Localizer::place_micro_batch() {
  const TensorType type{DType::kI64, {}};
  ValueId m = b_.input(micro_batch_ ? graph_.inputs[*micro_batch_].name : "micro_batch", type, InputKind::kMicroBatch);
  placed_inputs_.push_back({{}, Sharding{}});
  if (mesh_.time >= 0) {
    ValueId parts = b_.scalar(DType::kI64, static_cast<double>(mesh_.axes[mesh_.time].size));
    resharder_.set_coordinate(mesh_.time, b_.emit("mod", {m, parts}));
    m = b_.div(m, parts);
  }
  if (!micro_batch_) return;
  for (int a : plan_.slice_axes) {
    m = b_.add(b_.mul(m, b_.scalar(DType::kI64, static_cast<double>(mesh_.axes[a].size))), resharder_.coordinate(a));
  }
  variants_[graph_.inputs[*micro_batch_].value].push_back({m, Sharding{}, Segment::kPrologue});
}

void Localizer::declare_state(size_t k, const Sharding& sharding) {
  State s = graph_.states[k];
  Sharding stored = normalized(sharding);
  TensorType type{graph_.type(s.value).dtype, local_shape(stored, mesh_)};
  ValueId old = s.value;
  s.next = kNoValue;
  ValueId local = b_.state(std::move(s), std::move(type));
  variants_[old].push_back({local, stored, Segment::kPrologue});
  state_order_.push_back({k, stored});
}

// A state without a storage of its own lies as the operand it is first used with.
void Localizer::resolve_free_states(const Node& node) {
  for (ValueId v : node.inputs) {
    auto at = v == kNoValue ? free_state_of_.end() : free_state_of_.find(v);
    if (at == free_state_of_.end()) continue;
    Sharding s = Sharding::replicated(graph_.type(v).shape);
    for (ValueId other : node.inputs) {
      if (other != kNoValue && other != v && graph_.type(other).shape == graph_.type(v).shape &&
          (node.op->sums_micro_batches || !variants_[other].empty()))
        s = node.op->sums_micro_batches ? term_sharding(other) : sharding_of(other);
    }
    size_t k = at->second;
    free_state_of_.erase(at);
    declare_state(k, s);
  }
}

void Localizer::finish_states() {
  std::vector<size_t> unused;
  for (const auto& [value, k] : free_state_of_) unused.push_back(k);
  std::sort(unused.begin(), unused.end());
  for (size_t k : unused) declare_state(k, Sharding::replicated(graph_.type(graph_.states[k].value).shape));
  free_state_of_.clear();
  for (size_t i = 0; i < state_order_.size(); ++i) {
    const State& s = graph_.states[state_order_[i].first];
    if (s.next == kNoValue) continue;
    const Node* producer = graph_.producer(s.next);
    // A run moves its running statistics once, also where they are the data's own, which each micro-batch can make.
    if (mesh_.time >= 0 && s.kind == StateKind::kRunning && producer != nullptr && is_micro_batch(producer->segment))
      refuse_in_time(s.next, producer->origin);
    b_.context() = {.segment = producer ? producer->segment : Segment::kUpdate,
                    .origin = producer ? producer->origin : -1};
    ValueId next = get(s.next, state_order_[i].second);
    b_.set_next_of(i, next);
  }
}

absl::StatusOr<LocalProgram> Localizer::finish() {
  for (const GraphOutput& o : graph_.outputs) {
    const Node* producer = graph_.producer(o.value);
    b_.context() = {.segment = Segment::kUpdate, .origin = producer ? producer->origin : -1};
    Sharding s = variants_[o.value].empty() ? Sharding::replicated(graph_.type(o.value).shape) : sharding_of(o.value);
    s.partial.clear();
    b_.output(o.name, get(o.value, s));
    result_.outputs.push_back({graph_.type(o.value).shape, normalized(s)});
  }
  result_.graph = std::move(b_).finish();
  sort_by_execution(result_.graph);
  size_t placed = 0;
  for (const GraphInput& in : result_.graph.inputs) {
    result_.inputs.push_back(in.kind == InputKind::kCoordinate ? PlacedTensor{{}, Sharding{}}
                                                               : placed_inputs_[placed++]);
  }
  for (const auto& [k, sharding] : state_order_) {
    ValueId v = graph_.states[k].value;
    result_.states.push_back({plan_.logical.empty() ? graph_.type(v).shape : plan_.logical[k], sharding, on_host(v)});
  }
  return std::move(result_);
}

absl::StatusOr<LocalProgram> localize(const Graph& graph, const ShardingPlan& plan) {
  return Localizer(graph, plan).run();
}

absl::StatusOr<std::vector<Sharding>> value_shardings(const Graph& graph, const ShardingPlan& plan) {
  return Localizer(graph, plan).shardings();
}

std::vector<int> sample_axes(const ShardingPlan& plan) {
  std::set<int> axes(plan.slice_axes.begin(), plan.slice_axes.end());
  for (const Sharding& s : plan.inputs) {
    if (s.dims.empty()) continue;
    for (const Piece& p : s.dims[0]) axes.insert(p.axes.begin(), p.axes.end());
  }
  axes.erase(plan.mesh.time);
  return {axes.begin(), axes.end()};
}

ShardingPlan::AxisUse axis_use(const ShardingPlan& plan, const PipelineStage& stage) {
  if (plan.axis_uses.empty()) return {sample_axes(plan), plan.scatter_axes};
  return plan.axis_uses[static_cast<size_t>(stage.index) + 1];
}

}  // namespace partita
