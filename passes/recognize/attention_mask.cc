#include "passes/recognize/attention_mask.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "absl/container/flat_hash_set.h"
#include "ir/graph/evaluate.h"

namespace partita {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
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
    auto at = [&](int64_t o, int64_t k, int64_t i) {
      return c.values[static_cast<size_t>((o * size + k) * inner + i)];
    };
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
  return std::all_of(large.begin(), large.begin() + lead, [](int64_t d) { return d == 1; }) &&
         std::equal(small.begin(), small.end(), large.begin() + lead);
}

// How far a step along queries and keys is in a compact constant; 0 where it is the same for all. Nothing for other
// shapes.
struct Steps {
  int64_t queries = 0, keys = 0;
};

std::optional<Steps> steps(const Compact& c, int64_t queries, int64_t keys) {
  size_t rank = c.shape.size();
  int64_t k = rank > 0 ? c.shape[rank - 1] : 1, q = rank > 1 ? c.shape[rank - 2] : 1;
  bool fits = k * q == static_cast<int64_t>(c.values.size()) && (k == 1 || k == keys) && (q == 1 || q == queries);
  if (!fits || c.values.empty()) return std::nullopt;
  return Steps{q == 1 ? 0 : k, k == 1 ? 0 : 1};
}

double compare(std::string_view op, double a, double b) {
  return op == "eq" ? a == b : op == "ne" ? a != b : op == "lt" ? a < b : a <= b;
}

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
  if (op == "broadcast" ||
      (op == "reshape" && adds_leading_ones(facts_.shape(node.inputs[0]), facts_.shape(node.outputs[0]))))
    return two_valued(node.inputs[0], depth + 1);
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

// What a condition on rows x columns is; 1 row (column): the same for all queries (keys).
MaskAnalysis::Kind MaskAnalysis::kind_of(int64_t rows, int64_t columns, bool ordered,
                                         const std::function<bool(int64_t, int64_t)>& holds) const {
  bool whole = rows == queries_ && columns == keys_, always = true, never = true, causal = whole, anti = whole;
  auto look_at = [&](int64_t i, int64_t j) {
    bool h = holds(i, j), visible = j <= i + keys_ - queries_;
    always &= h;
    never &= !h;
    causal &= h == visible;
    anti &= h != visible;
  };
  for (int64_t i = 0; i < rows && (always || never || causal || anti); ++i) {
    int64_t diagonal = i + keys_ - queries_;
    for (int64_t j = 0; j < columns; ++j) {
      if (ordered && j > 0 && j < diagonal) j = std::min(diagonal, columns - 1);
      if (ordered && j > 0 && j > diagonal + 1) j = columns - 1;
      look_at(i, j);
    }
  }
  return always   ? Kind::kAlways
         : never  ? Kind::kNever
         : causal ? Kind::kCausal
         : anti   ? Kind::kAntiCausal
                  : Kind::kOther;
}

MaskAnalysis::Kind MaskAnalysis::literal_kind(const Literal& l) const {
  Compact c = compact(l);
  auto along = steps(c, queries_, keys_);
  if (!along) return Kind::kOther;
  return kind_of(along->queries ? queries_ : 1, along->keys ? keys_ : 1, false, [&](int64_t i, int64_t j) {
    return c.values[static_cast<size_t>(i * along->queries + j * along->keys)] != 0;
  });
}

