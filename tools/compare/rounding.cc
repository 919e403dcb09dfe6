#include "tools/compare/rounding.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/float16.h"

namespace partita {
namespace {

// Draws are of the size of one rounding, which is at most that; a length is off by more than four times what they are
// by chance only where they are few.
constexpr double kLimit = 4, kLimitOfFew = 16;
constexpr double kElementLimit = 24;  // of a single number, whose own draws may be small by chance
constexpr double kShiftLimit = 8;     // of what all numbers are off by together
// In units of a type's roundoff: a constant that is the next number to the right one is off by more than half a
// distance from 1 to the next, by more than which no number is off because it was rounded once.
constexpr double kLeastShift = 0.75;

double largest_finite(DType dtype) {
  return dtype == DType::kF16    ? 65504
         : dtype == DType::kBF16 ? 0x1.FEp127
         : dtype == DType::kF32  ? static_cast<double>(std::numeric_limits<float>::max())
                                 : std::numeric_limits<double>::max();
}

// Below it numbers have fewer digits, or are zero.
double smallest_normal(DType dtype) {
  return dtype == DType::kF16 ? 0x1p-14 : dtype == DType::kF64 ? 0x1p-1022 : 0x1p-126;
}

// Of the same kind where one of them is no number, or too large for the type.
bool same_special(double expected, double found, DType dtype) {
  if (std::isnan(expected) || std::isnan(found)) return std::isnan(expected) && std::isnan(found);
  if (std::isinf(found)) return std::abs(expected) > 0.99 * largest_finite(dtype) && (expected > 0) == (found > 0);
  return false;
}

Deviation of_integers(const DrawnValue& expected, const Tensor& found, const std::vector<bool>& filled) {
  Deviation d;
  int64_t seen = 0;
  for (size_t k = 0; k < found.i.size(); ++k) {
    if (!filled[k]) continue;
    ++seen;
    bool same = found.i[k] == expected.value.i[k];
    for (const Tensor& draw : expected.draws)
      same = same || found.i[k] == draw.i[k] || draw.i[k] != expected.value.i[k];
    if (same) continue;
    d.elements.push_back(static_cast<int64_t>(k));
    d.largest =
        std::max(d.largest, std::abs(static_cast<double>(found.i[k]) - static_cast<double>(expected.value.i[k])));
  }
  d.beyond = !d.elements.empty();
  d.found = seen > 0 ? static_cast<double>(d.elements.size()) / static_cast<double>(seen) : 0;
  return d;
}

// Sums over the elements that are there.
struct Sums {
  double n = 0, value = 0, off = 0, spread = 0;
};

// The square of what rounding does to a number by chance: its own rounding, and what the draws of it say.
double spread_of(const DrawnValue& expected, size_t k, DType dtype, double rounding) {
  const double x = expected.value.f[k], least = smallest_normal(dtype);
  double spread = std::pow(rounding * x, 2) + std::pow(least * unit_roundoff(dtype), 2) +
                  (dtype == DType::kF16 ? 0 : std::pow(least, 2));
  for (const Tensor& draw : expected.draws) {
    const double away = draw.f[k] - x;
    if (std::isfinite(away)) spread += away * away / static_cast<double>(expected.draws.size());
  }
  return spread;
}

}  // namespace

double unit_roundoff(DType dtype) {
  switch (dtype) {
    case DType::kF64:
      return 0x1p-53;
    case DType::kF32:
      return 0x1p-24;
    case DType::kF16:
      return 0x1p-11;
    case DType::kBF16:
      return 0x1p-8;
    default:
      return 0;
  }
}

NodeRounding node_rounding(const Graph& graph, const Node& node) {
  const Formula formula = bound_formula(graph, node);
  double whole = 1, results = 1, compute = 0x1p-53, operands = 0;
  for (const Factor& f : formula.factors) {
    if (f.role == FactorRole::kWhole) whole *= static_cast<double>(std::max<int64_t>(f.size, 1));
  }
  for (ValueId v : node.outputs) results = std::max(results, static_cast<double>(elements(graph.type(v).shape)));
  auto see = [&](ValueId v, bool operand) {
    const double unit = v == kNoValue ? 0 : unit_roundoff(graph.type(v).dtype);
    if (unit > 0x1p-53) compute = 0x1p-24;
    if (operand) operands = std::max(operands, unit);
  };
  for (ValueId v : node.inputs) see(v, true);
  for (ValueId v : node.outputs) see(v, false);
  const double terms = std::max(static_cast<double>(points(formula)) / results, whole),
               sums = compute * std::sqrt(terms);
  // What an op does that keeps a dimension whole may hold what is in between in its operands' type.
  return {whole > 1 ? std::max(sums, operands) : sums, sums};
}

Tensor nearest(Tensor tensor) {
  for (double& x : tensor.f) {
    const float narrow = static_cast<float>(x);
    switch (tensor.type.dtype) {
      case DType::kF32:
        x = narrow;
        break;
      case DType::kBF16:
        x = bf16_to_float(float_to_bf16(narrow));
        break;
      case DType::kF16:
        x = f16_to_float(float_to_f16(narrow));
        break;
      default:
        break;
    }
  }
  return tensor;
}

Tensor perturbed(Tensor tensor, double share, std::mt19937& rng) {
  for (double& x : tensor.f) {
    const uint32_t bits = rng();
    const double size = 0.5 + static_cast<double>(bits >> 1) * 0x1p-31;
    x *= 1 + (bits & 1 ? share : -share) * size;
  }
  return tensor;
}

Deviation deviation(const DrawnValue& expected, const Tensor& found, const std::vector<bool>& filled, double rounding) {
  const DType dtype = found.type.dtype;
  if (!is_float(dtype)) return of_integers(expected, found, filled);
  Deviation d;
  Sums s;
  std::vector<double> offs(found.f.size(), 0), spreads(found.f.size(), 0);
  for (size_t k = 0; k < found.f.size(); ++k) {
    if (!filled[k]) continue;
    const double x = expected.value.f[k], y = found.f[k];
    if (!std::isfinite(x) || !std::isfinite(y)) {
      if (same_special(x, y, dtype)) continue;
      d.elements.push_back(static_cast<int64_t>(k));
      offs[k] = INFINITY;
      continue;
    }
    const double spread = spread_of(expected, k, dtype, rounding);
    offs[k] = y - x;
    spreads[k] = spread;
    s.n += 1;
    s.value += x * x;
    s.off += offs[k] * offs[k];
    s.spread += spread;
  }
  const double mean = s.n > 0 ? s.spread / s.n : 0;
  for (size_t k = 0; k < offs.size(); ++k) {
    const double off = std::abs(offs[k]);
    d.largest = std::max(d.largest, off);
    if (std::isfinite(off) && off > kElementLimit * std::sqrt(spreads[k] + mean))
      d.elements.push_back(static_cast<int64_t>(k));
  }
  const double length = std::sqrt(s.value),
               limit = (kLimit + (s.n > 0 ? kLimitOfFew / std::sqrt(s.n) : 0)) * std::sqrt(s.spread);
  d.found = !d.elements.empty() && length == 0 ? INFINITY : length > 0 ? std::sqrt(s.off) / length : 0;
  if (std::isinf(d.largest)) d.found = INFINITY;
  d.usual = length > 0 ? limit / length : 0;
  d.beyond = !d.elements.empty() || std::sqrt(s.off) > limit;
  if (d.beyond || s.value == 0 || s.n < 2) return d;
  const Shift shift = shift_along(expected, found, filled, rounding, expected.value.f);
  if (!shift.beyond) return d;
  d.beyond = d.of_scale = true;
  d.found = std::abs(shift.found);
  d.usual = shift.usual;
  return d;
}

Shift shift_along(const DrawnValue& expected, const Tensor& found, const std::vector<bool>& filled, double rounding,
                  const std::vector<double>& direction) {
  std::vector<size_t> there;
  std::vector<double> spreads(found.f.size(), 0);
  double mean = 0;
  for (size_t k = 0; k < found.f.size(); ++k) {
    if (!filled[k] || !std::isfinite(expected.value.f[k]) || !std::isfinite(found.f[k])) continue;
    if (direction[k] == 0 || !std::isfinite(direction[k])) continue;
    there.push_back(k);
    spreads[k] = spread_of(expected, k, found.type.dtype, rounding);
    mean += spreads[k];
  }
  if (there.size() < 2) return {};
  mean /= static_cast<double>(there.size());
  // The best estimate of the factor: each element counts by what it says of it, and by how exact it is.
  double along = 0, whole = 0, chance = 0, draws[kDraws] = {};
  auto weight = [&](size_t k) { return direction[k] / (spreads[k] + mean); };
  for (size_t k : there) {
    const double w = weight(k);
    along += (found.f[k] - expected.value.f[k]) * w;
    whole += direction[k] * w;
    chance += spreads[k] * w * w;
    for (size_t p = 0; p < expected.draws.size(); ++p) {
      const double away = expected.draws[p].f[k] - expected.value.f[k];
      if (std::isfinite(away)) draws[p] += away * w;
    }
  }
  double drawn = 0;
  for (double d : draws) drawn += d * d / std::max<double>(1, static_cast<double>(expected.draws.size()));
  Shift s;
  s.found = along / whole;
  auto judge = [&] {
    const double one = std::sqrt(chance) + std::sqrt(drawn);
    s.usual = std::max(kLeastShift * rounding, kShiftLimit * one / whole);
    s.weight = std::abs(along) / one;
    s.beyond = std::isfinite(s.found) && std::abs(s.found) > s.usual;
  };
  judge();
  if (!s.beyond) return s;
  // Elements that should be equal are computed alike, and so rounded alike: they are one.
  std::sort(there.begin(), there.end(),
            [&](size_t a, size_t b) { return std::pair(expected.value.f[a], a) < std::pair(expected.value.f[b], b); });
  double together = 0, alike = 0;
  for (size_t k = 0; k < there.size(); ++k) {
    alike += std::sqrt(spreads[there[k]]) * weight(there[k]);
    if (k + 1 < there.size() && expected.value.f[there[k + 1]] == expected.value.f[there[k]]) continue;
    together += alike * alike;
    alike = 0;
  }
  chance = std::max(chance, together);
  judge();
  return s;
}

}  // namespace partita
