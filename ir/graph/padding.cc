#include "ir/graph/padding.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>

#include "base/cat.h"
#include "base/status.h"

namespace partita {
namespace {

// Finite wherever the operands are.
bool keeps_finite(ScalarOp op) {
  switch (op) {
    case ScalarOp::kAdd:
    case ScalarOp::kSub:
    case ScalarOp::kMul:
    case ScalarOp::kMax:
    case ScalarOp::kMin:
    case ScalarOp::kNeg:
    case ScalarOp::kAbs:
    case ScalarOp::kTanh:
    case ScalarOp::kErf:
    case ScalarOp::kSin:
    case ScalarOp::kCos:
    case ScalarOp::kFloor:
    case ScalarOp::kCeil:
    case ScalarOp::kRoundEven:
    case ScalarOp::kSelect:
    case ScalarOp::kCast:
      return true;
    default:
      return false;
  }
}

bool is_zero(const PadValue& x) { return x.known && x.value.f == 0 && x.value.i == 0; }

bool same_number(const PadValue& a, const PadValue& b) {
  return a.known && b.known && a.value.f == b.value.f && a.value.i == b.value.i;
}

// One node of a body whose operands are known.
ScalarValue number_of(const ScalarFunction& function, ScalarNode n, const std::vector<PadValue>& at) {
  ScalarFunction one;
  for (int* operand : {&n.a, &n.b, &n.c}) {
    if (*operand < 0) continue;
    const ScalarValue& v = at[*operand].value;
    one.nodes.push_back({.op = ScalarOp::kConstant, .type = function.nodes[*operand].type, .f = v.f, .i = v.i});
    *operand = static_cast<int>(one.nodes.size()) - 1;
  }
  one.nodes.push_back(n);
  one.outputs = {static_cast<int>(one.nodes.size()) - 1};
  std::vector<ScalarValue> scratch, out;
  evaluate(one, {}, {}, scratch, out);
  return out[0];
}

PadValue node_padding(const ScalarFunction& function, const ScalarNode& n, const std::vector<PadValue>& at) {
  std::vector<const PadValue*> operands;
  for (int k : {n.a, n.b, n.c}) {
    if (k >= 0) operands.push_back(&at[k]);
  }
  auto all = [&](bool PadValue::*holds) {
    return std::all_of(operands.begin(), operands.end(), [&](const PadValue* x) { return x->*holds; });
  };
  PadValue out;
  out.shared = all(&PadValue::shared);
  if (all(&PadValue::known)) {
    out.known = true;
    out.value = number_of(function, n, at);
    out.finite = !is_float(n.type) || std::isfinite(out.value.f);
    return out;
  }
  if (n.op == ScalarOp::kSelect && (at[n.a].known || same_number(at[n.b], at[n.c]))) {
    PadValue chosen = at[n.a].known && !at[n.a].value.i ? at[n.c] : at[n.b];
    chosen.shared = out.shared;  // inside, the other may be chosen
    return chosen;
  }
  if (n.op == ScalarOp::kLt && at[n.a].least && at[n.b].known && at[n.b].value.i <= *at[n.a].least) {
    out.known = out.finite = true;  // and false
    return out;
  }
  if (n.op == ScalarOp::kCast && (n.type == DType::kI32 || n.type == DType::kI64)) out.least = at[n.a].least;
  if (n.op == ScalarOp::kMul && all(&PadValue::finite) && (is_zero(at[n.a]) || is_zero(at[n.b])))
    return PadValue::zero();
  if (n.op == ScalarOp::kDiv && at[n.b].shared) {  // whatever divides here divides inside
    if (is_zero(at[n.a])) return PadValue::zero();
    out.finite = at[n.a].finite;
    return out;
  }
  out.finite = out.shared || !is_float(n.type) || (keeps_finite(n.op) && all(&PadValue::finite));
  return out;
}

// A use's factors, and which of them are longer than they were.
class LongerUse {
 public:
  LongerUse(const OpDef& op, const OpView& use) : formula_(bound_formula(op, use)) {}

  // Notes the dimensions of an operand that are `now` longer; false where one is made of several factors.
  bool note(const FormulaOperand& operand, const Shape& now) {
    for (size_t d = 0; d < operand.dims.size(); ++d) {
      int64_t before = 1;
      for (int f : operand.dims[d]) before *= formula_.factors[f].size;
      if (before == now[d]) continue;
      if (operand.dims[d].size() != 1) return false;
      longer_.insert(operand.dims[d][0]);
    }
    return true;
  }

