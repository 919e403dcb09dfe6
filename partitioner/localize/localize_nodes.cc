// What becomes of a node: made now on local shapes, put off until its value is asked for, or, where it only lays its
// operand out for another stage, resharded across meshes.
#include <algorithm>
#include <set>

#include "base/cat.h"
#include "base/status.h"
#include "ir/mesh/factor_split.h"
#include "partitioner/layout/layout.h"
#include "partitioner/localize/cross_mesh_reshard.h"
#include "partitioner/localize/localizer.h"
#include "partitioner/prepare/tensor_blocks.h"

namespace partita {
namespace {

constexpr int kPutOffDepth = 64;  // bounds the recursion through nodes that were put off

// `term` without the axes that split it and not the sum that it joins: it is brought together for each micro-batch, and
// the sum lies as its state does.
Sharding no_finer_than(const Sharding& sum, Sharding term) {
  for (auto& dim : term.dims) {
    for (Piece& p : dim) std::erase_if(p.axes, [&](int axis) { return !sum.is_split_by(axis); });
  }
  return normalized(std::move(term));
}

}  // namespace

void Localizer::visit(NodeId n) {
  const Node& node = graph_.nodes[n];
  if (auto reshard = plan_.stage_reshards.find(node.outputs[0]); reshard != plan_.stage_reshards.end())
    return lay_out(node, reshard->second);
  if (int depth = put_off_depth(node); depth > 0 && depth < kPutOffDepth) {
    for (ValueId v : node.outputs) put_off_[v] = depth;
    return;
  }
  NodeUse use{node, {}, bound_formula(graph_, node), {}};
  std::vector<OperandLayouts> layouts;
  resolve_free_states(node);
  for (size_t k = 0; k < node.inputs.size(); ++k) {
    ValueId v = node.inputs[k];
    if (v == kNoValue) continue;
    use.present.push_back(k);
    OperandLayouts o = layouts_of(v, node);
    if (node.segment > Segment::kBackward) complete_late(v, o);
    if (node.op->sums_micro_batches && k + 1 == node.inputs.size())
      o.ways = {no_finer_than(layouts.front().ways.front(), term_sharding(v))};
    layouts.push_back(std::move(o));
  }
  follow_parameter(use, layouts);
  for (const OperandLayouts& o : layouts) use.shardings.push_back(o.ways.front());
  for (size_t k = 0; k < use.present.size(); ++k) refine(use.formula, false, k, use.shardings[k], mesh_);
  emit(use, splitter_.divide(use, layouts));
  inherit_layout(node);
}

// 0: the node is made now. Else the length of the chain of nodes that are put off, this one included.
int Localizer::put_off_depth(const Node& node) const {
  if (mesh_.axes.empty() || node.op->kernel || node.op->communicates || node.op->sums_micro_batches) return 0;
  if (node.segment == Segment::kPrologue) return 0;  // its readers are in segments that run more often
  int depth = 0;
  for (ValueId v : node.inputs) {
    if (v == kNoValue) continue;
    if (put_off_[v] > 0) {
      depth = std::max(depth, put_off_[v]);
    } else if (free_state_of_.count(v) || sharding_of(v).is_split() || !sharding_of(v).partial.empty()) {
      return 0;
    }
  }
  return parameter_of(node) == nullptr ? depth + 1 : 0;
}

// How a value lies for `node`: first as it is meant to be used, then its other forms.
OperandLayouts Localizer::layouts_of(ValueId v, const Node& node) const {
  OperandLayouts o;
  o.bytes = byte_size(graph_.type(v));
  auto layout = layout_of_.find(v);
  if (variants_[v].empty()) {
    o.ways.push_back(Sharding::replicated(graph_.type(v).shape));
  } else if (layout != layout_of_.end() && is_micro_batch(node.segment)) {
    o.pinned = true;
    o.ways.push_back(normalized(layout->second->compute));
  } else {
    o.ways.push_back(sharding_of(v));
    for (const Variant& x : variants_[v]) {
      if (x.sharding.partial.empty() && x.made <= node.segment) o.ways.push_back(x.sharding);
    }
  }
  return o;
}

// How the split parameter lies whose gradient the node makes; null: it makes none's.
const Sharding* Localizer::parameter_of(const Node& node) const {
  if (node.segment != Segment::kBackward || node.outputs.size() != 1) return nullptr;
  for (ValueId state : states_met(node.outputs[0])) {
    auto layout = layout_of_.find(state);
    if (layout != layout_of_.end() && is_trained(state) && layout->second->compute.is_split())
      return &layout->second->compute;
  }
  return nullptr;
}

// A parameter's gradient lies as the parameter does, where that is for operands to say that were put off: the gradient
// of a table's rows is made of the rows that are here.
void Localizer::follow_parameter(const NodeUse& use, std::vector<OperandLayouts>& layouts) const {
  const bool free =
      std::any_of(use.present.begin(), use.present.end(), [&](size_t k) { return put_off_[use.node.inputs[k]] > 0; });
  const Sharding* parameter = free ? parameter_of(use.node) : nullptr;
  if (parameter == nullptr) return;
  for (const auto& [factor, axes] : proposals(use.formula, use.formula.outputs[0], *parameter, mesh_)) {
    FactorSplit split{std::vector<std::vector<int>>(use.formula.factors.size())};
    split.axes[static_cast<size_t>(factor)] = axes;
    for (size_t k = 0; k < layouts.size(); ++k) {
      if (put_off_[use.node.inputs[use.present[k]]] > 0 && has_factor(use.formula.inputs[k], factor))
        layouts[k].ways = {operand_sharding(use.formula, use.formula.inputs[k], split)}, layouts[k].pinned = true;
    }
  }
}

// What the prologue makes of a state element by element (its copy in 16 bits) is made of what is stored here, and
// gathered where it is used, as the state itself would be.
void Localizer::inherit_layout(const Node& node) {
  if (node.segment != Segment::kPrologue || node.inputs.size() != 1) return;
  auto layout = layout_of_.find(node.inputs[0]);
  ValueId v = node.outputs[0];
  if (layout != layout_of_.end() && sharding_of(v) == sharding_of(node.inputs[0])) layout_of_[v] = layout->second;
}

void Localizer::emit(const NodeUse& use, const NodeSplit& division) {
  const FactorSplit& split = division.factors;
  const std::vector<std::vector<int>>& partial = division.passing;
  const Node& node = use.node;
  at(node);
  std::vector<ValueId> inputs(node.inputs.size(), kNoValue);
  std::set<int> passing;
  for (const auto& axes : partial) passing.insert(axes.begin(), axes.end());
  std::vector<int> left(passing.begin(), passing.end());
  for (size_t k = 0; k < use.present.size(); ++k) {
    Sharding target = operand_sharding(use.formula, use.formula.inputs[k], split);
    target.partial = partial[k];
    ValueId v = node.inputs[use.present[k]], &local = inputs[use.present[k]];
    bool summed = node.op->sums_micro_batches && use.present[k] + 1 == node.inputs.size();
    local = summed ? get_term(v, target) : get(v, target);
    for (int a : left) {
      if (joins_partial(use, partial, k, a) && !splitter_.is_zero(v)) local = make_partial(local, a);
    }
  }
  at(node);
  std::vector<ValueId> outputs = emit_local(node, use.formula, split, inputs);
  for (size_t k = 0; k < outputs.size(); ++k) {
    Sharding s = operand_sharding(use.formula, use.formula.outputs[k], split);
    s.partial = left;
    PartialKind kind = PartialKind::kSum;
    for (size_t f = 0; f < split.axes.size(); ++f) {
      if (split.axes[f].empty() || has_factor(use.formula.outputs[k], static_cast<int>(f))) continue;
      FactorRole role = use.formula.factors[f].role;
      kind = role == FactorRole::kMax   ? PartialKind::kMax
             : role == FactorRole::kMin ? PartialKind::kMin
                                        : PartialKind::kSum;
      if (role != FactorRole::kParallel) s.partial.insert(s.partial.end(), split.axes[f].begin(), split.axes[f].end());
    }
    std::sort(s.partial.begin(), s.partial.end());
    s.kind = kind;
    if (kind == PartialKind::kSum && is_float(graph_.type(node.outputs[k]).dtype)) check_blocks(use, split, s);
    variants_[node.outputs[k]].push_back({outputs[k], s, node.segment});
    if (const auto target = splitter_.home_of(use, division, k, s)) {
      get(node.outputs[k], *target);
      make_front(node.outputs[k], normalized(*target));
    }
    if (!s.partial.empty()) complete_early(node.outputs[k]);
  }
}

// Over an axis that divides blocks, sums are of blocks.
void Localizer::check_blocks(const NodeUse& use, const FactorSplit& split, const Sharding& result) {
  for (int axis : plan_.block_axes) {
    if (!std::count(result.partial.begin(), result.partial.end(), axis) || mesh_.axes[axis].size == 1) continue;
    int summed = -1;
    for (size_t f = 0; f < split.axes.size(); ++f) {
      if (split.axes[f] == std::vector<int>{axis}) summed = static_cast<int>(f);
    }
    if (summed < 0 || !divides_blocks(use.node, use.formula, summed, mesh_.axes[axis].size))
      refuse_blocks(use.node, summed < 0 ? "" : use.formula.factors[summed].name, axis);
  }
}

// As a term of a sum over the axis: it counts on the first rank.
ValueId Localizer::make_partial(ValueId local, int axis) {
  ValueId first = b_.emit("eq", {resharder_.coordinate(axis), b_.scalar(DType::kI64, 0)});
  return b_.select(first, local, b_.scalar(b_.dtype(local), 0));
}

std::vector<ValueId> Localizer::emit_local(const Node& node, const Formula& formula, const FactorSplit& split,
                                           const std::vector<ValueId>& inputs) {
  Formula local = local_formula(formula, split, mesh_);
  std::vector<Shape> in, out;
  for (ValueId v : inputs) in.push_back(v == kNoValue ? Shape{} : b_.shape(v));
  for (const FormulaOperand& o : local.outputs) out.push_back(operand_shape(local, o));
  auto outputs = b_.try_emit(*node.op, inputs, localized_attrs(*node.op, node.attrs, in, out));
  PARTITA_CHECK(outputs.ok(),
                cat("localizing ", graph_.origin(node), " (", node.op->name, "): ", outputs.status().message()));
  for (size_t k = 0; k < outputs->size(); ++k) {
    PARTITA_CHECK(b_.shape((*outputs)[k]) == out[k],
                  cat("localizing ", graph_.origin(node), " (", node.op->name, "): expected ", to_string(out[k]),
                      ", found ", to_string(b_.shape((*outputs)[k]))));
    const std::string& name = graph_.values[node.outputs[k]].name;
    if (!name.empty()) b_.name((*outputs)[k], name);
  }
  return *std::move(outputs);
}

// Emits a node that was put off, at a split of its factors, in the context of whoever asks; one that reads the data no
// later than in its own segment: they are there while their micro-batch is.
void Localizer::make(const Node& node, const Formula& formula, const FactorSplit& split) {
  const NodeContext asked = b_.context();
  const auto is_data = [&](ValueId v) {
    return std::any_of(graph_.inputs.begin(), graph_.inputs.end(), [&](const auto& in) { return in.value == v; });
  };
  if (asked.segment > Segment::kBackward && is_micro_batch(node.segment) &&
      std::any_of(node.inputs.begin(), node.inputs.end(), is_data))
    at(node);
  NodeContext context = b_.context();
  std::vector<ValueId> inputs(node.inputs.size(), kNoValue);
  size_t present = 0;
  for (size_t k = 0; k < node.inputs.size(); ++k) {
    if (node.inputs[k] == kNoValue) continue;
    inputs[k] = get(node.inputs[k], operand_sharding(formula, formula.inputs[present++], split));
  }
  context.origin = node.origin;
  if (node.chunk > 0) context.chunk = node.chunk;  // in its own stage, whichever asks
  b_.context() = context;
  std::vector<ValueId> outputs = emit_local(node, formula, split, inputs);
  for (size_t k = 0; k < outputs.size(); ++k)
    variants_[node.outputs[k]].push_back(
        {outputs[k], operand_sharding(formula, formula.outputs[k], split), context.segment});
  b_.context() = asked;
}

// The node's operand under another sharding: what makes it smaller is done by who has it, the rest by who reads it.
// Sums over micro-batches stay partial.
void Localizer::lay_out(const Node& node, const ShardingPlan::StageReshard& reshard) {
  const ValueId v = node.inputs[0];
  Sharding wanted = reshard.lies;
  const bool put_off = put_off_[v] > 0;  // made whole, once for all of its readers
  const Sharding from = put_off ? Sharding::replicated(graph_.type(v).shape) : sharding_of(v);
  if (std::count(from.partial.begin(), from.partial.end(), mesh_.time) > 0) wanted.partial = {mesh_.time};
  const Node* producer = graph_.producer(v);
  const int64_t sender = stage_index(reshard.from), receiver = stage_index(reshard.to);
  const bool differ = !mesh_.differing(sender, receiver).empty();
  Sharding sent = !differ               ? narrowed(from, wanted, mesh_)
                  : producer != nullptr ? before_cross_mesh_reshard(from, wanted, mesh_, sender, receiver)
                                        : from;  // nodes before forward would be its reader's
  at(node);
  if (producer != nullptr)
    b_.context().origin = producer->origin, b_.context().block = producer->block, b_.context().chunk = producer->chunk;
  ValueId local = put_off ? resharder_.reshard(get(v, from), from, sent) : get(v, sent);
  at(node);
  if (differ) {
    CrossMeshReshard crossing = cross_mesh_reshard(sent, wanted, mesh_, sender, receiver);
    crossing.attrs.set("from", int64_t{reshard.from});
    crossing.attrs.set("to", int64_t{reshard.to});
    local = b_.emit("cross_mesh_reshard", {local}, std::move(crossing.attrs));
    sent = std::move(crossing.received);
  }
  local = resharder_.reshard(local, sent, normalized(wanted));
  variants_[node.outputs[0]].push_back({local, normalized(wanted), node.segment});
}

// Whether the node lays its operand out for a stage whose ranks lie along other axes.
bool Localizer::is_cross_mesh(const Node& node) const {
  auto reshard = plan_.stage_reshards.find(node.outputs[0]);
  return reshard != plan_.stage_reshards.end() &&
         !mesh_.differing(stage_index(reshard->second.from), stage_index(reshard->second.to)).empty();
}

// The index in the pipeline of a stage of the assignment, several of which may share one.
int64_t Localizer::stage_index(int stage) const {
  const int axis = mesh_.find(kStageAxis);
  return axis < 0 ? 0 : stage % mesh_.axes[static_cast<size_t>(axis)].size;
}

void Localizer::at(const Node& node) {
  DeviceKind device = node.device;
  bool host = std::any_of(node.inputs.begin(), node.inputs.end(), [&](ValueId v) { return on_host(v); });
  if (node.segment == Segment::kUpdate && host) device = DeviceKind::kHost;
  b_.context() = {node.segment, node.origin, node.block, node.weight_gradient, device, node.chunk};
}

bool Localizer::on_host(ValueId v) const {
  auto layout = layout_of_.find(v);
  return layout != layout_of_.end() && layout->second->host;
}

}  // namespace partita
