#include "tests/ir/support/drawn_use.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "base/cat.h"
#include "ir/graph/evaluate.h"

namespace partita {
namespace {

double draw_float(Draw how, double fill, std::mt19937_64& rng) {
  switch (how) {
    case Draw::kPositive:
      return uniform_draw(rng, 0.5, 2);
    case Draw::kUnit:
      return uniform_draw(rng, -0.9, 0.9);
    case Draw::kAwayFromZero:
      return uniform_draw(rng, 0.3, 2) * (rng() % 2 ? 1 : -1);
    case Draw::kFill:
      return fill;
    default:
      return std::normal_distribution<double>()(rng);
  }
}

int64_t draw_integer(const CaseInput& in, std::mt19937_64& rng) {
  auto below = [&](int64_t n) { return static_cast<int64_t>(rng() % static_cast<uint64_t>(n)); };
  switch (in.draw) {
    case Draw::kIndex:
      return below(in.below);
    case Draw::kSignedIndex:
      return below(2 * in.below) - in.below;
    case Draw::kBool:
      return below(2);
    case Draw::kFill:
      return static_cast<int64_t>(in.fill);
    default:
      return is_unsigned(in.type.dtype) ? below(10) : below(19) - 9;
  }
}

}  // namespace

std::vector<OpCase> all_op_cases() {
  std::vector<OpCase> cases = op_cases();
  for (OpCase& c : nn_op_cases()) cases.push_back(std::move(c));
  return cases;
}

double uniform_draw(std::mt19937_64& rng, double low, double high) {
  return std::uniform_real_distribution<double>(low, high)(rng);
}

Tensor draw(const CaseInput& in, std::mt19937_64& rng) {
  Tensor t = Tensor::zeros(in.type);
  for (double& x : t.f) x = draw_float(in.draw, in.fill, rng);
  for (int64_t& x : t.i) x = draw_integer(in, rng);
  if (in.draw == Draw::kDistinct) {
    for (size_t k = 0; k < t.f.size(); ++k)
      t.f[k] = (static_cast<double>(k) - static_cast<double>(t.f.size() / 2)) * 0.25 + 0.13;
    std::shuffle(t.f.begin(), t.f.end(), rng);
  }
  if (in.draw == Draw::kIota) std::iota(t.i.begin(), t.i.end(), int64_t{0});
  if (in.draw == Draw::kDistinctIndex) {
    for (size_t k = 0; k < t.i.size(); k += static_cast<size_t>(in.below)) {
      std::vector<int64_t> order(in.below);
      for (int64_t j = 0; j < in.below; ++j) order[j] = j;
      std::shuffle(order.begin(), order.end(), rng);
      for (size_t j = 0; j < order.size() && k + j < t.i.size(); ++j) t.i[k + j] = order[j];
    }
  }
  return t;
}

DrawnUse::DrawnUse(const OpCase& the_case, uint64_t seed) : c(the_case), op(*find_op(the_case.op)) {
  std::mt19937_64 rng(seed);
  for (const CaseInput& in : c.inputs) {
    inputs.push_back(in.type.dtype == DType::kInvalid ? Tensor{} : draw(in, rng));
    types.push_back(in.type);
  }
}

std::vector<Tensor> DrawnUse::run(const OpDef& op, const Attrs& attrs, const std::vector<Tensor>& inputs) {
  std::vector<const Tensor*> in;
  for (const Tensor& t : inputs) in.push_back(t.type.dtype == DType::kInvalid ? nullptr : &t);
  return evaluate_op(op, attrs, in);
}

std::string describe(const OpCase& c) {
  std::string s = c.name + " (";
  for (const CaseInput& in : c.inputs) append(s, to_string(in.type), " ");
  return s + ")";
}

std::string difference(const Tensor& a, const Tensor& b, double tolerance) {
  if (a.type != b.type) return cat(to_string(a.type), " and ", to_string(b.type));
  for (size_t k = 0; k < a.f.size(); ++k) {
    if (std::isnan(a.f[k]) && std::isnan(b.f[k])) continue;
    if (a.f[k] == b.f[k] || std::fabs(a.f[k] - b.f[k]) <= tolerance * std::max(1.0, std::fabs(b.f[k]))) continue;
    return cat("element ", k, " of ", to_string(a.type), ": ", a.f[k], " and ", b.f[k]);
  }
  for (size_t k = 0; k < a.i.size(); ++k) {
    if (a.i[k] != b.i[k]) return cat("element ", k, " of ", to_string(a.type), ": ", a.i[k], " and ", b.i[k]);
  }
  return "";
}

}  // namespace partita
