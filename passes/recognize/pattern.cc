#include "passes/recognize/pattern.h"

#include <algorithm>
#include <cmath>

#include "base/cat.h"
#include "base/status.h"
#include "passes/rewrite/clean_up.h"

namespace partita {
namespace {

constexpr int kMaxProductDepth = 6;  // nested multiplications of one product
constexpr int kMaxViews = 16;        // casts, broadcasts and reshapes that are looked through

constexpr std::string_view kCommutative[] = {"add", "mul", "max", "min", "and", "or", "xor", "eq", "ne"};

bool is_commutative(std::string_view op) {
  return std::find(std::begin(kCommutative), std::end(kCommutative), op) != std::end(kCommutative);
}

bool is_float_cast(const GraphFacts& facts, const Node* node) {
  return node && is_float(facts.type(node->inputs[0]).dtype) && is_float(facts.type(node->outputs[0]).dtype);
}

// `v` without the casts around it; they count as matched.
ValueId without_casts(const GraphFacts& facts, Match& match, ValueId v) {
  int steps = 0;
  for (const Node* cast = facts.made_by(v, "cast"); is_float_cast(facts, cast) && steps < kMaxViews;
       cast = facts.made_by(v, "cast"), ++steps) {
    match.nodes.push_back(facts.id(*cast));
    v = cast->inputs[0];
  }
  return v;
}

// Enumerates the ways to see a value as a product of some of the factors.
class Product {
 public:
  Product(std::vector<PatternFactor> factors, std::function<bool(Match&, double, DType, const MatchNext&)> coefficient)
      : factors_(std::move(factors)), coefficient_(std::move(coefficient)) {}

  bool match(const GraphFacts& facts, Match& m, ValueId v, const MatchNext& next) const {
    if (!is_float(facts.type(v).dtype)) return false;
    DType type = facts.type(v).dtype;
    unsigned all = (1u << factors_.size()) - 1;
    return part(facts, m, v, all, false, 1, 0, [&](double c) { return coefficient_(m, c, type, next); });
  }

 private:
  using Done = std::function<bool(double)>;

  // `v`, or 1/v where `below`, as the product of the factors in `set` and a constant; `c` is the constant of what was
  // matched before.
  bool part(const GraphFacts& facts, Match& m, ValueId v, unsigned set, bool below, double c, int depth,
            const Done& done) const {
    if (auto n = facts.number(v)) {
      if (set == 0) return *n != 0 && std::isfinite(*n) && done(below ? c / *n : c * *n);
    }
    if (set == 0) return false;
    if ((set & (set - 1)) == 0 && single(facts, m, v, set, below, c, done)) return true;
    size_t mark = m.nodes.size();
    v = without_casts(facts, m, v);
    if (facts.graph().producer(v) != nullptr && depth < kMaxProductDepth) {
      const Node& node = *facts.graph().producer(v);
      m.nodes.push_back(facts.id(node));
      if (inside(facts, m, node, set, below, c, depth + 1, done)) return true;
    }
    m.nodes.resize(mark);
    return false;
  }

  bool single(const GraphFacts& facts, Match& m, ValueId v, unsigned set, bool below, double c,
              const Done& done) const {
    const PatternFactor& f = factors_[static_cast<size_t>(__builtin_ctz(set))];
    return f.inverse == below && f.pattern(facts, m, v, [&] { return done(c); });
  }

