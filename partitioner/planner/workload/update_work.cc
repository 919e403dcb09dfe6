#include "partitioner/planner/workload/update_work.h"

#include <algorithm>
#include <set>
#include <tuple>

#include "base/cat.h"
#include "ir/graph/builder.h"
#include "partitioner/localize/localize.h"

namespace partita {
namespace {

bool is_product(const Node& node) { return node.op->work == WorkKind::kMatrix; }

// The update of one parameter as a graph of its own, its gradient an input or a state.
class UpdateGraph {
 public:
  UpdateGraph(const Graph& graph, ValueId parameter, const std::vector<NodeId>& nodes, bool gradient_is_input)
      : graph_(graph), shape_(graph.type(parameter).shape), gradient_is_input_(gradient_is_input) {
    b_.context().segment = Segment::kUpdate;
    for (NodeId n : nodes) {
      const Node& node = graph.nodes[static_cast<size_t>(n)];
      std::vector<ValueId> inputs;
      for (ValueId v : node.inputs) inputs.push_back(v == kNoValue ? v : value(v));
      const std::vector<ValueId> outputs = b_.emit_all(node.op->name, std::move(inputs), node.attrs);
      for (size_t k = 0; k < outputs.size(); ++k) values_[node.outputs[k]] = outputs[k];
    }
    for (const State& s : graph.states) {
      if (values_.contains(s.value) && values_.contains(s.next)) b_.set_next(values_[s.value], values_[s.next]);
    }
  }

  Graph finish() && { return std::move(b_).finish(); }

 private:
  ValueId value(ValueId v) {
    auto [at, fresh] = values_.try_emplace(v, kNoValue);
    if (!fresh) return at->second;
    const TensorType& type = graph_.type(v);
    const auto constant =
        std::find_if(graph_.constants.begin(), graph_.constants.end(), [&](const Constant& c) { return c.value == v; });
    const auto state =
        std::find_if(graph_.states.begin(), graph_.states.end(), [&](const State& s) { return s.value == v; });
    const std::string name = cat("value ", v);
    if (constant != graph_.constants.end()) return at->second = b_.constant(constant->literal);
    if (state != graph_.states.end()) return at->second = b_.state({.name = name, .kind = state->kind}, type);
    if (type.shape == shape_ && !gradient_is_input_)
      return at->second = b_.state({.name = name, .kind = StateKind::kFrozen}, type);
    return at->second = b_.input(name, type);
  }

