#include "partitioner/follow/layout_chooser.h"

#include <algorithm>
#include <numeric>
#include <set>

#include "ir/mesh/factor_split.h"

namespace partita {
namespace {

// Operations (or trained elements) per byte moved below which a split is not worth its communication.
constexpr double kLeastGain = 0.25;
// What a device does in the time that a byte takes to another one, on today's of both.
constexpr double kOperationsPerByte = 1000;

// Cuts `pieces` of one dimension at the boundaries of `other`. False where they do not nest.
bool cut_at(std::vector<Piece>& pieces, const std::vector<Piece>& other) {
  std::vector<Piece> out;
  size_t j = 0;
  int64_t left = other.empty() ? 1 : other[0].size;
  for (Piece p : pieces) {
    bool first = true;
    while (p.size > 1) {
      while (left == 1 && j + 1 < other.size()) left = other[++j].size;
      int64_t common = std::min(p.size, left);
      if (common < 1 || p.size % common != 0 || left % common != 0) return false;
      out.push_back({common, first ? p.axes : std::vector<int>{}});
      p.size /= common;
      left /= common;
      first = false;
      if (common == 1) return false;
    }
  }
  if (out.empty()) out.push_back({1, {}});
  pieces = std::move(out);
  return true;
}

}  // namespace

bool add_axis(Sharding& base, const Sharding& more, int axis, const Mesh& mesh) {
  Sharding result = base;
  for (size_t d = 0; d < result.dims.size(); ++d) {
    std::vector<Piece> a = result.dims[d], b = more.dims[d];
    if (!cut_at(a, b) || !cut_at(b, a) || a.size() != b.size()) return false;
    for (size_t k = 0; k < a.size(); ++k) {
      if (b[k].axes.empty()) continue;
      a[k].axes.push_back(axis);
    }
    for (const Piece& piece : a) {
      if (piece.size % mesh.ways(piece.axes) != 0) return false;
    }
    result.dims[d] = std::move(a);
  }
  base = normalized(std::move(result));
  return true;
}

namespace {

int64_t smallest_piece(const PropagatedFactor& factor) {
  int64_t least = 0;
  for (const auto& [v, sharding] : factor.values) {
    for (const auto& dim : sharding.dims) {
      for (const Piece& p : dim) {
        if (!p.axes.empty()) least = least == 0 ? p.size : std::min(least, p.size);
      }
    }
  }
  return least;
}

}  // namespace

const std::vector<size_t>& LayoutChooser::factors_of(ValueId v) const {
  static const std::vector<size_t> kNone;
  auto at = factors_of_.find(v);
  return at == factors_of_.end() ? kNone : at->second;
}

Sharding LayoutChooser::sharding(ValueId v) const {
  auto at = chosen_.find(v);
  return at == chosen_.end() ? Sharding::replicated(graph_.type(v).shape) : at->second;
}

// Every factor that some node could split n ways, each once.
std::vector<PropagatedFactor> LayoutChooser::candidates(AxisRole role, int64_t n) const {
  std::vector<PropagatedFactor> all;
  std::map<ValueId, std::vector<Sharding>> known;
  auto seed = [&](ValueId v, const Sharding& s) {
    const auto& have = known[v];
    if (std::find(have.begin(), have.end(), s) != have.end()) return;
    all.push_back(propagation_.propagate(v, s, n));
    for (const auto& [value, sharding] : all.back().values) known[value].push_back(sharding);
  };
  if (role == AxisRole::kSequence) {
    for (const GraphInput& in : graph_.inputs) {
      const Shape& shape = graph_.type(in.value).shape;
      for (size_t d = 1; in.kind == InputKind::kData && d < shape.size(); ++d) {
        if (shape[d] % n != 0 || shape[d] < n) continue;
        Sharding s = Sharding::replicated(shape);
        s.dims[d] = {{shape[d], {0}}};
        seed(in.value, normalized(s));
      }
    }
    return all;
  }
  for (NodeId node : propagation_.forward_nodes()) {
    const Formula& f = propagation_.formula(node);
    const Node& at = graph_.nodes[node];
    bool work =
        std::any_of(f.factors.begin(), f.factors.end(), [](const Factor& x) { return x.role == FactorRole::kSum; }) ||
        at.op->kernel;
    if (!work) continue;
    FactorSplit split;
    for (size_t k = 0; k < f.factors.size(); ++k) {
      const Factor& factor = f.factors[k];
      if (factor.role == FactorRole::kWhole || factor.size < std::max<int64_t>(n, 2) || factor.size % n != 0) continue;
      split.axes.assign(f.factors.size(), {});
      split.axes[k] = {0};
      size_t input = 0;
      for (ValueId v : at.inputs) {
        if (v == kNoValue) continue;
        Sharding s = operand_sharding(f, f.inputs[input++], split);
        if (s.is_split()) {
          seed(v, s);
          break;
        }
      }
    }
  }
  return all;
}

bool LayoutChooser::fits(const PropagatedFactor& factor, int axis) const {
  for (const auto& [v, s] : factor.values) {
    Sharding both = sharding(v);
    if (!add_axis(both, s, axis, mesh_)) return false;
  }
  return true;
}

void LayoutChooser::take(const PropagatedFactor& factor, int axis) {
  ChosenFactor chosen{axis,
                      smallest_piece(factor),
                      {},
                      factor.nodes.size(),
                      factor.flops,
                      factor.moved_bytes,
                      factor.parameter_elements};
  for (const auto& [v, s] : factor.values) {
    Sharding both = sharding(v);
    if (add_axis(both, s, axis, mesh_)) chosen_[v] = std::move(both);
    factors_of_[v].push_back(factors_.size());
    chosen.values.push_back(v);
  }
  factors_.push_back(std::move(chosen));
}

double LayoutChooser::cost() const {
  double sum = gathered_bytes_ * kOperationsPerByte;
  for (NodeId n : propagation_.forward_nodes()) {
    auto at = ways_.find(n);
    sum += propagation_.flops(n) / static_cast<double>(at == ways_.end() ? 1 : at->second);
  }
  return sum;
}

double LayoutChooser::choose(int axis, AxisRole role, bool gather,
                             const std::function<bool(const PropagatedFactor&)>& allowed) {
  std::vector<PropagatedFactor> all = candidates(role, mesh_.axes[axis].size);
  std::vector<double> gain;
  for (const PropagatedFactor& s : all) {
    bool data =
        std::any_of(s.values.begin(), s.values.end(), [&](const auto& v) { return propagation_.is_data(v.first); });
    bool wanted = role == AxisRole::kSequence ? !s.sums_parameters && s.flops > 0
                  : role == AxisRole::kExpert ? !data && s.batches_parameters
                                              : !data && s.parameter_elements > 0;
    wanted = wanted && (gather || s.gathered_bytes == 0) && (!allowed || allowed(s));
    double value = (s.flops / sample_parts_ + 2.0 * static_cast<double>(s.parameter_elements)) /
                   (s.moved_bytes / sample_parts_ + 1);
    gain.push_back(wanted && (value >= kLeastGain || role == AxisRole::kSequence) ? value : -1);
  }
  std::vector<size_t> order(all.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return gain[a] > gain[b]; });
  std::set<NodeId> taken;
  double divided = 0, total = 0;
  for (size_t k : order) {
    if (gain[k] < 0) break;
    const auto& nodes = all[k].nodes;
    bool free = std::none_of(nodes.begin(), nodes.end(), [&](NodeId n) { return taken.count(n) > 0; });
    if (!free || !fits(all[k], axis)) continue;
    take(all[k], axis);
    taken.insert(nodes.begin(), nodes.end());
    gathered_bytes_ += all[k].gathered_bytes;
    for (NodeId n : nodes) ways_.try_emplace(n, 1).first->second *= mesh_.axes[axis].size;
    divided += all[k].flops;
  }
  for (NodeId n : propagation_.forward_nodes()) total += propagation_.flops(n);
  return total > 0 ? divided / total : 0;
}

}  // namespace partita