  const Formula& formula() const { return formula_; }
  const std::set<int>& longer() const { return longer_; }
  std::set<int> longer_in(const FormulaOperand& operand) const {
    std::set<int> here;
    for (int f : longer_) {
      if (has_factor(operand, f)) here.insert(f);
    }
    return here;
  }

 private:
  Formula formula_;
  std::set<int> longer_;
};

absl::Status refuse(std::string why) { return absl::FailedPreconditionError(std::move(why)); }

// What an operand holds where the result is beyond its end along some factor of `wanted`.
PadValue seen_there(const PadValue& x, const std::set<int>& own, const std::set<int>& wanted) {
  if (own.empty()) return x;
  if (std::includes(own.begin(), own.end(), wanted.begin(), wanted.end())) return x;
  return {.shared = false, .finite = x.finite, .known = false, .value = {}};  // perhaps what is inside
}

// Of a result that is longer along one dimension alone, where that ended.
std::vector<std::optional<int64_t>> ends(const LongerUse& use, const FormulaOperand& result) {
  const std::set<int> longer = use.longer_in(result);
  std::vector<std::optional<int64_t>> ends(result.dims.size());
  for (size_t d = 0; longer.size() == 1 && d < ends.size(); ++d) {
    if (result.dims[d] == std::vector<int>{*longer.begin()}) ends[d] = use.formula().factors[*longer.begin()].size;
  }
  return ends;
}

double neutral_of(FactorRole role) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  return role == FactorRole::kMax ? -kInfinity : role == FactorRole::kMin ? kInfinity : 0;
}

}  // namespace

PadValue PadValue::number(double f) {
  return {.shared = false, .finite = std::isfinite(f), .known = true, .value = {f, 0}};
}

PadValue PadValue::of(const Literal& uniform) {
  Tensor t = to_tensor(uniform);
  bool real = is_float(t.type.dtype);
  PadValue out{.shared = true, .finite = true, .known = true, .value = {real ? t.f[0] : 0, real ? 0 : t.i[0]}};
  out.finite = !real || std::isfinite(out.value.f);
  return out;
}

std::vector<PadValue> padding_of(const ScalarFunction& function, const std::vector<PadValue>& inputs,
                                 const std::vector<std::optional<int64_t>>& ends) {
  std::vector<PadValue> at(function.nodes.size());
  for (size_t k = 0; k < function.nodes.size(); ++k) {
    const ScalarNode& n = function.nodes[k];
    if (n.op == ScalarOp::kInput) {
      at[k] = inputs[n.index];
    } else if (n.op == ScalarOp::kIndex) {
      at[k].finite = true;  // another index than any inside
      if (const auto d = static_cast<size_t>(n.index); d < ends.size()) at[k].least = ends[d];
    } else {
      at[k] = node_padding(function, n, at);
    }
  }
  std::vector<PadValue> out;
  for (int k : function.outputs) out.push_back(at[k]);
  return out;
}

PaddedValue PaddedEmitter::with_padding(const PaddedValue& x, const Shape& shape, double neutral) {
  const Shape now = b_.shape(x.value);
  bool is_there = now == shape || (x.holds.known && x.holds.value.f == neutral);
  if (is_there) return x;
  auto [at, fresh] = masked_.try_emplace({x.value, neutral, b_.context().segment}, x.value);
  for (size_t d = 0; fresh && d < shape.size(); ++d) {
    if (now[d] == shape[d]) continue;
    ValueId index = b_.emit("iota", {}, {{"size", now[d]}, {"to", DType::kI64}});
    ValueId end = b_.constant(to_literal({{DType::kI64, {}}, {}, {shape[d]}}));
    Shape along(shape.size() - d, 1);
    along[0] = now[d];
    ValueId inside = b_.reshape(b_.emit("lt", {index, end}), std::move(along));
    at->second = b_.select(inside, at->second, b_.scalar(b_.dtype(x.value), neutral));
  }
  return {at->second, PadValue::number(neutral)};
}

