// Nodes are visited in order; each value is kept with how it lies (Sharding) in one or more variants. For a node: its
// formula is cut to its operands' pieces, a split of its factors is chosen, operands are resharded to it, and the op is
// emitted on local shapes. What it leaves (a reduced factor that is split = a partial sum) is the output's sharding. A
// partial operand passes through an op that is linear in it; otherwise it is reduced first.
//
// A node whose operands are all whole (masks, position tables, random indices, gradients' seeds) is put off until
// somebody asks for its value, and then made directly at the sharding asked for: nothing is computed at full size only
// to be sliced.
#include "partitioner/localize.h"

#include <algorithm>
#include <map>
#include <set>

#include "base/cat.h"
#include "base/status.h"
#include "ir/builder.h"
#include "partitioner/factor_split.h"
#include "partitioner/hand_over.h"
#include "partitioner/node_split.h"
#include "partitioner/parallel_plan.h"
#include "partitioner/reshard.h"

namespace partita {
namespace {

struct Variant {
  ValueId local;
  Sharding sharding;
  Segment made = Segment::kPrologue;  // readers of earlier segments cannot see it
};

class Localizer {
 public:
  Localizer(const Graph& graph, const ShardingPlan& plan)
      : graph_(graph),
        plan_(plan),
        mesh_(plan.mesh),
        resharder_(b_, mesh_),
        uses_(uses(graph)),
        splitter_(graph, plan, uses_),
        variants_(graph.values.size()),
        put_off_(graph.values.size(), 0) {}

  absl::StatusOr<LocalProgram> run() {
    start();
    for (size_t n = 0; n < graph_.nodes.size(); ++n) visit(static_cast<NodeId>(n));
    finish_states();
    if (!refused_.ok()) return refused_;
    return finish();
  }

  absl::StatusOr<std::vector<Sharding>> shardings() {
    start();
    for (size_t n = 0; n < graph_.nodes.size(); ++n) visit(static_cast<NodeId>(n));
    if (!refused_.ok()) return refused_;
    std::vector<Sharding> all;
    for (size_t v = 0; v < variants_.size(); ++v) {
      all.push_back(variants_[v].empty() ? Sharding::replicated(graph_.values[v].type.shape)
                                         : variants_[v][0].sharding);
      all.back().partial.clear();
    }
    return all;
  }

 private:
  static constexpr int kWholeDepth = 32;   // nodes that are made once more for all samples of a run
  static constexpr int kPutOffDepth = 64;  // bounds the recursion through nodes that were put off

