#include "passes/attention_mask.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace partita {
namespace {

constexpr double kMasked = -1e4;  // an additive mask this low or lower hides: exp of it is 0
constexpr int kMaxDepth = 64;
constexpr int64_t kMaxCompared = int64_t{1} << 31;  // points of one comparison

// A constant as numbers, dimensions along which it does not change made 1.
struct Compact {
  Shape shape;
  std::vector<double> values;
};

Compact compact(const Literal& l) {
  Compact c{l.type.shape, {}};
  c.values.resize(static_cast<size_t>(elements(c.shape)));
  for (size_t k = 0; k < c.values.size(); ++k) c.values[k] = element_f(l, static_cast<int64_t>(k));
  for (size_t d = 0; d < c.shape.size(); ++d) {
    int64_t size = c.shape[d], inner = 1, outer = 1;
    for (size_t e = 0; e < c.shape.size(); ++e) (e < d ? outer : inner) *= e == d ? 1 : c.shape[e];
    if (size < 2) continue;
    auto at = [&](int64_t o, int64_t k, int64_t i) { return c.values[static_cast<size_t>((o * size + k) * inner + i)]; };
    bool same = true;
    for (int64_t o = 0; same && o < outer; ++o)
      for (int64_t k = 1; same && k < size; ++k)
        for (int64_t i = 0; same && i < inner; ++i) same = at(o, k, i) == at(o, 0, i);
    if (!same) continue;
    std::vector<double> first;
    for (int64_t o = 0; o < outer; ++o)
      for (int64_t i = 0; i < inner; ++i) first.push_back(at(o, 0, i));
    c.values = std::move(first);
    c.shape[d] = 1;
  }
  return c;
}

bool adds_leading_ones(const Shape& from, const Shape& to) {
  const Shape &small = from.size() < to.size() ? from : to, &large = from.size() < to.size() ? to : from;
  size_t lead = large.size() - small.size();
  return std::all_of(large.begin(), large.begin() + lead, [](int64_t d) { return d == 1; }) && std::equal(small.begin(), small.end(), large.begin() + lead);
}

double compare(std::string_view op, double a, double b) { return op == "eq" ? a == b : op == "ne" ? a != b : op == "lt" ? a < b : a <= b; }

bool is_comparison(std::string_view op) { return op == "eq" || op == "ne" || op == "lt" || op == "le"; }

double to_type(DType t, double x) { return t == DType::kBool ? x != 0 : is_integer(t) ? std::trunc(x) : x; }

}  // namespace

MaskAnalysis::TwoValued MaskAnalysis::two_valued(ValueId v, int depth) const {
  if (auto n = facts_.number(v)) return {kNoValue, *n, *n};
  const Node* node = facts_.graph().producer(v);
  if (node && depth < kMaxDepth) {
    if (auto t = combined(*node, depth)) return *t;
  }
  if (facts_.type(v).dtype == DType::kBool) return {v, 1, 0};
  double unknown = std::numeric_limits<double>::quiet_NaN();
  return {v, unknown, unknown};
}

std::optional<MaskAnalysis::TwoValued> MaskAnalysis::combined(const Node& node, int depth) const {
  std::string_view op = node.op->name;
  auto map = [](TwoValued t, auto f) { return TwoValued{t.condition, f(t.yes), f(t.no)}; };
  auto known = [](const TwoValued& t) { return !std::isnan(t.yes) && !std::isnan(t.no); };
  if (op == "broadcast" || (op == "reshape" && adds_leading_ones(facts_.shape(node.inputs[0]), facts_.shape(node.outputs[0])))) return two_valued(node.inputs[0], depth + 1);
  if (op == "cast") {
    TwoValued t = two_valued(node.inputs[0], depth + 1);
    if (!known(t)) return std::nullopt;
    return map(t, [to = facts_.type(node.outputs[0]).dtype](double x) { return to_type(to, x); });
  }
  if (op == "not") return map(two_valued(node.inputs[0], depth + 1), [](double x) { return x == 0 ? 1.0 : 0.0; });
  if (op == "neg") {
    TwoValued t = two_valued(node.inputs[0], depth + 1);
    return known(t) ? std::optional(map(t, [](double x) { return -x; })) : std::nullopt;
  }
  if (op == "select") {
    TwoValued c = two_valued(node.inputs[0], depth + 1);
    auto a = facts_.number(node.inputs[1]), b = facts_.number(node.inputs[2]);
    if (!a || !b) return std::nullopt;
    return map(c, [&](double x) { return x != 0 ? *a : *b; });
  }
  if (is_comparison(op) || op == "mul" || op == "add" || op == "sub") {
    auto a = facts_.number(node.inputs[0]), b = facts_.number(node.inputs[1]);
    if (a.has_value() == b.has_value()) return std::nullopt;
    TwoValued t = two_valued(a ? node.inputs[1] : node.inputs[0], depth + 1);
    if (!known(t)) return std::nullopt;
    return map(t, [&](double x) {
      double l = a ? *a : x, r = a ? x : *b;
      return op == "mul" ? l * r : op == "add" ? l + r : op == "sub" ? l - r : compare(op, l, r);
    });
  }
  return std::nullopt;
}

