// The forms in which a value is there, each with how it lies: the one that is asked for is looked up, or made of one
// that is there, or made anew by a node that was put off. A micro-batch has a part of a run's samples: what is asked
// for of all of them is made anew from the data, or, where it depends on what is trained, refused.
#include <algorithm>

#include "base/cat.h"
#include "base/status.h"
#include "ir/mesh/factor_split.h"
#include "partitioner/localize/localizer.h"

namespace partita {
namespace {

constexpr int kWholeDepth = 32;  // nodes that are made once more for all samples of a run
constexpr int kPartsDepth = 8;   // nodes that are made once more for a part of their result

}  // namespace

// The local value of `v` as `target` has it.
ValueId Localizer::get(ValueId v, const Sharding& target) {
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
  if (from != variants_[v].end() && meets(v, from->sharding, wanted)) {
    NodeContext context = b_.context();
    bool whole = make_whole(v, 0);
    b_.context() = context;
    if (!whole) refuse_in_time(v, context.origin);
    from = std::find_if(variants_[v].begin(), variants_[v].end(),
                        [&](const Variant& x) { return x.made <= now && (!whole || !is_part(x.sharding)); });
    if (!whole) {  // there will be no program; something of the right shape lets the walk go on
      ValueId any = b_.full(graph_.type(v).dtype, local_shape(wanted, mesh_), 0);
      variants_[v].push_back({any, wanted, now});
      return any;
    }
  }
  PARTITA_CHECK(from != variants_[v].end(), cat("a value that is read before it is made: ", graph_.values[v].name));
  const bool smaller = wanted.partial == from->sharding.partial && narrowed(from->sharding, wanted, mesh_) == wanted;
  if (put_off_[v] == 0 && smaller && made_of_parts(v, wanted, 0)) {
    const Node& node = *graph_.producer(v);
    Formula formula = bound_formula(graph_, node);
    refine(formula, true, 0, wanted, mesh_);
    make(node, formula, *split_for_output(formula, formula.outputs[0], wanted, mesh_));
    return variants_[v].back().local;
  }
  bool early = stored && layout->second->gather == GatherTime::kStep && is_micro_batch(now) &&
               from->made == Segment::kPrologue && !in_time(wanted) && !is_summed_up(v);
  const NodeContext context = b_.context();
  if (early) b_.context().segment = Segment::kPrologue, b_.context().weight_gradient = false;
  ValueId local = resharder_.reshard(from->local, from->sharding, wanted);
  variants_[v].push_back({local, std::move(wanted), b_.context().segment});
  b_.context() = context;
  return local;
}

// Whether it takes elementwise steps alone to have `v` so, on what was put off or lies so already: no slice of more.
// The one-hot rows of labels, split by classes, are made for the classes that are here.
bool Localizer::made_of_parts(ValueId v, const Sharding& wanted, int depth) {
  const Segment now = b_.context().segment;
  const bool lies_so = std::any_of(variants_[v].begin(), variants_[v].end(),
                                   [&](const Variant& x) { return x.sharding == wanted && x.made <= now; });
  if (put_off_[v] > 0 || (depth > 0 && lies_so)) return true;
  const Node* node = graph_.producer(v);
  if (depth == kPartsDepth || node == nullptr || node->segment != now || node->op->scalar == nullptr) return false;
  Formula formula = bound_formula(graph_, *node);
  refine(formula, true, 0, wanted, mesh_);
  const auto split = split_for_output(formula, formula.outputs[0], wanted, mesh_);
  size_t present = 0;
  return split && std::all_of(node->inputs.begin(), node->inputs.end(), [&](ValueId x) {
           return x == kNoValue ||
                  made_of_parts(x, operand_sharding(formula, formula.inputs[present++], *split), depth + 1);
         });
}

// The same for what is summed over micro-batches: ranks along the slice axes have different terms, so it is partial the
// sum over them. What is no sum over the parts of a run counts with the first of them.
ValueId Localizer::get_term(ValueId v, const Sharding& target) {
  if (plan_.slice_axes.empty() && mesh_.time < 0) return get(v, target);
  Sharding whole = variants_[v].empty() ? Sharding::replicated(graph_.type(v).shape) : sharding_of(v);
  ValueId local = get(v, whole);
  if (mesh_.time >= 0 && !std::count(whole.partial.begin(), whole.partial.end(), mesh_.time))
    local = make_partial(local, mesh_.time);
  return resharder_.reshard(local, term_sharding(v), normalized(target));
}

// How a term lies that is summed over micro-batches: the sum completes the axis in time, and is partial over the slice
// axes.
Sharding Localizer::term_sharding(ValueId v) const {
  Sharding s = variants_[v].empty() ? Sharding::replicated(graph_.type(v).shape) : sharding_of(v);
  std::erase(s.partial, mesh_.time);
  add_slice_axes(s);
  return s;
}

void Localizer::add_slice_axes(Sharding& s) const {
  s.partial.insert(s.partial.end(), plan_.slice_axes.begin(), plan_.slice_axes.end());
  std::sort(s.partial.begin(), s.partial.end());
}

// The form that lies so is the one that readers start from.
void Localizer::make_front(ValueId v, const Sharding& sharding) {
  auto& all = variants_[v];
  auto found = std::find_if(all.begin(), all.end(), [&](const Variant& x) { return x.sharding == sharding; });
  PARTITA_CHECK(found != all.end(), "a form that was just made");
  std::rotate(all.begin(), found, found + 1);
}

// A gradient (or a statistic) that is partial and that only the update reads is reduced as soon as it is there,
// straight to how the update wants it, so that the reduction overlaps what is left of backward. With several
// micro-batches it is accumulated partial, and what is reduced is the sum.
void Localizer::complete_early(ValueId v) {
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
  completes_ = true;
  get(v, target);
  completes_ = false;
  make_front(v, target);
  at(node);
}

// A sum that only the update reads is completed to how the update's states lie.
void Localizer::complete_late(ValueId v, OperandLayouts& o) {
  const Node* producer = graph_.producer(v);
  if (producer == nullptr || producer->segment > Segment::kBackward || o.ways.front().partial.empty()) return;
  at(*producer);
  b_.context().segment = Segment::kUpdate;
  Sharding target = update_sharding(v);
  get(v, target);
  make_front(v, normalized(target));
  o.ways = {sharding_of(v)};
}

bool Localizer::is_accumulated(ValueId v) const {
  for (NodeId n : uses_[v]) {
    if (graph_.nodes[n].op->sums_micro_batches) return true;
  }
  return false;
}

// How the update reads a gradient: as the most split state lies that meets it.
Sharding Localizer::update_sharding(ValueId v) const {
  Sharding best = Sharding::replicated(graph_.type(v).shape);
  for (ValueId state : states_met(v)) {
    if (!variants_[state].empty() && sharding_of(state).is_split()) best = sharding_of(state);
  }
  best.partial.clear();
  return normalized(best);
}

// States of its shape that a value meets, also through elementwise steps such as clipping.
std::vector<ValueId> Localizer::states_met(ValueId v) const {
  const Shape& shape = graph_.type(v).shape;
  std::vector<ValueId> states, front = {v};
  for (int hop = 0; hop < 4 && !front.empty(); ++hop) {
    std::vector<ValueId> next;
    for (ValueId x : front) {
      for (NodeId n : uses_[x]) {
        const Node& node = graph_.nodes[n];
        // A product may read a value and a parameter of one shape that have nothing to do with each other.
        const bool step =
            node.segment > Segment::kBackward || node.op->sums_micro_batches || node.op->scalar != nullptr;
        if (is_cross_mesh(node) || !step) continue;
        for (ValueId in : node.inputs) {
          const bool state = in != kNoValue && in != x && graph_.values[in].producer == kNoNode;
          if (state && graph_.type(in).shape == shape) states.push_back(in);
        }
        for (ValueId out : node.outputs) {
          if (graph_.type(out).shape == shape) next.push_back(out);
        }
      }
    }
    front = std::move(next);
  }
  return states;
}

bool Localizer::in_time(const Sharding& s) const {
  return mesh_.time >= 0 &&
         (std::count(s.partial.begin(), s.partial.end(), mesh_.time) > 0 || s.is_split_by(mesh_.time));
}

// Whether it is a part along an axis whose parts stay by themselves.
bool Localizer::is_part(const Sharding& s) const {
  auto along = [&](int axis) {
    return std::count(s.partial.begin(), s.partial.end(), axis) > 0 || s.is_split_by(axis);
  };
  return in_time(s) || std::any_of(mesh_.apart.begin(), mesh_.apart.end(), along);
}

// Whether parts along the axis would have to be brought together.
bool Localizer::crosses(int axis, const Sharding& from, const Sharding& to) const {
  if (std::count(from.partial.begin(), from.partial.end(), axis) > 0)
    return std::count(to.partial.begin(), to.partial.end(), axis) == 0;
  for (size_t d = 0; d < from.dims.size(); ++d) {
    auto has = [&](const Sharding& s) {
      return std::any_of(s.dims[d].begin(), s.dims[d].end(),
                         [&](const Piece& p) { return std::count(p.axes.begin(), p.axes.end(), axis) > 0; });
    };
    if (has(from) && !has(to)) return true;
  }
  return false;
}

// Whether parts of a run's samples would have to be brought together that stay by themselves: several micro-batches,
// or before the sums are there that they are made for, those of several ranks.
bool Localizer::meets(ValueId v, const Sharding& from, const Sharding& to) {
  if (mesh_.time >= 0 && crosses(mesh_.time, from, to)) return true;
  if (completes_ || !is_micro_batch(b_.context().segment) || !splitter_.dependence().on_data(v)) return false;
  return std::any_of(mesh_.apart.begin(), mesh_.apart.end(), [&](int axis) { return crosses(axis, from, to); });
}

// A form of `v` over all samples of the run, in every micro-batch, for what cannot wait until all were there (the
// number of labels that count): made anew from the data, where it depends on nothing that is trained. False where it
// does.
bool Localizer::make_whole(ValueId v, int depth) {
  for (const Variant& x : variants_[v]) {
    if (!is_part(x.sharding) && x.made <= b_.context().segment) return true;
  }
  if (auto in = input_of_.find(v); in != input_of_.end()) {
    Sharding whole = plan_.inputs[in->second];
    for (auto& dim : whole.dims) {
      for (Piece& p : dim) std::erase_if(p.axes, [&](int axis) { return mesh_.is_apart(axis); });
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

Sharding Localizer::whole_sharding(ValueId v) const {
  for (const Variant& x : variants_[v]) {
    if (!is_part(x.sharding)) return x.sharding;
  }
  return Sharding::replicated(graph_.type(v).shape);
}

bool Localizer::is_trained(ValueId v) const {
  return std::any_of(graph_.states.begin(), graph_.states.end(), [&](const State& s) {
    return s.value == v && (s.kind == StateKind::kParameter || s.kind == StateKind::kRunning);
  });
}

// A state that micro-batches change.
bool Localizer::is_summed_up(ValueId v) const {
  return std::any_of(graph_.states.begin(), graph_.states.end(), [&](const State& s) {
    return s.value == v && (s.kind == StateKind::kAccumulator || s.kind == StateKind::kRunning);
  });
}

void Localizer::refuse_in_time(ValueId v, int32_t reader) {
  if (!refused_.ok()) return;
  const Node* node = graph_.producer(v);
  if (!mesh_.apart.empty()) return refuse_apart(node);
  const std::string made = node ? graph_.origin(*node) : std::string("a value");
  refused_ = absl::InvalidArgumentError(cat(
      "micro-batches: ", reader < 0 ? made : graph_.origins[static_cast<size_t>(reader)],
      " needs all samples of the graph's batch at once, and a micro-batch has 1/", mesh_.axes[mesh_.time].size,
      " of them (a statistic over the batch, as in batch normalization, or samples that are compared with one another, "
      "put in order or taken by their place: all micro-batches would have to come as far "
      "before one goes on, with the whole batch in memory); pin micro_batch to the whole batch, use more "
      "data-parallel ranks instead, or say of which samples it is: semantics: {batch_norm: replica}, or {moe: "
      "{capacity: C, group: N}} for experts with a capacity"));
}

void Localizer::refuse_blocks(const Node& node, const std::string& factor, int axis) {
  if (!refused_.ok()) return;
  std::string of;
  for (ValueId v : node.inputs) {
    if (v != kNoValue) append(of, of.empty() ? "" : ", ", to_string(graph_.type(v)));
  }
  refused_ = absl::InvalidArgumentError(cat(
      "reproducible: ", graph_.origin(node), " (", node.op->name, " of ", of, "): ", mesh_.axes[axis].name, " ",
      mesh_.axes[axis].size, " would divide what it sums up", factor.empty() ? "" : cat(" (", factor, ")"),
      ", which has no blocks; expected a product with a weight; leave the pins of single weights out, or pin tensor: "
      "1"));
}

void Localizer::refuse_apart(const Node* node) {
  refused_ = absl::InvalidArgumentError(cat(
      "reproducible: ", node ? graph_.origin(*node) : std::string("a value"),
      " needs all samples of a step at once (a statistic over the batch, as in batch normalization, or samples that "
      "are compared with one another), and a step is made in parts that meet in sums alone; say of which samples it "
      "is: semantics: {batch_norm: replica}, or leave `reproducible` out"));
}

}  // namespace partita