  void start() {
    b_.mutable_graph().name = graph_.name;
    b_.mutable_graph().origins = graph_.origins;
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

  void place_input(const GraphInput& in, const Sharding& sharding) {
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
  void place_micro_batch() {
    const TensorType type{DType::kI64, {}};
    ValueId m =
        b_.input(micro_batch_ ? graph_.inputs[*micro_batch_].name : "micro_batch", type, InputKind::kMicroBatch);
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

  void declare_state(size_t k, const Sharding& sharding) {
    State s = graph_.states[k];
    Sharding stored = normalized(sharding);
    TensorType type{graph_.type(s.value).dtype, local_shape(stored, mesh_)};
    ValueId old = s.value;
    s.next = kNoValue;
    ValueId local = b_.state(std::move(s), std::move(type));
    variants_[old].push_back({local, stored, Segment::kPrologue});
    state_order_.push_back({k, stored});
  }

  const Sharding& sharding_of(ValueId v) const { return variants_[v].front().sharding; }

  void visit(NodeId n) {
    const Node& node = graph_.nodes[n];
    if (auto recut = plan_.recuts.find(node.outputs[0]); recut != plan_.recuts.end())
      return lay_out(node, recut->second);
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
      if (node.op->sums_micro_batches && k + 1 == node.inputs.size()) o.ways = {term_sharding(v)};
      use.shardings.push_back(o.ways.front());
      layouts.push_back(std::move(o));
    }
    for (size_t k = 0; k < use.present.size(); ++k) refine(use.formula, false, k, use.shardings[k], mesh_);
    emit(use, splitter_.divide(use, layouts));
    inherit_layout(node);
  }

  // The node's operand under another sharding: what makes it smaller is done by who has it, the rest by who reads it.
  // Sums over micro-batches stay owed.
  void lay_out(const Node& node, const ShardingPlan::Recut& recut) {
    const ValueId v = node.inputs[0];
    Sharding wanted = recut.lies;
    const bool put_off = put_off_[v] > 0;  // made whole, once for all of its readers
    const Sharding from = put_off ? Sharding::replicated(graph_.type(v).shape) : sharding_of(v);
    if (std::count(from.partial.begin(), from.partial.end(), mesh_.time) > 0) wanted.partial = {mesh_.time};
    const Node* producer = graph_.producer(v);
    const int64_t sender = place_of(recut.from), receiver = place_of(recut.to);
    const bool differ = !mesh_.differing(sender, receiver).empty();
    Sharding sent = !differ               ? narrowed(from, wanted, mesh_)
                    : producer != nullptr ? before_hand_over(from, wanted, mesh_, sender, receiver)
                                          : from;  // nodes before forward would be its reader's
    at(node);
    if (producer != nullptr)
      b_.context().origin = producer->origin, b_.context().block = producer->block,
      b_.context().chunk = producer->chunk;
    ValueId local = put_off ? resharder_.reshard(get(v, from), from, sent) : get(v, sent);
    at(node);
    if (differ) {
      HandOver over = hand_over(sent, wanted, mesh_, sender, receiver);
      over.attrs.set("from", int64_t{recut.from});
      over.attrs.set("to", int64_t{recut.to});
      local = b_.emit("hand_over", {local}, std::move(over.attrs));
      sent = std::move(over.received);
    }
    local = resharder_.reshard(local, sent, normalized(wanted));
    variants_[node.outputs[0]].push_back({local, normalized(wanted), node.segment});
  }

  // Whether the node lays its operand out for a stage whose ranks lie along other axes.
  bool is_handed_over(const Node& node) const {
    auto recut = plan_.recuts.find(node.outputs[0]);
    return recut != plan_.recuts.end() &&
           !mesh_.differing(place_of(recut->second.from), place_of(recut->second.to)).empty();
  }

  // The place in the pipeline of a stage, several of which may share one.
  int64_t place_of(int stage) const {
    const int axis = mesh_.find(kStageAxis);
    return axis < 0 ? 0 : stage % mesh_.axes[static_cast<size_t>(axis)].size;
  }

  // How a value lies for `node`: first as it is meant to be used, then its other forms.
  OperandLayouts layouts_of(ValueId v, const Node& node) const {
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

  static bool is_micro_batch(Segment s) { return s == Segment::kForward || s == Segment::kBackward; }

  // What the prologue makes of a state element by element (its copy in 16 bits) is made of what is stored here, and
  // gathered where it is used, as the state itself would be.
  void inherit_layout(const Node& node) {
    if (node.segment != Segment::kPrologue || node.inputs.size() != 1) return;
    auto layout = layout_of_.find(node.inputs[0]);
    ValueId v = node.outputs[0];
    if (layout != layout_of_.end() && sharding_of(v) == sharding_of(node.inputs[0])) layout_of_[v] = layout->second;
  }

  // A sum that only the update reads is completed to how the update's states lie.
  void complete_late(ValueId v, OperandLayouts& o) {
    const Node* producer = graph_.producer(v);
    if (producer == nullptr || producer->segment > Segment::kBackward || o.ways.front().partial.empty()) return;
    at(*producer);
    b_.context().segment = Segment::kUpdate;
    Sharding target = update_sharding(v);
    get(v, target);
    make_front(v, normalized(target));
    o.ways = {sharding_of(v)};
  }

  // The form that lies so is the one that readers start from.
  void make_front(ValueId v, const Sharding& sharding) {
    auto& all = variants_[v];
    auto found = std::find_if(all.begin(), all.end(), [&](const Variant& x) { return x.sharding == sharding; });
    PARTITA_CHECK(found != all.end(), "a form that was just made");
    std::rotate(all.begin(), found, found + 1);
  }

  // 0: the node is made now. Else the length of the chain of nodes that are put off, this one included.
  int put_off_depth(const Node& node) const {
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
    return depth + 1;
  }

  void add_slice_axes(Sharding& s) const {
    s.partial.insert(s.partial.end(), plan_.slice_axes.begin(), plan_.slice_axes.end());
    std::sort(s.partial.begin(), s.partial.end());
  }

  // How a term lies that is summed over micro-batches: the sum completes the axis in time, and is owed over the slice
  // axes.
  Sharding term_sharding(ValueId v) const {
    Sharding s = variants_[v].empty() ? Sharding::replicated(graph_.type(v).shape) : sharding_of(v);
    std::erase(s.partial, mesh_.time);
    add_slice_axes(s);
    return s;
  }

  // A state without a storage of its own lies as the operand it is first used with.
  void resolve_free_states(const Node& node) {
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

  // As a term of a sum over the axis: it counts on the first rank.
  ValueId owe(ValueId local, int axis) {
    ValueId first = b_.emit("eq", {resharder_.coordinate(axis), b_.scalar(DType::kI64, 0)});
    return b_.select(first, local, b_.scalar(b_.dtype(local), 0));
  }

  void emit(const NodeUse& use, const NodeSplit& division) {
    const FactorSplit& split = division.factors;
    const std::vector<std::vector<int>>& partial = division.passing;
    const Node& node = use.node;
    at(node);
    std::vector<ValueId> inputs(node.inputs.size(), kNoValue);
    std::set<int> owed;
    for (const auto& axes : partial) owed.insert(axes.begin(), axes.end());
    std::vector<int> left(owed.begin(), owed.end());
    for (size_t k = 0; k < use.present.size(); ++k) {
      Sharding target = operand_sharding(use.formula, use.formula.inputs[k], split);
      target.partial = partial[k];
      ValueId v = node.inputs[use.present[k]], &local = inputs[use.present[k]];
      bool summed = node.op->sums_micro_batches && use.present[k] + 1 == node.inputs.size();
      local = summed ? get_term(v, target) : get(v, target);
      for (int a : left) {
        if (joins_owed(use, partial, k, a) && !splitter_.is_zero(v)) local = owe(local, a);
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
        if (role != FactorRole::kParallel)
          s.partial.insert(s.partial.end(), split.axes[f].begin(), split.axes[f].end());
      }
      std::sort(s.partial.begin(), s.partial.end());
      s.kind = kind;
      variants_[node.outputs[k]].push_back({outputs[k], s, node.segment});
      for (const auto& target :
           {splitter_.scattered_home(use, split, k, s), splitter_.exchanged_back(use, division, k, s)}) {
        if (!target) continue;
        get(node.outputs[k], *target);
        make_front(node.outputs[k], normalized(*target));
      }
      if (!s.partial.empty()) complete_early(node.outputs[k]);
    }
  }

  std::vector<ValueId> emit_local(const Node& node, const Formula& formula, const FactorSplit& split,
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

  // The local value of `v` as `target` has it.
  ValueId get(ValueId v, const Sharding& target) {
    Sharding wanted = normalized(target);
    const Segment now = b_.context().segment;
    auto layout = layout_of_.find(v);
    bool stored = layout != layout_of_.end();
    bool regather = stored && layout->second->gather == GatherTime::kPass;
    for (const Variant& x : variants_[v]) {
      bool stale = x.made > now || (regather && x.made == Segment::kForward && now > Segment::kForward);
      if (x.sharding == wanted && !stale) return x.local;
    }
    if (put_off_[v] > 0) {
      const Node& node = *graph_.producer(v);
      Formula formula = bound_formula(graph_, node);
      int output = graph_.values[v].output;
      refine(formula, true, static_cast<size_t>(output), wanted, mesh_);
      auto split =
          wanted.partial.empty() ? split_for_output(formula, formula.outputs[output], wanted, mesh_) : std::nullopt;
      bool direct = split.has_value();
      if (!direct) split = FactorSplit{std::vector<std::vector<int>>(formula.factors.size())};
      bool any = std::any_of(variants_[v].begin(), variants_[v].end(), [&](const Variant& x) { return x.made <= now; });
      if (direct || !any) make(node, formula, *split);
      if (direct) return variants_[v].back().local;
    }
    auto from = std::find_if(variants_[v].begin(), variants_[v].end(), [&](const Variant& x) { return x.made <= now; });
    if (from != variants_[v].end() && crosses_time(from->sharding, wanted)) {
      NodeContext context = b_.context();
      bool whole = make_whole(v, 0);
      b_.context() = context;
      if (!whole) refuse_in_time(v);
      from = std::find_if(variants_[v].begin(), variants_[v].end(),
                          [&](const Variant& x) { return x.made <= now && (!whole || !in_time(x.sharding)); });
      if (!whole) {  // there will be no program; something of the right shape lets the walk go on
        ValueId any = b_.full(graph_.type(v).dtype, local_shape(wanted, mesh_), 0);
        variants_[v].push_back({any, wanted, now});
        return any;
      }
    }
    PARTITA_CHECK(from != variants_[v].end(), cat("a value that is read before it is made: ", graph_.values[v].name));
    bool early = stored && layout->second->gather == GatherTime::kStep && is_micro_batch(now) &&
                 from->made == Segment::kPrologue && !in_time(wanted) && !is_summed_up(v);
    const NodeContext context = b_.context();
    if (early) b_.context().segment = Segment::kPrologue, b_.context().weight_gradient = false;
    ValueId local = resharder_.reshard(from->local, from->sharding, wanted);
    variants_[v].push_back({local, std::move(wanted), b_.context().segment});
    b_.context() = context;
    return local;
  }

  // The same for what is summed over micro-batches: ranks along the slice axes have different terms, so it is owed the
  // sum over them. What is no sum over the parts of a run counts with the first of them.
  ValueId get_term(ValueId v, const Sharding& target) {
    if (plan_.slice_axes.empty() && mesh_.time < 0) return get(v, target);
    Sharding whole = variants_[v].empty() ? Sharding::replicated(graph_.type(v).shape) : sharding_of(v);
    ValueId local = get(v, whole);
    if (mesh_.time >= 0 && !std::count(whole.partial.begin(), whole.partial.end(), mesh_.time))
      local = owe(local, mesh_.time);
    return resharder_.reshard(local, term_sharding(v), normalized(target));
  }

  bool in_time(const Sharding& s) const {
    return mesh_.time >= 0 &&
           (std::count(s.partial.begin(), s.partial.end(), mesh_.time) > 0 || s.is_split_by(mesh_.time));
  }

  // A form of `v` over all samples of the run, in every micro-batch, for what cannot wait until all were there (the
  // number of labels that count): made anew from the data, where it depends on nothing that is trained. False where it
  // does.
  bool make_whole(ValueId v, int depth) {
    for (const Variant& x : variants_[v]) {
      if (!in_time(x.sharding) && x.made <= b_.context().segment) return true;
    }
    if (auto in = input_of_.find(v); in != input_of_.end()) {
      Sharding whole = plan_.inputs[in->second];
      for (auto& dim : whole.dims) {
        for (Piece& p : dim) std::erase(p.axes, mesh_.time);
      }
      place_input(graph_.inputs[in->second], whole);
      return true;
    }
    const Node* node = graph_.producer(v);
    if (node == nullptr || depth > kWholeDepth || node->op->communicates || node->segment != Segment::kForward)
      return false;
    NodeUse use{*node, {}, bound_formula(graph_, *node), {}};
    std::vector<OperandLayouts> layouts;
    for (size_t k = 0; k < node->inputs.size(); ++k) {
      ValueId x = node->inputs[k];
      if (x == kNoValue) continue;
      if (is_trained(x) || (put_off_[x] == 0 && !make_whole(x, depth + 1))) return false;
      use.present.push_back(k);
      Sharding s = whole_sharding(x);
      layouts.push_back({{s}, byte_size(graph_.type(x)), false});
      use.shardings.push_back(std::move(s));
    }
    for (size_t k = 0; k < use.present.size(); ++k) refine(use.formula, false, k, use.shardings[k], mesh_);
    emit(use, splitter_.divide_plainly(use, layouts));
    return true;
  }

  // A state that micro-batches change.
  bool is_summed_up(ValueId v) const {
    return std::any_of(graph_.states.begin(), graph_.states.end(), [&](const State& s) {
      return s.value == v && (s.kind == StateKind::kAccumulator || s.kind == StateKind::kRunning);
    });
  }

  bool is_trained(ValueId v) const {
    return std::any_of(graph_.states.begin(), graph_.states.end(), [&](const State& s) {
      return s.value == v && (s.kind == StateKind::kParameter || s.kind == StateKind::kRunning);
    });
  }

  Sharding whole_sharding(ValueId v) const {
    for (const Variant& x : variants_[v]) {
      if (!in_time(x.sharding)) return x.sharding;
    }
    return Sharding::replicated(graph_.type(v).shape);
  }

  // Whether something would have to be brought together from several micro-batches.
  bool crosses_time(const Sharding& from, const Sharding& to) const {
    if (!in_time(from)) return false;
    bool partial = std::count(from.partial.begin(), from.partial.end(), mesh_.time) > 0;
    if (partial) return std::count(to.partial.begin(), to.partial.end(), mesh_.time) == 0;
    for (size_t d = 0; d < from.dims.size(); ++d) {
      auto has = [&](const Sharding& s) {
        for (const Piece& p : s.dims[d]) {
          if (!p.axes.empty() && p.axes.front() == mesh_.time) return true;
        }
        return false;
      };
      if (has(from) && !has(to)) return true;
    }
    return false;
  }

  void refuse_in_time(ValueId v) {
    if (!refused_.ok()) return;
    const Node* node = graph_.producer(v);
    refused_ = absl::InvalidArgumentError(cat(
        "micro-batches: ", node ? graph_.origin(*node) : std::string("a value"),
        " needs all samples of the graph's batch at once, and a micro-batch has 1/", mesh_.axes[mesh_.time].size,
        " of them (a statistic over the batch, as in batch normalization); pin micro_batch to the whole batch, use "
        "more data-parallel ranks instead, or say of which samples it is: semantics: {batch_norm: replica}, or {moe: "
        "{capacity: C, group: N}} for experts with a capacity"));
  }

  // Emits a node that was put off, at a split of its factors, in the context of whoever asks.
  void make(const Node& node, const Formula& formula, const FactorSplit& split) {
    NodeContext context = b_.context();
    std::vector<ValueId> inputs(node.inputs.size(), kNoValue);
    size_t present = 0;
    for (size_t k = 0; k < node.inputs.size(); ++k) {
      if (node.inputs[k] == kNoValue) continue;
      inputs[k] = get(node.inputs[k], operand_sharding(formula, formula.inputs[present++], split));
    }
    context.origin = node.origin;
    if (node.chunk > 0) context.chunk = node.chunk;  // in its own stage, whichever asks
    NodeContext restore = b_.context();
    b_.context() = context;
    std::vector<ValueId> outputs = emit_local(node, formula, split, inputs);
    for (size_t k = 0; k < outputs.size(); ++k)
      variants_[node.outputs[k]].push_back(
          {outputs[k], operand_sharding(formula, formula.outputs[k], split), context.segment});
    b_.context() = restore;
  }

  void at(const Node& node) {
    DeviceKind device = node.device;
    bool host = std::any_of(node.inputs.begin(), node.inputs.end(), [&](ValueId v) { return on_host(v); });
    if (node.segment == Segment::kUpdate && host) device = DeviceKind::kHost;
    b_.context() = {node.segment, node.origin, node.block, node.weight_gradient, device, node.chunk};
  }

  bool on_host(ValueId v) const {
    auto layout = layout_of_.find(v);
    return layout != layout_of_.end() && layout->second->host;
  }

  // A gradient (or a statistic) that is partial and that only the update reads is reduced as soon as it is there,
  // straight to how the update wants it, so that the reduction overlaps what is left of backward. With several
  // micro-batches it is accumulated partial, and what is reduced is the sum.
  void complete_early(ValueId v) {
    const Node& node = *graph_.producer(v);
    if (!is_micro_batch(node.segment) || is_accumulated(v)) return;
    bool later = false;
    for (NodeId n : uses_[v]) {
      if (graph_.nodes[n].segment <= Segment::kBackward) return;
      later = true;
    }
    if (!later) return;
    if (node.op->sums_micro_batches) b_.context().segment = Segment::kReduce;
    Sharding target = update_sharding(v);
    get(v, target);
    make_front(v, target);
    at(node);
  }

  bool is_accumulated(ValueId v) const {
    for (NodeId n : uses_[v]) {
      if (graph_.nodes[n].op->sums_micro_batches) return true;
    }
    return false;
  }

  // How the update reads a gradient: as the most split state lies that meets it, through elementwise steps such as
  // clipping.
  Sharding update_sharding(ValueId v) const {
    const Shape& shape = graph_.type(v).shape;
    Sharding best = Sharding::replicated(shape);
    std::vector<ValueId> front = {v};
    for (int hop = 0; hop < 4 && !front.empty(); ++hop) {
      std::vector<ValueId> next;
      for (ValueId x : front) {
        for (NodeId n : uses_[x]) {
          if (is_handed_over(graph_.nodes[n])) continue;
          for (ValueId in : graph_.nodes[n].inputs) {
            bool state = in != kNoValue && in != x && graph_.values[in].producer == kNoNode &&
                         graph_.type(in).shape == shape && !variants_[in].empty();
            if (state && sharding_of(in).is_split()) best = sharding_of(in);
          }
          for (ValueId out : graph_.nodes[n].outputs) {
            if (graph_.type(out).shape == shape) next.push_back(out);
          }
        }
      }
      front = std::move(next);
    }
    best.partial.clear();
    return normalized(best);
  }

  void finish_states() {
    std::vector<size_t> unused;
    for (const auto& [value, k] : free_state_of_) unused.push_back(k);
    std::sort(unused.begin(), unused.end());
    for (size_t k : unused) declare_state(k, Sharding::replicated(graph_.type(graph_.states[k].value).shape));
    free_state_of_.clear();
    for (size_t i = 0; i < state_order_.size(); ++i) {
      const State& s = graph_.states[state_order_[i].first];
      if (s.next == kNoValue) continue;
      const Node* producer = graph_.producer(s.next);
      b_.context() = {.segment = producer ? producer->segment : Segment::kUpdate,
                      .origin = producer ? producer->origin : -1};
      ValueId next = get(s.next, state_order_[i].second);
      b_.mutable_graph().states[i].next = next;
    }
  }

  absl::StatusOr<LocalProgram> finish() {
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

  const Graph& graph_;
  const ShardingPlan& plan_;
  const Mesh& mesh_;
  Builder b_;
  Resharder resharder_;
  std::vector<std::vector<NodeId>> uses_;
  NodeSplitter splitter_;
  std::vector<std::vector<Variant>> variants_;
  std::vector<int> put_off_;  // 0: made in its turn
  std::map<ValueId, size_t> free_state_of_;
  std::map<ValueId, const StateLayout*> layout_of_;       // of the states that the plan places
  std::vector<std::pair<size_t, Sharding>> state_order_;  // in the order of the local graph's states
  std::vector<PlacedTensor> placed_inputs_;
  std::map<ValueId, size_t> input_of_;
  absl::Status refused_;
  std::optional<size_t> micro_batch_;
  LocalProgram result_;
};

}  // namespace

absl::StatusOr<LocalProgram> localize(const Graph& graph, const ShardingPlan& plan) {
  return Localizer(graph, plan).run();
}

absl::StatusOr<std::vector<Sharding>> value_shardings(const Graph& graph, const ShardingPlan& plan) {
  return Localizer(graph, plan).shardings();
}

}  // namespace partita