MaskAnalysis::Kind MaskAnalysis::literal_kind(const Literal& l) const {
  Compact c = compact(l);
  if (c.values.size() == 1) return c.values[0] != 0 ? Kind::kAlways : Kind::kNever;
  size_t rank = c.shape.size();
  if (rank < 2 || static_cast<int64_t>(c.values.size()) != queries_ * keys_ || c.shape[rank - 2] != queries_ || c.shape[rank - 1] != keys_) return Kind::kOther;
  for (int64_t i = 0; i < queries_; ++i)
    for (int64_t j = 0; j < keys_; ++j) {
      if ((c.values[static_cast<size_t>(i * keys_ + j)] != 0) != (j <= i + keys_ - queries_)) return Kind::kOther;
    }
  return Kind::kCausal;
}

// A comparison of two constants, each a vector along queries or keys or a scalar.
MaskAnalysis::Kind MaskAnalysis::compared(const Node& node) const {
  const Literal *a = facts_.literal(node.inputs[0]), *b = facts_.literal(node.inputs[1]);
  constexpr int64_t kMaxVector = int64_t{1} << 22;
  if (!a || !b || elements(a->type.shape) > kMaxVector || elements(b->type.shape) > kMaxVector) return Kind::kOther;
  Compact x = compact(*a), y = compact(*b);
  struct Along {
    int64_t queries = 0, keys = 0;
  };
  auto along = [&](const Compact& c) -> std::optional<Along> {
    int64_t rank = static_cast<int64_t>(c.shape.size()), n = static_cast<int64_t>(c.values.size());
    int64_t keys = rank > 0 ? c.shape[rank - 1] : 1, queries = rank > 1 ? c.shape[rank - 2] : 1;
    if (keys * queries != n || (keys != 1 && keys != keys_) || (queries != 1 && queries != queries_)) return std::nullopt;
    return Along{queries == 1 ? 0 : keys, keys == 1 ? 0 : 1};
  };
  auto sx = along(x), sy = along(y);
  if (!sx || !sy || queries_ == 0 || keys_ == 0) return Kind::kOther;
  bool by_query = sx->queries != 0 || sy->queries != 0, by_key = sx->keys != 0 || sy->keys != 0;
  int64_t rows = by_query ? queries_ : 1, columns = by_key ? keys_ : 1;
  if (rows > kMaxCompared / columns) return Kind::kOther;
  std::string_view op = node.op->name;
  bool always = true, never = true, causal = by_query && by_key;
  for (int64_t i = 0; i < rows && (always || never || causal); ++i) {
    for (int64_t j = 0; j < columns; ++j) {
      bool holds = compare(op, x.values[static_cast<size_t>(i * sx->queries + j * sx->keys)], y.values[static_cast<size_t>(i * sy->queries + j * sy->keys)]) != 0;
      always &= holds;
      never &= !holds;
      causal &= holds == (j <= i + keys_ - queries_);
    }
  }
  return always ? Kind::kAlways : never ? Kind::kNever : causal ? Kind::kCausal : Kind::kOther;
}

MaskAnalysis::Kind MaskAnalysis::kind(ValueId condition) {
  auto at = kinds_.find(condition);
  if (at != kinds_.end()) return at->second;
  Kind k = Kind::kOther;
  const Node* node = facts_.graph().producer(condition);
  if (const Literal* l = facts_.literal(condition)) {
    k = literal_kind(*l);
  } else if (node && is_comparison(node->op->name)) {
    k = compared(*node);
  }
  kinds_[condition] = k;
  return k;
}

MaskConditions MaskAnalysis::conditions(MaskCondition condition) {
  MaskConditions out;
  std::vector<MaskCondition> open = {condition};
  for (int steps = 0; !open.empty() && steps < 1000; ++steps) {
    MaskCondition c = open.back();
    open.pop_back();
    TwoValued t = two_valued(c.value);
    if (t.condition == kNoValue || (t.yes != 0) == (t.no != 0)) {
      out.never |= (t.yes != 0) == c.negated;
      continue;
    }
    c = {t.condition, c.negated != (t.yes == 0)};
    const Node* node = facts_.graph().producer(c.value);
    std::string_view op = node ? node->op->name : std::string_view();
    if (op == (c.negated ? "or" : "and")) {
      open.push_back({node->inputs[1], c.negated});
      open.push_back({node->inputs[0], c.negated});
      continue;
    }
    Kind k = kind(c.value);
    if (k == Kind::kAlways || k == Kind::kNever) {
      out.never |= (k == Kind::kAlways) == c.negated;
    } else if (k == Kind::kCausal && !c.negated) {
      out.causal = true;
    } else if (k == Kind::kOther && c.negated && is_anti_causal(c.value)) {
      out.causal = true;
    } else if (std::none_of(out.rest.begin(), out.rest.end(), [&](const MaskCondition& r) { return r.value == c.value && r.negated == c.negated; })) {
      out.rest.push_back(c);
    }
  }
  out.rest.insert(out.rest.end(), open.begin(), open.end());
  return out;
}

std::optional<MaskAnalysis::Fill> MaskAnalysis::fill(ValueId additive) {
  auto masked = [](double x) { return x <= kMasked; };
  TwoValued t = two_valued(additive);
  if (t.condition == kNoValue) return t.yes == 0 ? std::optional(Fill{}) : std::nullopt;
  if (t.yes == 0 && masked(t.no)) return Fill{conditions({t.condition, false}), t.no};
  if (t.no == 0 && masked(t.yes)) return Fill{conditions({t.condition, true}), t.yes};
  return literal_fill(t.condition);
}

}  // namespace partita