// What the results of a use of a composite hold, by the ops that it stands for: the same use, emitted for nothing else.
// Of numbers zero alone, as the composite's own kernel may round others otherwise. `operands`: of `builder`'s graph.
// Empty where that cannot be followed, or an op would have to see something else there than the one before left.
std::vector<PadValue> held_by_parts(const Builder& builder, const OpDef& op, const Attrs& attrs,
                                    std::span<const TensorType> types, const std::vector<PaddedValue>& operands) {
  Builder whole, longer;
  std::vector<ValueId> inputs;
  std::vector<PaddedValue> now;  // by value of `whole`
  for (size_t k = 0; k < operands.size(); ++k) {
    if (operands[k].value == kNoValue) {
      inputs.push_back(kNoValue);
      continue;
    }
    inputs.push_back(whole.input(cat(k), types[k]));
    now.push_back({longer.input(cat(k), builder.graph().type(operands[k].value)), operands[k].holds});
  }
  const std::vector<ValueId> results = op.expand({whole, attrs, types, inputs, {}, {}});
  const Graph& g = whole.graph();
  now.resize(g.values.size());
  for (const Constant& c : g.constants) {
    now[c.value] = {longer.constant(c.literal), PadValue::inside()};
    if (elements(c.literal.type.shape) > 0 && is_uniform(c.literal)) now[c.value].holds = PadValue::of(c.literal);
  }
  PaddedEmitter emitter(longer);
  for (const Node& node : g.nodes) {
    const Formula formula = bound_formula(g, node);
    std::map<int, int64_t> sizes;  // of factors that are longer
    std::vector<PaddedValue> in;
    size_t operand = 0;
    for (ValueId v : node.inputs) {
      in.push_back(v == kNoValue ? PaddedValue{} : now[v]);
      if (v == kNoValue) continue;
      const FormulaOperand& o = formula.inputs[operand++];
      for (size_t d = 0; d < o.dims.size(); ++d) {
        const int64_t size = longer.shape(in.back().value)[d];
        if (size == g.type(v).shape[d]) continue;
        if (o.dims[d].size() != 1) return {};
        sizes[o.dims[d][0]] = size;
      }
    }
    std::vector<Shape> shapes;
    for (size_t k = 0; k < node.outputs.size(); ++k) {
      Shape& shape = shapes.emplace_back(g.type(node.outputs[k]).shape);
      for (size_t d = 0; d < shape.size(); ++d) {
        for (int f : formula.outputs[k].dims[d]) {
          if (auto at = sizes.find(f); at != sizes.end()) shape[d] = at->second;
        }
      }
    }
    auto made = emitter.emit(*node.op, node.attrs, input_types(g, node), in, shapes);
    if (!made.ok()) return {};
    for (size_t k = 0; k < made->size(); ++k) now[node.outputs[k]] = (*made)[k];
  }
  if (longer.graph().nodes.size() != g.nodes.size()) return {};
  std::vector<PadValue> held;
  for (ValueId v : results) {
    PadValue& x = held.emplace_back(v == kNoValue ? PadValue{} : now[v].holds);
    x.known = is_zero(x);
  }
  return held;
}