  const Graph& graph_;
  const Shape shape_;
  const bool gradient_is_input_;
  Builder b_;
  std::map<ValueId, ValueId> values_;
};

// All that has the parameter's shape lies in parts along one dimension.
absl::StatusOr<LocalProgram> in_parts(const Graph& update, const Shape& shape, size_t dim, int64_t ways) {
  ShardingPlan plan;
  plan.mesh.axes = {{"axis", ways}};
  auto lies = [&](ValueId v) {
    Sharding s = Sharding::replicated(update.type(v).shape);
    if (update.type(v).shape == shape) s.dims[dim] = {{shape[dim], {0}}};
    return s;
  };
  for (const GraphInput& in : update.inputs) plan.inputs.push_back(lies(in.value));
  for (const State& s : update.states) plan.states.push_back(StateLayout{lies(s.value), lies(s.value)});
  return localize(update, plan);
}

// Collectives of more than single numbers.
UpdateMoves moves_of(const Graph& local, double ways) {
  UpdateMoves moves;
  for (const Node& node : local.nodes) {
    const TensorType& type = local.type(node.inputs.empty() ? node.outputs[0] : node.inputs[0]);
    if (!node.op->collective || elements(type.shape) <= 1) continue;
    const double bytes = static_cast<double>(byte_size(type));
    switch (*node.op->collective) {
      case CollectiveOp::kAllReduce:
        ++moves.summed[bytes];
        break;
      case CollectiveOp::kAllGather:
        ++moves.gathered[bytes * ways];
        break;
      case CollectiveOp::kReduceScatter:  // as long as a gather
      case CollectiveOp::kAllToAll:
        ++moves.gathered[bytes];
        break;
    }
  }
  return moves;
}

std::vector<double> points_of_products(const Graph& graph) {
  std::vector<double> all;
  for (const Node& node : graph.nodes) {
    if (is_product(node)) all.push_back(static_cast<double>(points(bound_formula(graph, node))));
  }
  return all;
}

}  // namespace

void UpdateWork::operator+=(const UpdateWork& other) {
  for (const UpdateProduct& p : other.products) {
    auto alike = std::find_if(products.begin(), products.end(), [&](const UpdateProduct& q) {
      return std::tie(p.m, p.n, p.k, p.element_bytes, p.divided) == std::tie(q.m, q.n, q.k, q.element_bytes, q.divided);
    });
    if (alike == products.end()) {
      products.push_back(p);
    } else {
      alike->count += p.count;
    }
  }
  for (size_t a = 0; a < kUpdateAxes; ++a) {
    for (const auto& [bytes, count] : other.moves[a].gathered) moves[a].gathered[bytes] += count;
    for (const auto& [bytes, count] : other.moves[a].summed) moves[a].summed[bytes] += count;
  }
}

UpdateProducts::UpdateProducts(const Graph& graph) : graph_(graph) {
  if (std::none_of(graph.nodes.begin(), graph.nodes.end(),
                   [](const Node& n) { return n.segment == Segment::kUpdate && is_product(n); }))
    return;
  for (const State& s : graph.states) {
    if (s.kind != StateKind::kParameter || s.next == kNoValue) continue;
    std::set<NodeId> found;
    std::vector<ValueId> front = {s.next};
    bool any = false;
    while (!front.empty()) {
      const ValueId v = front.back();
      front.pop_back();
      const NodeId n = graph.values[static_cast<size_t>(v)].producer;
      // Single numbers (rates, norms) are of all parameters.
      if (n == kNoNode || graph.nodes[static_cast<size_t>(n)].segment != Segment::kUpdate) continue;
      if (elements(graph.type(v).shape) <= 1 || !found.insert(n).second) continue;
      any = any || is_product(graph.nodes[static_cast<size_t>(n)]);
      for (ValueId in : graph.nodes[static_cast<size_t>(n)].inputs) {
        if (in != kNoValue) front.push_back(in);
      }
    }
    if (any) nodes_[s.value].assign(found.begin(), found.end());
  }
}

UpdateWork UpdateProducts::work(ValueId parameter, const std::array<int, kUpdateAxes>& dims) const {
  UpdateWork out;
  const auto at = nodes_.find(parameter);
  if (at == nodes_.end()) return out;
  for (NodeId n : at->second) {
    const Node& node = graph_.nodes[static_cast<size_t>(n)];
    if (!is_product(node)) continue;
    const TensorType& made = graph_.type(node.outputs[0]);
    UpdateProduct product;
    product.m = static_cast<double>(elements(made.shape)) / static_cast<double>(made.shape.back());
    product.n = static_cast<double>(made.shape.back());
    product.element_bytes = static_cast<double>(dtype_size(made.dtype));
    for (const Factor& f : bound_formula(graph_, node).factors) {
      if (f.role == FactorRole::kSum) product.k *= static_cast<double>(f.size);
    }
    out.products.push_back(product);
  }
  const Shape& shape = graph_.type(parameter).shape;
  for (size_t a = 0; a < kUpdateAxes; ++a) {
    if (dims[a] < 0 || shape[static_cast<size_t>(dims[a])] < 2) continue;
    // Ranks with samples of their own have a gradient's sum in parts.
    const bool samples = static_cast<UpdateAxis>(a) == UpdateAxis::kShards;
    const Graph update = UpdateGraph(graph_, parameter, at->second, samples).finish();
    int64_t ways = 2;  // any that divides it
    while (shape[static_cast<size_t>(dims[a])] % ways != 0) ++ways;
    const auto local = in_parts(update, shape, static_cast<size_t>(dims[a]), ways);
    if (!local.ok()) continue;
    const std::vector<double> whole = points_of_products(update), part = points_of_products(local->graph);
    for (size_t k = 0; k < out.products.size() && whole.size() == part.size(); ++k)
      out.products[k].divided[a] = part[k] < whole[k];
    out.moves[a] = moves_of(local->graph, static_cast<double>(ways));
  }
  return out;
}

}  // namespace partita
