#include "partitioner/localize/node_split.h"

#include <algorithm>
#include <map>

namespace partita {
namespace {

bool has(const std::vector<int>& axes, int axis) { return std::find(axes.begin(), axes.end(), axis) != axes.end(); }

bool takes(const FactorSplit& split, int axis) {
  return std::any_of(split.axes.begin(), split.axes.end(), [&](const auto& axes) { return has(axes, axis); });
}

bool can_scatter(const Formula& formula, int factor, size_t operand) {
  if (formula.factors[factor].role != FactorRole::kParallel || !has_factor(formula.inputs[operand], factor))
    return false;
  return std::all_of(formula.outputs.begin(), formula.outputs.end(),
                     [&](const FormulaOperand& o) { return has_factor(o, factor); });
}

// A sum of scalars stays partial until something else asks for it: the squares of all gradients are added up before any
// rank talks, not one after the other. Parts of a run that stay by themselves add up whatever is of none of their
// samples (the gradient of a penalty on a weight): with the first of them.
bool may_join(const NodeUse& use, bool apart) {
  if (use.node.op->sums_micro_batches) return false;
  return apart || std::all_of(use.formula.outputs.begin(), use.formula.outputs.end(),
                              [&](const FormulaOperand& o) { return elements(operand_shape(use.formula, o)) <= 1; });
}

}  // namespace

bool joins_partial(const NodeUse& use, const std::vector<std::vector<int>>& passing, size_t operand, int axis) {
  int group = use.formula.inputs[operand].linear;
  if (group < 0 || has(passing[operand], axis)) return false;
  for (size_t k = 0; k < passing.size(); ++k) {
    if (has(passing[k], axis) && use.formula.inputs[k].linear == group) return true;
  }
  return false;
}

NodeSplitter::NodeSplitter(const Graph& graph, const ShardingPlan& plan,
                           const std::vector<std::vector<NodeId>>& readers)
    : graph_(graph),
      plan_(plan),
      mesh_(plan.mesh),
      readers_(readers),
      constants_(constant_values(graph)),
      dependence_(graph) {
  for (const std::optional<StateLayout>& s : plan.states) {
    if (!s) continue;
    for (const auto& dim : s->compute.dims) {
      for (const Piece& p : dim) parameter_axes_.insert(p.axes.begin(), p.axes.end());
    }
  }
  std::set<int> axes;
  for (const Sharding& s : plan.inputs) {
    for (const auto& dim : s.dims) {
      for (const Piece& p : dim) axes.insert(p.axes.begin(), p.axes.end());
    }
  }
  axes.erase(mesh_.time);
  sample_axes_.assign(axes.begin(), axes.end());
}

ShardingPlan::AxisUse NodeSplitter::axis_use(const Node& node) const {
  if (plan_.axis_uses.empty()) return {sample_axes_, plan_.scatter_axes};
  return plan_.axis_uses[static_cast<size_t>(node.chunk)];
}

NodeSplit NodeSplitter::divide(const NodeUse& use, const std::vector<OperandLayouts>& layouts) const {
  int64_t output_bytes = 0;
  for (ValueId v : use.node.outputs) output_bytes += byte_size(graph_.type(v));
  NodeSplit out{choose_split(use.formula, layouts, output_bytes, mesh_), {}, {}};
  out.exchanges = exchange(use, layouts, out.factors);
  share_lookups(use, out.factors);
  out.passing = passing_partials(use, out.factors);
  scatter_sums(use, out.passing, out.factors);
  return out;
}

NodeSplit NodeSplitter::divide_plainly(const NodeUse& use, const std::vector<OperandLayouts>& layouts) const {
  NodeSplit out{choose_split(use.formula, layouts, 0, mesh_), {}, {}};
  out.passing = passing_partials(use, out.factors);
  return out;
}

// A contraction whose operands lie split along what it must keep whole (positions, under a causal mask) works on parts
// of another factor (heads): exchanges there and back move less than gathers, and each rank has a share of the work.
std::vector<Exchange> NodeSplitter::exchange(const NodeUse& use, const std::vector<OperandLayouts>& layouts,
                                             FactorSplit& split) const {
  if (use.node.op->work == WorkKind::kMemory) return {};
  std::map<int, std::set<int>> whole;        // by axis
  std::map<int, std::set<size_t>> operands;  // that have it there
  for (size_t k = 0; k < use.present.size(); ++k) {
    for (const auto& [factor, axes] :
         split_whole_factors(use.formula, use.formula.inputs[k], use.shardings[k], mesh_)) {
      for (int axis : axes) whole[axis].insert(factor), operands[axis].insert(k);
    }
  }
  std::vector<Exchange> out;
  for (auto& [axis, factors] : whole) {
    auto in_result = [&](int f) { return has_factor(use.formula.outputs[0], f); };
    if (mesh_.is_apart(axis) || std::none_of(factors.begin(), factors.end(), in_result)) continue;
    if (!takes(split, axis)) {  // else another operand is there already
      int factor = cheapest_factor(use, layouts, split, axis, operands[axis]);
      if (factor < 0) continue;
      split.axes[factor].push_back(axis);
    }
    out.push_back({axis, std::move(factors)});
  }
  if (use.node.op->work != WorkKind::kAttention) return out;
  for (int axis = 0; axis < static_cast<int>(mesh_.axes.size()); ++axis) {
    const bool done = std::any_of(out.begin(), out.end(), [&](const Exchange& e) { return e.axis == axis; });
    if (!done && !mesh_.is_apart(axis)) exchange_for_less(use, layouts, axis, split, out);
  }
  return out;
}

// Attention over all keys goes through with positions of queries split: what lies split by keys is gathered, and their
// gradients are scattered. Over more ranks than queries have bytes to keys', heads there and back are fewer bytes.
void NodeSplitter::exchange_for_less(const NodeUse& use, const std::vector<OperandLayouts>& layouts, int axis,
                                     FactorSplit& split, std::vector<Exchange>& out) const {
  const auto at = std::find_if(split.axes.begin(), split.axes.end(), [&](const auto& axes) { return has(axes, axis); });
  if (at == split.axes.end()) return;
  const int positions = static_cast<int>(at - split.axes.begin());
  std::set<int> lies{positions};
  std::set<size_t> operands;
  for (size_t k = 0; k < use.present.size(); ++k) {
    const FormulaOperand& operand = use.formula.inputs[k];
    for (const auto& places : {proposals(use.formula, operand, use.shardings[k], mesh_),
                               split_whole_factors(use.formula, operand, use.shardings[k], mesh_)}) {
      for (const auto& [factor, axes] : places) {
        if (has(axes, axis)) lies.insert(factor), operands.insert(k);
      }
    }
  }
  if (lies.size() == 1) return;
  FactorSplit without = split;
  std::erase(without.axes[positions], axis);
  const int heads = cheapest_factor(use, layouts, without, axis, operands);
  if (heads < 0 || lies.count(heads) > 0) return;
  if (bytes_exchanged(use, layouts, lies, axis, heads) >= bytes_exchanged(use, layouts, lies, axis, positions)) return;
  split = std::move(without);
  split.axes[heads].push_back(axis);
  out.push_back({axis, std::move(lies)});
}

// Bytes that reach a rank where the axis, which operands have on the factors `lies`, splits `factor`; results go back
// to where the operands lie.
int64_t NodeSplitter::bytes_exchanged(const NodeUse& use, const std::vector<OperandLayouts>& layouts,
                                      const std::set<int>& lies, int axis, int factor) const {
  const int64_t ways = mesh_.axes[axis].size;
  int64_t bytes = bytes_moved(use.formula, layouts, 0, axis, factor, mesh_);
  for (size_t k = 0; k < use.node.outputs.size(); ++k) {
    const FormulaOperand& operand = use.formula.outputs[k];
    const bool stays = lies.count(factor) > 0 && has_factor(operand, factor);
    const bool moves = std::any_of(lies.begin(), lies.end(), [&](int f) { return has_factor(operand, f); });
    if (!stays && moves)
      bytes += byte_size(graph_.type(use.node.outputs[k])) / (has_factor(operand, factor) ? ways : 1);
  }
  return bytes;
}

// Rows of samples that lie along an axis are all needed where some are looked up (tokens for the places of experts):
// each rank looks up a share of what is asked for, rather than all of it. The axes that experts lie along come first,
// so that a rank's places are its experts'.
void NodeSplitter::share_lookups(const NodeUse& use, FactorSplit& split) const {
  const std::vector<int> samples = axis_use(use.node).samples;
  auto is_whole = [&](int f) {
    return use.formula.factors[f].role == FactorRole::kWhole &&
           std::none_of(use.formula.outputs.begin(), use.formula.outputs.end(),
                        [&](const FormulaOperand& o) { return has_factor(o, f); });
  };
  auto is_index = [&](size_t k) { return is_integer(graph_.type(use.node.inputs[use.present[k]]).dtype); };
  for (size_t k = 0; k < use.present.size(); ++k) {
    if (is_index(k) || !dependence_.on_data(use.node.inputs[use.present[k]])) continue;
    std::vector<int> gathered;
    for (size_t d = 0; d < use.formula.inputs[k].dims.size(); ++d) {
      const std::vector<int>& factors = use.formula.inputs[k].dims[d];
      if (factors.empty() || !std::all_of(factors.begin(), factors.end(), is_whole)) continue;
      for (const Piece& p : use.shardings[k].dims[d]) gathered.insert(gathered.end(), p.axes.begin(), p.axes.end());
    }
    std::stable_partition(gathered.begin(), gathered.end(), [&](int a) { return parameter_axes_.count(a) > 0; });
    for (int axis : gathered) {
      if (mesh_.is_apart(axis) || !has(samples, axis) || takes(split, axis)) continue;
      for (size_t j = 0; j < use.present.size(); ++j) {
        if (!is_index(j)) continue;
        for (size_t f = 0; f < split.axes.size() && !takes(split, axis); ++f) {
          if (can_scatter(use.formula, static_cast<int>(f), j) &&
              use.formula.factors[f].size % (mesh_.ways(split.axes[f]) * mesh_.axes[axis].size) == 0)
            split.axes[f].push_back(axis);
        }
      }
    }
  }
}

// Of the factors that the result has and the axis divides, the one for which least is moved there and back; what lacks
// it is gathered, or left as a sum. Of equal ones the innermost; -1: none.
int NodeSplitter::cheapest_factor(const NodeUse& use, const std::vector<OperandLayouts>& layouts,
                                  const FactorSplit& split, int axis, const std::set<size_t>& operands) const {
  int best = -1;
  int64_t least = 0, ways = mesh_.axes[axis].size;
  for (int f = 0; f < static_cast<int>(split.axes.size()); ++f) {
    const Factor& factor = use.formula.factors[f];
    bool parts = factor.role == FactorRole::kParallel || factor.role == FactorRole::kSum;
    if (!parts || !has_factor(use.formula.outputs[0], f) || factor.size % (mesh_.ways(split.axes[f]) * ways) != 0)
      continue;
    int64_t moved = 0;
    for (size_t k : operands) moved += layouts[k].bytes / (has_factor(use.formula.inputs[k], f) ? ways : 1);
    for (size_t k = 0; k < use.node.outputs.size(); ++k) {
      int64_t bytes = byte_size(graph_.type(use.node.outputs[k]));
      moved += has_factor(use.formula.outputs[k], f) ? bytes / ways : 2 * bytes;
    }
    if (best < 0 || moved <= least) best = f, least = moved;
  }
  return best;
}

std::vector<std::vector<int>> NodeSplitter::passing_partials(const NodeUse& use, const FactorSplit& split) const {
  std::vector<std::vector<int>> pass(use.present.size());
  std::map<int, int> group_of;              // axis -> the linear group that passes it; other operands are completed
  std::set<std::pair<int, int>> completed;  // axes and linear groups whose sums are not waited with
  for (size_t k = 0; k < pass.size(); ++k) {
    const int group = use.formula.inputs[k].linear;
    if (group < 0 || use.shardings[k].kind != PartialKind::kSum) continue;
    for (int axis : use.shardings[k].partial) {
      if (completed_for_all(use, k, axis) || widens(use, axis)) completed.insert({axis, group});
    }
  }
  for (size_t k = 0; k < pass.size(); ++k) {
    int group = use.formula.inputs[k].linear;
    if (group < 0 || use.shardings[k].kind != PartialKind::kSum) continue;
    for (int axis : use.shardings[k].partial) {
      if (has(plan_.block_axes, axis)) continue;
      // In a fixed order parts of a run's samples are summed up before anything else is added to them.
      const bool too_late = mesh_.is_apart(axis) && use.node.segment > Segment::kBackward;
      bool sound = !too_late && !takes(split, axis) && !completed.count({axis, group}) &&
                   group_of.try_emplace(axis, group).first->second == group;
      for (size_t j = 0; j < pass.size(); ++j) {
        bool joint = use.formula.inputs[j].linear == group;
        // Over micro-batches nothing is sent, and zeros are partial as well as they are there: the gradient of a slice
        // is padded before it is accumulated. Between ranks it is summed before padding makes it larger.
        bool partial =
            has(use.shardings[j].partial, axis) || (mesh_.is_apart(axis) && is_zero(use.node.inputs[use.present[j]]));
        sound = sound && (partial || !joint || may_join(use, mesh_.is_apart(axis)));
        // A sum that is partial is not carried into products with other tensors: every one of them, and every gradient
        // that follows, would be partial too. (Over micro-batches it is never sent, only accumulated.)
        sound = sound && (joint || mesh_.is_apart(axis) ||
                          elements(operand_shape(use.formula, use.formula.inputs[j])) <= 1 || is_lookup(use, k, j));
      }
      if (sound) pass[k].push_back(axis);
    }
  }
  return pass;
}

// A sum of activations is sent as it is, in 16 bits, rather than twice as large after a cast to f32. Those of
// parameters' gradients are waited with until all micro-batches are added up.
bool NodeSplitter::widens(const NodeUse& use, int axis) const {
  const Segment segment = use.node.segment;
  if (!use.node.op->casts || use.node.weight_gradient || mesh_.is_apart(axis)) return false;
  return (segment == Segment::kForward || segment == Segment::kBackward) &&
         dtype_size(graph_.type(use.node.inputs[0]).dtype) == 2 &&
         dtype_size(graph_.type(use.node.outputs[0]).dtype) > 2;
}

// Whether the node has to have the whole of a value, whatever it is a sum of.
bool NodeSplitter::completes(const Node& node, ValueId v) const {
  const Formula formula = bound_formula(graph_, node);
  size_t present = 0;
  for (ValueId in : node.inputs) {
    if (in == kNoValue) continue;
    if (in == v && formula.inputs[present].linear < 0) return true;
    ++present;
  }
  return false;
}

bool NodeSplitter::is_zero(ValueId v) const {
  if (constants_[v] == nullptr) return false;
  auto bytes = constants_[v]->bytes();
  return std::all_of(bytes.begin(), bytes.end(), [](std::byte b) { return b == std::byte{0}; });
}

// A sum that several ops read is completed once for all of them, rather than by each for itself, where one of them has
// to, or where waiting makes it no smaller and joins it with no other sum. So the residual stream of a transformer is
// whole (or split by sequence) from block to block, and what a block adds to it is completed, not the stream again.
bool NodeSplitter::completed_for_all(const NodeUse& use, size_t operand, int axis) const {
  ValueId v = use.node.inputs[use.present[operand]];
  if (readers_[v].size() < 2 || mesh_.is_apart(axis) || use.node.op->sums_micro_batches) return false;
  if (std::any_of(readers_[v].begin(), readers_[v].end(), [&](NodeId n) { return completes(graph_.nodes[n], v); }))
    return true;
  for (size_t k = 0; k < use.present.size(); ++k) {
    if (k != operand && has(use.shardings[k].partial, axis)) return false;
  }
  return std::all_of(use.node.outputs.begin(), use.node.outputs.end(),
                     [&](ValueId out) { return elements(graph_.type(out).shape) >= elements(graph_.type(v).shape); });
}

// The gradient of a table, not much larger than that of what was looked up by indices `other`: a position table's is a
// sum over samples like any other parameter's gradient.
bool NodeSplitter::is_lookup(const NodeUse& use, size_t operand, size_t other) const {
  DType type = graph_.type(use.node.inputs[use.present[other]]).dtype;
  return use.node.weight_gradient && !is_float(type) && type != DType::kBool &&
         elements(operand_shape(use.formula, use.formula.outputs[0])) <=
             2 * elements(operand_shape(use.formula, use.formula.inputs[operand]));
}

// Where a sum over a scatter axis has to be completed and nothing else uses the axis, it is scattered along the
// outermost factor that divides and that the node leaves parallel; not a parameter's gradient, whose update would
// gather all its states again. So is a sum over samples that a contraction reads (tokens sent to experts), rather than
// that every rank does all of its work, or that is completed before it is widened (tokens that come back).
void NodeSplitter::scatter_sums(const NodeUse& use, const std::vector<std::vector<int>>& passing,
                                FactorSplit& split) const {
  Segment segment = use.node.segment;
  bool gradient = segment == Segment::kReduce || segment == Segment::kUpdate || use.node.op->sums_micro_batches;
  const ShardingPlan::AxisUse axes = axis_use(use.node);
  for (size_t k = 0; k < use.present.size(); ++k) {
    if (use.shardings[k].kind != PartialKind::kSum) continue;
    for (int axis : use.shardings[k].partial) {
      const bool contraction = has(axes.samples, axis) && !mesh_.is_apart(axis) &&
                               (use.node.op->work != WorkKind::kMemory || widens(use, axis));
      bool passes = std::any_of(passing.begin(), passing.end(), [&](const auto& left) { return has(left, axis); });
      if ((!contraction && (gradient || !has(axes.scatter, axis))) || passes || takes(split, axis)) continue;
      for (size_t f = 0; f < split.axes.size(); ++f) {
        if (!can_scatter(use.formula, static_cast<int>(f), k)) continue;
        const int64_t ways = mesh_.ways(split.axes[f]) * mesh_.axes[axis].size;
        if (use.formula.factors[f].size % ways != 0 || !is_nested(use, k, static_cast<int>(f), ways)) continue;
        split.axes[f].push_back(axis);
        break;
      }
    }
  }
}

// Whether so many parts of a factor are of whole rows of what a view made its dimension of: three samples of 64
// positions seen as 192 rows are no two halves, as their other readers divide positions.
bool NodeSplitter::is_nested(const NodeUse& use, size_t operand, int factor, int64_t parts) const {
  const ValueId v = use.node.inputs[use.present[operand]];
  const Node* producer = graph_.producer(v);
  if (producer == nullptr || !producer->op->view) return true;
  const FormulaOperand& dims = use.formula.inputs[operand];
  int64_t part = use.formula.factors[factor].size / parts, behind = 1;  // elements of the dimension, of dimensions
  for (size_t d = dims.dims.size(); d-- > 0;) {
    if (!has(dims.dims[d], factor)) {
      behind *= graph_.type(v).shape[d];
      continue;
    }
    for (size_t f = dims.dims[d].size(); dims.dims[d][--f] != factor;)
      part *= use.formula.factors[dims.dims[d][f]].size;
    break;
  }
  part *= behind;
  int64_t row = 1;
  const Shape& seen = graph_.type(producer->inputs[0]).shape;
  for (size_t d = seen.size(); d-- > 0 && row > 0; row *= seen[d]) {
    if (part <= row * seen[d]) return part % row == 0 && row * seen[d] % part == 0;
  }
  return true;
}

// Sums over an axis are scattered to the factor that operands have along it.
bool NodeSplitter::scatter_home(const NodeUse& use, size_t output, Home& home) const {
  bool moved = false;
  for (size_t k = 0; k < use.present.size(); ++k) {
    for (const auto& [factor, axes] : proposals(use.formula, use.formula.inputs[k], use.shardings[k], mesh_)) {
      if (axes.size() != 1 || !has(home.partial, axes[0]) || !home.factors.axes[factor].empty() ||
          !has_factor(use.formula.outputs[output], factor))
        continue;
      home.factors.axes[factor] = axes;
      std::erase(home.partial, axes[0]);
      moved = true;
    }
  }
  return moved;
}

bool NodeSplitter::exchange_back(const NodeUse& use, const std::vector<Exchange>& exchanges, size_t output,
                                 Home& home) const {
  const FormulaOperand& operand = use.formula.outputs[output];
  bool moved = false;
  for (const Exchange& e : exchanges) {
    auto at = std::find_if(e.lies.begin(), e.lies.end(), [&](int f) { return has_factor(operand, f); });
    if (at == e.lies.end() || is_read_whole(use.node.outputs[output], operand, *at)) continue;
    // Beside what is scattered to it already.
    if (use.formula.factors[*at].size % (mesh_.ways(home.factors.axes[*at]) * mesh_.axes[e.axis].size) != 0) continue;
    for (auto& axes : home.factors.axes) std::erase(axes, e.axis);
    home.factors.axes[*at].push_back(e.axis);
    std::erase(home.partial, e.axis);
    moved = true;
  }
  return moved;
}

std::optional<Sharding> NodeSplitter::home_of(const NodeUse& use, const NodeSplit& split, size_t output,
                                              const Sharding& now) const {
  if (now.kind != PartialKind::kSum) return std::nullopt;
  Home home{split.factors, now.partial};
  const bool scattered = scatter_home(use, output, home), exchanged = exchange_back(use, split.exchanges, output, home);
  if (!scattered && !exchanged) return std::nullopt;
  Sharding target = operand_sharding(use.formula, use.formula.outputs[output], home.factors);
  target.partial = std::move(home.partial);
  return target;
}

// Whether all that reads the value keeps whole the dimension that the factor is in.
bool NodeSplitter::is_read_whole(ValueId v, const FormulaOperand& operand, int factor) const {
  size_t d = 0;
  while (!has(operand.dims[d], factor)) ++d;
  return !readers_[v].empty() && std::all_of(readers_[v].begin(), readers_[v].end(), [&](NodeId n) {
    const Node& reader = graph_.nodes[n];
    Formula f = bound_formula(graph_, reader);
    size_t present = 0;
    for (ValueId in : reader.inputs) {
      if (in == v) {
        const std::vector<int>& dim = f.inputs[present].dims[d];
        bool whole =
            std::any_of(dim.begin(), dim.end(), [&](int x) { return f.factors[x].role == FactorRole::kWhole; });
        if (!whole || reader.op->work == WorkKind::kMemory) return false;
      }
      present += in != kNoValue;
    }
    return true;
  });
}

}  // namespace partita