// A comparison of two constants, each a vector along queries or keys or a scalar.
MaskAnalysis::Kind MaskAnalysis::compared(const Node& node) {
  const Literal *a = constant(node.inputs[0]), *b = constant(node.inputs[1]);
  if (!a || !b) return Kind::kOther;
  Compact x = compact(*a), y = compact(*b);
  auto sx = steps(x, queries_, keys_), sy = steps(y, queries_, keys_);
  if (!sx || !sy) return Kind::kOther;
  int64_t rows = sx->queries || sy->queries ? queries_ : 1, columns = sx->keys || sy->keys ? keys_ : 1;
  std::string_view op = node.op->name;
  auto ascends = [](const Compact& c) { return std::is_sorted(c.values.begin(), c.values.end()); };
  bool ordered = op != "eq" && op != "ne" && !(sx->keys && sy->keys) && ascends(sx->keys ? x : y);
  if (!ordered && rows > kMaxCompared / columns) return Kind::kOther;
  auto with = [&](auto holds) {
    return kind_of(rows, columns, ordered, [&](int64_t i, int64_t j) {
      return holds(x.values[static_cast<size_t>(i * sx->queries + j * sx->keys)],
                   y.values[static_cast<size_t>(i * sy->queries + j * sy->keys)]);
    });
  };
  if (op == "eq") return with(std::equal_to<double>());
  if (op == "ne") return with(std::not_equal_to<double>());
  return op == "lt" ? with(std::less<double>()) : with(std::less_equal<double>());
}

const Literal* MaskAnalysis::constant(ValueId v) {
  constexpr int64_t kMaxElements = int64_t{1} << 22;
  constexpr size_t kMaxNodes = 1000;
  if (const Literal* l = facts_.literal(v)) return elements(l->type.shape) <= kMaxElements ? l : nullptr;
  auto [at, fresh] = computed_.try_emplace(v);
  if (!fresh) return at->second.get();
  std::vector<ValueId> open = {v};
  absl::flat_hash_set<NodeId> cone;
  while (!open.empty()) {
    ValueId u = open.back();
    open.pop_back();
    if (u == kNoValue || facts_.is_constant(u)) continue;
    NodeId n = facts_.graph().values[u].producer;
    if (n < 0 || elements(facts_.shape(u)) > kMaxElements || cone.size() > kMaxNodes) return nullptr;
    if (!cone.insert(n).second) continue;
    open.insert(open.end(), facts_.graph().nodes[n].inputs.begin(), facts_.graph().nodes[n].inputs.end());
  }
  at->second = std::make_unique<Literal>(to_literal(evaluate_graph(facts_.graph(), {}, {v})[0]));
  return at->second.get();
}

MaskAnalysis::Kind MaskAnalysis::kind(ValueId condition) {
  auto at = kinds_.find(condition);
  if (at != kinds_.end()) return at->second;
  Kind k = Kind::kOther;
  const Node* node = facts_.graph().producer(condition);
  if (node && is_comparison(node->op->name)) k = compared(*node);
  if (k == Kind::kOther) {
    if (const Literal* l = constant(condition)) k = literal_kind(*l);
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
    } else if (k == (c.negated ? Kind::kAntiCausal : Kind::kCausal)) {
      out.causal = true;
    } else if (std::none_of(out.rest.begin(), out.rest.end(),
                            [&](const MaskCondition& r) { return r.value == c.value && r.negated == c.negated; })) {
      out.rest.push_back(c);
    }
  }
  out.rest.insert(out.rest.end(), open.begin(), open.end());
  return out;
}

// A folded additive mask that is causal: 0 where a query sees the key, -inf or low elsewhere.
std::optional<MaskAnalysis::Fill> MaskAnalysis::literal_fill(ValueId additive) {
  const Literal* l = constant(additive);
  if (!l || !is_float(l->type.dtype)) return std::nullopt;
  Compact c = compact(*l);
  double fill = -kInfinity;
  for (double& x : c.values) {
    if (x != 0 && !(x <= kMasked)) return std::nullopt;
    if (x != 0) fill = std::max(fill, x);
    x = x == 0;
  }
  auto along = steps(c, queries_, keys_);
  if (!along || !along->queries || !along->keys) return std::nullopt;
  Kind k = kind_of(queries_, keys_, false,
                   [&](int64_t i, int64_t j) { return c.values[static_cast<size_t>(i * keys_ + j)] != 0; });
  if (k != Kind::kCausal) return std::nullopt;
  return Fill{{.causal = true}, fill};
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