absl::StatusOr<std::vector<PaddedValue>> PaddedEmitter::emit(const OpDef& op, const Attrs& attrs,
                                                             std::span<const TensorType> types,
                                                             const std::vector<PaddedValue>& inputs,
                                                             std::span<const Shape> shapes) {
  LongerUse use(op, {attrs, types});
  const Formula& formula = use.formula();
  std::vector<size_t> operand_of;  // of the formula, per input
  size_t count = 0;
  for (const PaddedValue& x : inputs) operand_of.push_back(x.value == kNoValue ? 0 : count++);
  bool simple = true;
  for (size_t k = 0; k < inputs.size(); ++k) {
    if (inputs[k].value != kNoValue)
      simple = use.note(formula.inputs[operand_of[k]], b_.shape(inputs[k].value)) && simple;
  }
  for (size_t k = 0; k < shapes.size(); ++k) simple = use.note(formula.outputs[k], shapes[k]) && simple;
  if (!simple) return refuse("a longer dimension is made of several factors");

  std::vector<PaddedValue> operands = inputs;
  std::vector<std::set<int>> own(inputs.size());
  for (size_t k = 0; k < inputs.size(); ++k) {
    if (inputs[k].value != kNoValue) own[k] = use.longer_in(formula.inputs[operand_of[k]]);
  }
  if (op.scalar == nullptr) {
    for (size_t k = 0; k < inputs.size(); ++k) {
      std::set<double> neutral;
      for (int f : own[k]) {
        const bool whole = formula.factors[f].role == FactorRole::kWhole;
        if (whole && op.lengthened == nullptr)
          return refuse(cat("the op keeps factor '", formula.factors[f].name, "' whole"));
        if (!whole) neutral.insert(neutral_of(formula.factors[f].role));
      }
      if (neutral.empty()) continue;
      if (!is_float(types[k].dtype)) {
        if (neutral.size() != 1 || *neutral.begin() != 0) return refuse("an extremum of integers has no neutral one");
        continue;
      }
      if (neutral.size() != 1) return refuse("longer dimensions are reduced in different ways");
      operands[k] = with_padding(inputs[k], types[k].shape, *neutral.begin());
    }
  }
  // The linear groups of which all operands are zero beyond the end of each of `factors`.
  auto zero_there = [&](const std::set<int>& factors) {
    std::map<int, bool> zero;
    for (size_t k = 0; k < inputs.size(); ++k) {
      if (inputs[k].value == kNoValue) continue;
      int group = formula.inputs[operand_of[k]].linear;
      bool mine = is_zero(operands[k].holds) && !own[k].empty() &&
                  std::includes(own[k].begin(), own[k].end(), factors.begin(), factors.end());
      if (group >= 0) zero.try_emplace(group, true).first->second &= mine;
    }
    return std::any_of(zero.begin(), zero.end(), [](const auto& g) { return g.second; });
  };
  for (int f : use.longer()) {
    FactorRole role = formula.factors[f].role;
    bool only_made = op.scalar == nullptr && role == FactorRole::kWhole && op.lengthened == nullptr;
    if (only_made || (role == FactorRole::kSum && !zero_there({f})))
      return refuse(cat("nothing tells that factor '", formula.factors[f].name, "' may be longer"));
  }
  std::vector<Shape> in;
  std::vector<ValueId> ids;
  for (const PaddedValue& x : operands) {
    ids.push_back(x.value);
    in.push_back(x.value == kNoValue ? Shape{} : b_.shape(x.value));
  }
  std::vector<ValueId> made;
  if (op.lengthened != nullptr) made = op.lengthened({b_, attrs, types, ids, {}, {}}, shapes);
  const bool other_body = !made.empty();
  if (!other_body) {
    PARTITA_ASSIGN_OR_RETURN(made, b_.try_emit(op, ids, localized_attrs(op, attrs, in, shapes)));
  }
  std::vector<PadValue> by_body;
  if (op.scalar != nullptr) {
    std::vector<PadValue> seen;
    for (size_t k = 0; k < inputs.size(); ++k)
      seen.push_back(seen_there(operands[k].holds, own[k], use.longer_in(formula.outputs[0])));
    by_body = padding_of(scalar_function(op, {attrs, types}), seen, ends(use, formula.outputs[0]));
  } else if (op.expand != nullptr && !other_body && !use.longer().empty()) {
    by_body = held_by_parts(b_, op, attrs, types, operands);
  }
  // Whether the op computes along the factor, and does not only look rows up.
  const auto in_numbers = [&](int f) {
    return formula.factors[f].role != FactorRole::kWhole &&
           std::any_of(formula.inputs.begin(), formula.inputs.end(),
                       [&](const FormulaOperand& o) { return o.linear >= 0 && has_factor(o, f); });
  };
  std::vector<PaddedValue> results;
  for (size_t k = 0; k < made.size(); ++k) {
    if (b_.shape(made[k]) != shapes[k])
      return refuse(cat("expected ", to_string(shapes[k]), " of it, found ", to_string(b_.shape(made[k]))));
    PaddedValue& out = results.emplace_back(PaddedValue{made[k], {}});
    std::set<int> longer = use.longer_in(formula.outputs[k]), others = longer;
    if (other_body) std::erase_if(others, [&](int f) { return !in_numbers(f); });
    bool repeats = inputs.size() == 1 && own[0].empty() && formula.inputs[0].linear >= 0;
    out.holds = longer.empty()                         ? PadValue::inside()
                : !by_body.empty()                     ? by_body[k]
                : others.empty() || zero_there(others) ? PadValue::zero()
                : repeats                              ? operands[0].holds
                                                       : PadValue{};
  }
  return results;
}

}  // namespace partita