  bool inside(const GraphFacts& facts, Match& m, const Node& node, unsigned set, bool below, double c, int depth,
              const Done& done) const {
    std::string_view op = node.op->name;
    if (op == "neg") return part(facts, m, node.inputs[0], set, below, -c, depth, done);
    if (op == "mul" || op == "div") {
      bool second = op == "div" ? !below : below;
      for (int constant : {1, 0}) {  // a constant is part of the coefficient, never a factor
        auto n = facts.number(node.inputs[constant]);
        if (!n) continue;
        if (*n == 0 || !std::isfinite(*n)) return false;
        bool divides = constant == 1 ? second : below;
        return part(facts, m, node.inputs[1 - constant], set, constant == 1 ? below : second, divides ? c / *n : c * *n,
                    depth, done);
      }
      for (unsigned left = set;; left = (left - 1) & set) {  // all subsets
        unsigned right = set & ~left;
        if (left == 0 || right == 0) {
          if (left == 0) return false;
          continue;
        }
        bool found = part(facts, m, node.inputs[0], left, below, c, depth,
                          [&](double d) { return part(facts, m, node.inputs[1], right, second, d, depth, done); });
        if (found) return true;
        if (left == 0) return false;
      }
    }
    if (op == "pow") {
      auto exponent = facts.number(node.inputs[1]);
      int count = __builtin_popcount(set);
      if (exponent && count > 1 && *exponent == count) return power(facts, m, node.inputs[0], set, below, c, done);
      if (exponent && *exponent == -1) return part(facts, m, node.inputs[0], set, !below, c, depth, done);
    }
    return false;
  }

  // Every factor of the set is `v`.
  bool power(const GraphFacts& facts, Match& m, ValueId v, unsigned set, bool below, double c, const Done& done) const {
    if (set == 0) return done(c);
    unsigned first = set & (~set + 1);
    return single(facts, m, v, first, below, c,
                  [&](double d) { return power(facts, m, v, set & ~first, below, d, done); });
  }

