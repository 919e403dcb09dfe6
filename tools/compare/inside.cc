#include "tools/compare/inside.h"

#include <algorithm>
#include <map>

#include "ir/graph/evaluate.h"
#include "tools/verify/layout/serial_values.h"

namespace partita {
namespace {

constexpr double kHeavy = 4e6;          // floating point operations from which draws are made of one
constexpr double kFactor = 0x1p-20;     // so far off, an end changes in proportion and is still exact to many digits
constexpr size_t kMostDirections = 24;  // of one end

bool moves(const Node& node) { return verifier::movement_of(*node.op) != verifier::Movement::kNone; }

// A captured operand, or what was made of one.
const Tensor* as_is(size_t, size_t, Tensor&) { return nullptr; }

// The same distance from `value` as `draw`, in another direction.
Tensor mirrored(const Tensor& value, const Tensor& draw, std::mt19937& rng) {
  Tensor t = draw;
  for (size_t k = 0; k < t.f.size(); ++k) {
    if (rng() & 1) t.f[k] = value.f[k] - (draw.f[k] - value.f[k]);
  }
  return t;
}

}  // namespace

Inside::Inside(const Graph& graph, const KnownValue& end) : graph_(graph), result_(end.result) {
  std::map<int64_t, const KnownValue*> found = {{end.execution, &end}};
  std::vector<const KnownValue*> todo = {&end};
  while (!todo.empty()) {
    const KnownValue* v = todo.back();
    todo.pop_back();
    for (const auto& operand : v->operands) {
      if (operand != nullptr && !operand->captured && found.emplace(operand->execution, operand.get()).second)
        todo.push_back(operand.get());
    }
  }
  std::map<int64_t, int> place;
  for (const auto& [execution, v] : found) {
    const Node& node = graph.nodes[static_cast<size_t>(v->node)];
    place[execution] = static_cast<int>(order_.size());
    order_.push_back(v);
    std::vector<int>& inner = inner_.emplace_back();
    for (const auto& operand : v->operands) {
      inner.push_back(operand == nullptr || operand->captured ? -1 : place.at(operand->execution));
      if (operand != nullptr) nodes_.insert(operand->movers.begin(), operand->movers.end());
    }
    if (!node.op->view) nodes_.insert(v->node);
    flops_ += node_flops(graph, node);
  }
}

// From an execution on; those before are as they are. `operand` may put another tensor in place of a captured one.
Tensor Inside::run(size_t first, const Operand& operand, const Change& change) const {
  std::vector<std::vector<Tensor>> results(order_.size());
  std::vector<bool> changed(order_.size(), false);
  for (size_t e = first; e < order_.size(); ++e) {
    const KnownValue& v = *order_[e];
    const Node& node = graph_.nodes[static_cast<size_t>(v.node)];
    changed[e] = first == 0 || e == first;
    for (int from : inner_[e]) changed[e] = changed[e] || (from >= 0 && changed[static_cast<size_t>(from)]);
    if (!changed[e]) continue;
    std::vector<Tensor> own(v.operands.size());
    std::vector<const Tensor*> in;
    for (size_t k = 0; k < v.operands.size(); ++k) {
      const int from = inner_[e][k];
      const KnownValue* x = v.operands[k].get();
      const bool other = from >= 0 && changed[static_cast<size_t>(from)];
      if (other) own[k] = results[static_cast<size_t>(from)][x->result];
      const Tensor* as_is = x == nullptr ? nullptr : other ? &own[k] : &x->value;
      const Tensor* put = x == nullptr ? nullptr : operand(e, k, own[k]);
      in.push_back(put != nullptr ? put : as_is);
    }
    results[e] = evaluate_op(*node.op, node.attrs, in);
    change(e, results[e]);
  }
  return std::move(results.back()[result_]);
}

std::vector<Tensor> Inside::draws(const std::vector<WrittenBy>& writers) const {
  const Node& last = graph_.nodes[static_cast<size_t>(order_.back()->node)];
  const size_t drawn = flops_ > kHeavy ? 1 : kDraws - 1;
  std::vector<Tensor> all;
  std::vector<NodeRounding> rounding;
  for (const KnownValue* v : order_) {
    const Node& node = graph_.nodes[static_cast<size_t>(v->node)];
    rounding.push_back(moves(node) ? NodeRounding{} : node_rounding(graph_, node));
  }
  for (size_t p = 0; p < drawn; ++p) {
    std::mt19937 rng(static_cast<uint32_t>(order_.back()->node) * 31 + static_cast<uint32_t>(p) + 1);
    auto operand = [&](size_t e, size_t k, Tensor& own) -> const Tensor* {
      const KnownValue& x = *order_[e]->operands[k];
      if (inner_[e][k] < 0) {
        own = x.others.empty() ? x.value : x.others[p % x.others.size()];
        const double unit = unit_roundoff(own.type.dtype);
        if (unit > unit_roundoff(DType::kF32) &&
            std::find_first_of(x.writers.begin(), x.writers.end(), writers.begin(), writers.end()) != x.writers.end())
          own = perturbed(std::move(own), unit, rng);
      }
      if (is_float(own.type.dtype)) own = perturbed(std::move(own), rounding[e].operand, rng);
      return &own;
    };
    auto change = [&](size_t e, std::vector<Tensor>& results) {
      for (Tensor& t : results) {
        const bool moved = moves(graph_.nodes[static_cast<size_t>(order_[e]->node)]);
        const double share = moved ? 0 : rounding[e].result + unit_roundoff(t.type.dtype);
        if (share > 0) t = perturbed(std::move(t), share, rng);
      }
    };
    all.push_back(run(0, operand, change));
  }
  std::mt19937 rng(static_cast<uint32_t>(last.outputs[0]));
  while (all.size() + 1 < kDraws) all.push_back(mirrored(order_.back()->value, all[0], rng));
  all.push_back(run(0, as_is, [](size_t, std::vector<Tensor>& results) {
    for (Tensor& t : results) t = nearest(std::move(t));
  }));
  return all;
}

std::vector<Inside::Direction> Inside::directions() const {
  std::vector<Direction> all;
  const std::vector<double>& end = order_.back()->value.f;
  auto add = [&](NodeId node, const Tensor& changed) {
    Direction d{node, {}};
    d.change.resize(end.size());
    for (size_t k = 0; k < end.size(); ++k) d.change[k] = (changed.f[k] - end[k]) / kFactor;
    all.push_back(std::move(d));
  };
  auto scale = [](Tensor& t) {
    for (double& x : t.f) x *= 1 + kFactor;
  };
  for (size_t e = 0; e < order_.size() && all.size() < kMostDirections; ++e) {
    const KnownValue& v = *order_[e];
    if (moves(graph_.nodes[static_cast<size_t>(v.node)]) || !is_float(v.value.type.dtype)) continue;
    add(v.node, run(e, as_is, [&](size_t at, std::vector<Tensor>& results) {
          if (at == e) scale(results[v.result]);
        }));
  }
  return all;
}

}  // namespace partita
