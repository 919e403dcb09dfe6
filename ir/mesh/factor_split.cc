// A dimension of pieces, say [8@data][48], meets a dimension of factors, say (a=4 b=96): both are walked from the
// outside by the product of what was passed. A split piece can be followed where it starts at a factor's start; where
// it starts inside a factor, the factor is cut there.
#include "ir/mesh/factor_split.h"

#include <algorithm>
#include <map>

#include "base/cat.h"
#include "base/status.h"

namespace partita {
namespace {

// Cuts factor `f` into an outer part of size `outer` and the rest, wherever it stands.
void cut(Formula& formula, int f, int64_t outer) {
  Factor inner = formula.factors[f];
  inner.size /= outer;
  inner.name += "_";
  formula.factors[f].size = outer;
  int added = static_cast<int>(formula.factors.size());
  formula.factors.push_back(std::move(inner));
  auto visit = [&](std::vector<FormulaOperand>& operands) {
    for (FormulaOperand& operand : operands) {
      for (auto& dim : operand.dims) {
        auto at = std::find(dim.begin(), dim.end(), f);
        if (at != dim.end()) dim.insert(at + 1, added);
      }
    }
  };
  visit(formula.inputs);
  visit(formula.outputs);
}

// The pieces of one dimension, so that none goes on past a factor that its outer axes split into single elements:
// [8@x,y] over (a=2 b=4) with two ranks along x is [2@x][4@y].
std::vector<Piece> pieces_within(const Formula& formula, const std::vector<int>& dim, const std::vector<Piece>& pieces,
                                 const Mesh& mesh) {
  std::vector<Piece> out;
  int64_t passed = 1;
  for (Piece p : pieces) {
    int64_t start = 1;
    for (size_t k = 0; k < dim.size() && p.axes.size() > 1; start *= formula.factors[dim[k++]].size) {
      int64_t size = formula.factors[dim[k]].size, outer = 1;
      if (start != passed || size == 1 || size % mesh.ways(p.axes) == 0) continue;
      size_t n = 0;
      while (n < p.axes.size() && outer < size) outer *= mesh.axes[p.axes[n++]].size;
      if (outer != size || n == p.axes.size() || p.size % size != 0) break;
      out.push_back({size, {p.axes.begin(), p.axes.begin() + static_cast<int64_t>(n)}});
      p.axes.erase(p.axes.begin(), p.axes.begin() + static_cast<int64_t>(n));
      p.size /= size;
      passed *= size;
    }
    passed *= p.size;
    out.push_back(std::move(p));
  }
  return out;
}

// The same; nothing is copied where no piece has several axes. `cut` is where those that are made live.
const std::vector<Piece>& pieces_to_walk(const Formula& formula, const std::vector<int>& dim,
                                         const std::vector<Piece>& pieces, const Mesh& mesh, std::vector<Piece>& cut) {
  const bool several = std::any_of(pieces.begin(), pieces.end(), [](const Piece& p) { return p.axes.size() > 1; });
  if (!several) return pieces;
  return cut = pieces_within(formula, dim, pieces, mesh);
}

// Calls start(factor, piece) for each split piece that starts at a factor of size > 1, inside(factor, outer) for one
// that starts within a factor.
template <typename Start, typename Inside>
void walk(const Formula& formula, const std::vector<int>& dim, const std::vector<Piece>& pieces, Start start,
          Inside inside) {
  int64_t passed = 1;
  for (const Piece& piece : pieces) {
    if (!piece.axes.empty()) {
      int64_t before = 1;
      for (int f : dim) {
        int64_t size = formula.factors[f].size;
        if (before == passed && size > 1) {
          start(f, piece);
          break;
        }
        if (before < passed && passed < before * size) {
          if (passed % before == 0 && (before * size) % passed == 0) inside(f, passed / before);
          break;
        }
        before *= size;
      }
    }
    passed *= piece.size;
  }
}

// The factor that a piece of dimension d starts within, and how much of it is outside; {-1, 0}: there is none.
std::pair<int, int64_t> next_cut(const Formula& formula, bool output, size_t operand, size_t d,
                                 const Sharding& sharding, const Mesh& mesh) {
  std::pair<int, int64_t> found{-1, 0};
  std::vector<Piece> pieces;
  const auto& dim = (output ? formula.outputs : formula.inputs)[operand].dims[d];
  walk(
      formula, dim, pieces_to_walk(formula, dim, sharding.dims[d], mesh, pieces), [](int, const Piece&) {},
      [&](int f, int64_t outer) {
        if (found.first < 0 && formula.factors[f].role != FactorRole::kWhole) found = {f, outer};
      });
  return found;
}

}  // namespace

void refine(Formula& formula, bool output, size_t operand, const Sharding& sharding, const Mesh& mesh) {
  for (size_t d = 0; d < sharding.dims.size(); ++d) {
    for (auto at = next_cut(formula, output, operand, d, sharding, mesh); at.first >= 0;
         at = next_cut(formula, output, operand, d, sharding, mesh))
      cut(formula, at.first, at.second);
  }
}

bool is_refined(const Formula& formula, bool output, size_t operand, const Sharding& sharding, const Mesh& mesh) {
  for (size_t d = 0; d < sharding.dims.size(); ++d) {
    if (next_cut(formula, output, operand, d, sharding, mesh).first >= 0) return false;
  }
  return true;
}

namespace {

// Calls start(factor, piece) for each split piece of an operand that starts at a factor.
template <typename Start>
void each_start(const Formula& formula, const FormulaOperand& operand, const Sharding& sharding, const Mesh& mesh,
                Start start) {
  std::vector<Piece> cut;
  for (size_t d = 0; d < sharding.dims.size(); ++d) {
    walk(formula, operand.dims[d], pieces_to_walk(formula, operand.dims[d], sharding.dims[d], mesh, cut), start,
         [](int, int64_t) {});
  }
}

}  // namespace

std::vector<std::pair<int, std::vector<int>>> proposals(const Formula& formula, const FormulaOperand& operand,
                                                        const Sharding& sharding, const Mesh& mesh) {
  std::vector<std::pair<int, std::vector<int>>> out;
  each_start(formula, operand, sharding, mesh, [&](int f, const Piece& piece) {
    const Factor& factor = formula.factors[f];
    std::vector<int> axes = piece.axes;  // as many of the outer ones as the factor can take
    while (!axes.empty() && factor.size % mesh.ways(axes) != 0) axes.pop_back();
    if (factor.role != FactorRole::kWhole && !axes.empty()) out.push_back({f, std::move(axes)});
  });
  return out;
}

std::vector<std::pair<int, std::vector<int>>> split_whole_factors(const Formula& formula, const FormulaOperand& operand,
                                                                  const Sharding& sharding, const Mesh& mesh) {
  std::vector<std::pair<int, std::vector<int>>> out;
  each_start(formula, operand, sharding, mesh, [&](int f, const Piece& piece) {
    if (formula.factors[f].role == FactorRole::kWhole) out.push_back({f, piece.axes});
  });
  return out;
}

namespace {

// Where one way of an operand has an axis.
enum class Place { kNowhere, kAtFactor, kElsewhere };

Place place_of(const Formula& formula, size_t operand, const Sharding& way, int axis, int factor, const Mesh& mesh) {
  for (auto& [f, axes] : proposals(formula, formula.inputs[operand], way, mesh)) {
    if (std::count(axes.begin(), axes.end(), axis)) return f == factor ? Place::kAtFactor : Place::kElsewhere;
  }
  return way.is_split_by(axis) ? Place::kElsewhere : Place::kNowhere;
}

}  // namespace

int64_t bytes_moved(const Formula& formula, const std::vector<OperandLayouts>& inputs, int64_t output_bytes, int axis,
                    int factor, const Mesh& mesh) {
  int64_t total = formula.factors[factor].role == FactorRole::kParallel ? 0 : 2 * output_bytes;
  for (size_t k = 0; k < inputs.size(); ++k) {
    bool wanted = has_factor(formula.inputs[k], factor);
    int64_t least = -1;
    for (const Sharding& way : inputs[k].ways) {
      Place place = place_of(formula, k, way, axis, factor, mesh);
      bool fits = place == Place::kNowhere || (wanted && place == Place::kAtFactor);
      int64_t moved = fits ? 0 : wanted ? inputs[k].bytes / mesh.axes[axis].size : inputs[k].bytes;
      if (least < 0 || moved < least) least = moved;
    }
    total += std::max<int64_t>(least, 0);
  }
  return total;
}

FactorSplit choose_split(const Formula& formula, const std::vector<OperandLayouts>& inputs, int64_t output_bytes,
                         const Mesh& mesh) {
  struct Vote {
    int64_t pinned = 0, bytes = 0;
  };
  std::map<std::pair<int, int>, Vote> votes;  // (axis, factor)
  std::vector<std::pair<std::pair<bool, int64_t>, std::pair<int, std::vector<int>>>> asked;
  for (size_t k = 0; k < inputs.size(); ++k) {
    if (inputs[k].ways.empty()) continue;
    for (auto& [factor, axes] : proposals(formula, formula.inputs[k], inputs[k].ways.front(), mesh)) {
      for (int a : axes) {
        Vote& vote = votes[{a, factor}];
        vote.bytes += inputs[k].bytes + 1;
        if (inputs[k].pinned) vote.pinned += inputs[k].bytes + 1;
      }
      asked.push_back({{inputs[k].pinned, inputs[k].bytes}, {factor, axes}});
    }
  }
  std::map<int, std::pair<int, std::tuple<int64_t, int64_t, int64_t>>>
      best;  // axis -> factor, its rank (less is better)
  for (const auto& [key, vote] : votes) {
    auto [axis, factor] = key;
    std::tuple<int64_t, int64_t, int64_t> rank{
        -vote.pinned, bytes_moved(formula, inputs, output_bytes, axis, factor, mesh), -vote.bytes};
    auto [at, fresh] = best.try_emplace(axis, factor, rank);
    if (!fresh && rank < at->second.second) at->second = {factor, rank};
  }
  std::stable_sort(asked.begin(), asked.end(), [](const auto& a, const auto& b) { return a.first > b.first; });
  FactorSplit split;
  split.axes.resize(formula.factors.size());
  for (const auto& [weight, proposal] : asked) {
    for (int a : proposal.second) {
      auto& chosen = split.axes[proposal.first];
      if (best[a].first != proposal.first || std::find(chosen.begin(), chosen.end(), a) != chosen.end()) continue;
      if (formula.factors[proposal.first].size % (mesh.ways(chosen) * mesh.axes[a].size) == 0) chosen.push_back(a);
    }
  }
  return split;
}

Sharding operand_sharding(const Formula& formula, const FormulaOperand& operand, const FactorSplit& split) {
  Sharding s;
  for (const auto& dim : operand.dims) {
    std::vector<Piece> pieces;
    for (int f : dim) pieces.push_back({formula.factors[f].size, split.axes[f]});
    if (pieces.empty()) pieces.push_back({1, {}});
    s.dims.push_back(std::move(pieces));
  }
  return normalized(std::move(s));
}

std::optional<FactorSplit> split_for_output(const Formula& formula, const FormulaOperand& output,
                                            const Sharding& sharding, const Mesh& mesh) {
  FactorSplit split;
  split.axes.resize(formula.factors.size());
  for (auto& [factor, axes] : proposals(formula, output, sharding, mesh)) {
    if (formula.factors[factor].role != FactorRole::kParallel || !split.axes[factor].empty()) return std::nullopt;
    split.axes[factor] = axes;
  }
  Sharding got = operand_sharding(formula, output, split);
  Sharding wanted = normalized(sharding);
  if (got.dims != wanted.dims) return std::nullopt;
  return split;
}

Formula local_formula(const Formula& formula, const FactorSplit& split, const Mesh& mesh) {
  Formula local = formula;
  for (size_t f = 0; f < split.axes.size(); ++f) local.factors[f].size /= mesh.ways(split.axes[f]);
  return local;
}

}  // namespace partita