  std::vector<PatternFactor> factors_;
  std::function<bool(Match&, double, DType, const MatchNext&)> coefficient_;
};

Pattern as_pattern(Product product) {
  return [product = std::move(product)](const GraphFacts& facts, Match& m, ValueId v, const MatchNext& next) {
    return product.match(facts, m, v, next);
  };
}

bool bind_number(Match& m, const std::string& name, double value, DType dtype, const MatchNext& next) {
  if (m.has(name)) return is_near(value, m.number(name), dtype) && next();
  m.numbers.emplace_back(name, value);
  if (next()) return true;
  m.numbers.pop_back();
  return false;
}

bool match_inputs(const GraphFacts& facts, Match& m, const std::vector<Pattern>& patterns,
                  const std::vector<ValueId>& inputs, size_t k, const MatchNext& next) {
  if (k == patterns.size()) return next();
  return inputs[k] != kNoValue &&
         patterns[k](facts, m, inputs[k], [&] { return match_inputs(facts, m, patterns, inputs, k + 1, next); });
}

}  // namespace

GraphFacts::GraphFacts(const Graph& graph)
    : graph_(graph),
      literals_(constant_values(graph)),
      uses_(uses(graph)),
      frozen_(graph.values.size(), false),
      wanted_(graph.values.size(), false) {
  for (const GraphOutput& out : graph.outputs) wanted_[out.value] = true;
  for (const State& s : graph.states) {
    if (s.next != kNoValue) wanted_[s.next] = true;
    if (s.kind == StateKind::kFrozen && std::holds_alternative<Literal>(s.initial)) {
      literals_[s.value] = &std::get<Literal>(s.initial);
      frozen_[s.value] = true;
    }
  }
}

const Node* GraphFacts::made_by(ValueId v, std::string_view op) const {
  const Node* node = graph_.producer(v);
  return node && node->op->name == op && graph_.values[v].output == 0 ? node : nullptr;
}

std::optional<double> GraphFacts::number(ValueId v) const {
  if (!literals_[v] && graph_.values[v].producer < 0) return std::nullopt;
  if (auto at = numbers_.find(v); at != numbers_.end()) return at->second;
  ValueId from = v;
  int steps = 0;
  for (const Node* node = graph_.producer(from); node && steps < kMaxViews; node = graph_.producer(from), ++steps) {
    std::string_view op = node->op->name;
    bool same = op == "broadcast" || op == "reshape" || is_float_cast(*this, op == "cast" ? node : nullptr);
    if (!same) break;
    from = node->inputs[0];
  }
  const Literal* l = literals_[from];
  std::optional<double> n;
  if (l && elements(l->type.shape) > 0 && is_uniform(*l)) n = element_f(*l, 0);
  numbers_[v] = n;
  return n;
}

bool GraphFacts::read_only_by(ValueId v, const std::vector<NodeId>& nodes) const {
  return !wanted_[v] && std::all_of(uses_[v].begin(), uses_[v].end(),
                                    [&](NodeId n) { return std::binary_search(nodes.begin(), nodes.end(), n); });
}

bool Match::has(std::string_view name) const {
  return std::any_of(values.begin(), values.end(), [&](const auto& x) { return x.first == name; }) ||
         std::any_of(numbers.begin(), numbers.end(), [&](const auto& x) { return x.first == name; });
}

ValueId Match::operator[](std::string_view name) const {
  for (const auto& [known, v] : values) {
    if (known == name) return v;
  }
  PARTITA_CHECK(false, cat("the pattern has no value '", name, "'"));
}

double Match::number(std::string_view name) const {
  for (const auto& [known, n] : numbers) {
    if (known == name) return n;
  }
  PARTITA_CHECK(false, cat("the pattern has no number '", name, "'"));
}

double constant_tolerance(DType dtype) {
  switch (dtype) {
    case DType::kF64:
      return 1e-10;
    case DType::kF16:
      return 2e-3;
    case DType::kBF16:
      return 1e-2;
    default:
      return 1e-6;
  }
}

bool is_near(double found, double expected, DType dtype) {
  return std::abs(found - expected) <= constant_tolerance(dtype) * std::abs(expected);
}

Pattern any(std::string name) {
  return [name = std::move(name)](const GraphFacts&, Match& m, ValueId v, const MatchNext& next) {
    if (m.has(name)) return m[name] == v && next();
    m.values.emplace_back(name, v);
    if (next()) return true;
    m.values.pop_back();
    return false;
  };
}

Pattern number(double value) {
  return [value](const GraphFacts& facts, Match&, ValueId v, const MatchNext& next) {
    auto n = facts.number(v);
    return n && is_near(*n, value, facts.type(v).dtype) && next();
  };
}

Pattern number(std::string name) {
  return [name = std::move(name)](const GraphFacts& facts, Match& m, ValueId v, const MatchNext& next) {
    auto n = facts.number(v);
    return n && bind_number(m, name, *n, facts.type(v).dtype, next);
  };
}

Pattern op(std::string_view name, std::vector<Pattern> inputs) {
  return [name, inputs = std::move(inputs)](const GraphFacts& facts, Match& m, ValueId v, const MatchNext& next) {
    size_t mark = m.nodes.size();
    const Node* node = facts.made_by(without_casts(facts, m, v), name);
    if (node && node->inputs.size() >= inputs.size()) {
      m.nodes.push_back(facts.id(*node));
      if (match_inputs(facts, m, inputs, node->inputs, 0, next)) return true;
      if (is_commutative(name) && inputs.size() == 2 &&
          match_inputs(facts, m, inputs, {node->inputs[1], node->inputs[0]}, 0, next))
        return true;
    }
    m.nodes.resize(mark);
    return false;
  };
}

Pattern named(std::string name, Pattern pattern) {
  return [bind = any(std::move(name)), pattern = std::move(pattern)](const GraphFacts& facts, Match& m, ValueId v,
                                                                     const MatchNext& next) {
    return pattern(facts, m, v, [&] { return bind(facts, m, v, next); });
  };
}

Pattern one_of(std::vector<Pattern> patterns) {
  return [patterns = std::move(patterns)](const GraphFacts& facts, Match& m, ValueId v, const MatchNext& next) {
    return std::any_of(patterns.begin(), patterns.end(), [&](const Pattern& p) { return p(facts, m, v, next); });
  };
}

PatternFactor inverse(Pattern pattern) { return {std::move(pattern), true}; }

Pattern product(std::vector<PatternFactor> factors, double coefficient) {
  return as_pattern({std::move(factors), [coefficient](Match&, double c, DType dtype, const MatchNext& next) {
                       return is_near(c, coefficient, dtype) && next();
                     }});
}

Pattern product(std::vector<PatternFactor> factors, std::string coefficient) {
  return as_pattern(
      {std::move(factors), [name = std::move(coefficient)](Match& m, double c, DType dtype, const MatchNext& next) {
         return bind_number(m, name, c, dtype, next);
       }});
}

bool is_closed(const GraphFacts& facts, std::vector<NodeId>& nodes, ValueId root) {
  std::sort(nodes.begin(), nodes.end());
  nodes.erase(std::unique(nodes.begin(), nodes.end()), nodes.end());
  for (NodeId n : nodes) {
    for (ValueId v : facts.graph().nodes[n].outputs) {
      if (v != root && !facts.read_only_by(v, nodes)) return false;
    }
  }
  return true;
}

std::optional<Match> find_match(const GraphFacts& facts, const Pattern& pattern, ValueId v,
                                const std::function<bool(const Match&)>& accept) {
  Match m;
  std::optional<Match> found;
  pattern(facts, m, v, [&] {
    if (accept && !accept(m)) return false;
    Match whole = m;
    if (!is_closed(facts, whole.nodes, v)) return false;
    found = std::move(whole);
    return true;
  });
  return found;
}

bool counts_up(const GraphFacts& facts, ValueId v, int64_t n) {
  const Shape& s = facts.shape(v);
  if (s.empty() || s.back() != n || elements(s) != n) return false;
  for (const Node* node = facts.graph().producer(v); node; node = facts.graph().producer(v)) {
    if (node->op->name == "iota") return true;
    bool same =
        node->op->name == "reshape" || (node->op->name == "cast" && is_integer(facts.type(node->outputs[0]).dtype));
    if (!same || elements(facts.shape(node->inputs[0])) != n) return false;
    v = node->inputs[0];
  }
  const Literal* l = facts.literal(v);
  if (!l) return false;
  for (int64_t k = 0; k < n; ++k) {
    if (element_f(*l, k) != static_cast<double>(k)) return false;
  }
  return true;
}

absl::StatusOr<Graph> replace_all(const Graph& graph, const PassContext& context, const FindReplacement& find) {
  GraphFacts facts(graph);
  std::vector<bool> taken(graph.nodes.size(), false);
  absl::flat_hash_map<ValueId, Replacement> replacements;
  for (size_t n = graph.nodes.size(); n-- > 0;) {
    if (taken[n]) continue;
    std::optional<Replacement> r = find(facts, graph.nodes[n]);
    if (!r || std::any_of(r->nodes.begin(), r->nodes.end(), [&](NodeId k) { return taken[k]; })) continue;
    for (NodeId k : r->nodes) taken[k] = true;
    ValueId root = r->root;
    replacements.emplace(root, *std::move(r));
  }
  if (replacements.empty()) return graph;
  Rewriter r(graph);
  for (const Node& node : graph.nodes) {
    auto at = replacements.find(node.outputs[0]);
    if (at == replacements.end()) {
      r.copy(node);
      continue;
    }
    r.at(node);
    ValueId now = at->second.emit(r);
    PARTITA_CHECK(r.builder().type(now) == graph.type(node.outputs[0]),
                  cat(graph.origin(node), ": the recognised op has another type"));
    if (const std::string& name = graph.values[node.outputs[0]].name; !name.empty()) r.builder().name(now, name);
    r.replace(node.outputs[0], now);
  }
  return remove_dead_nodes(std::move(r).finish(), context);
}

}  // namespace partita
