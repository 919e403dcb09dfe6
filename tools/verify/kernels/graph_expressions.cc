#include "tools/verify/kernels/graph_expressions.h"

#include <algorithm>
#include <limits>

#include "base/cat.h"
#include "base/quote.h"
#include "runtime/program/library_kernels.h"
#include "tools/verify/kernels/whole_nest.h"
#include "tools/verify/layout/mismatch.h"

namespace partita::verifier {
namespace {

constexpr int kMostDepth = 2000;
constexpr size_t kMostExpressions = 1 << 20;

std::vector<int64_t> key_of(ValueId v, const IndexMap& map) {
  std::vector<int64_t> key{v};
  for (const Affine& a : map) {
    key.push_back(a.offset);
    key.insert(key.end(), a.coefficients.begin(), a.coefficients.end());
  }
  return key;
}

// The value of a reduction of nothing.
ScalarNode reduced_nothing(ReduceKind kind, DType type) {
  ScalarNode s{.op = ScalarOp::kConstant, .type = type};
  const bool greatest = kind == ReduceKind::kMin, least = kind == ReduceKind::kMax;
  if (is_float(type)) {
    const double infinity = std::numeric_limits<double>::infinity();
    s.f = greatest ? infinity : least ? -infinity : kind == ReduceKind::kProd ? 1 : 0;
  } else if (greatest || least) {
    const int64_t most = static_cast<int64_t>((~uint64_t{0} >> 1) >> (64 - dtype_size(type) * 8));
    s.i = is_unsigned(type) ? (greatest ? -1 : 0) : greatest ? most : -most - 1;
  } else {
    s.i = kind == ReduceKind::kProd ? 1 : 0;
  }
  return s;
}

}  // namespace

// Index functions and reductions; everything else is told by the definition.
struct GraphExpressions::Structure {
  std::string_view name;
  int (GraphExpressions::*expression)(const Node&, ValueId, const IndexMap&);
  static const Structure* find(std::string_view name);
};

const GraphExpressions::Structure* GraphExpressions::Structure::find(std::string_view name) {
  using G = GraphExpressions;
  static constexpr Structure kAll[] = {{"broadcast", &G::broadcast},
                                       {"transpose", &G::transpose},
                                       {"slice", &G::slice},
                                       {"reverse", &G::reverse},
                                       {"pad", &G::pad},
                                       {"concat", &G::concat},
                                       {"reduce_sum", &G::reduction},
                                       {"reduce_max", &G::reduction},
                                       {"reduce_min", &G::reduction},
                                       {"reduce_prod", &G::reduction}};
  const auto* at = std::find_if(std::begin(kAll), std::end(kAll), [&](const Structure& s) { return s.name == name; });
  return at == std::end(kAll) ? nullptr : at;
}

std::string CodeView::name(int value) const {
  if (value < 0) return cat("temporary ", -2 - value);
  const std::string& n = graph.values[static_cast<size_t>(value)].name;
  return cat("value %", value, n.empty() ? "" : " " + quote(n), " ", to_string(graph.type(value)));
}

std::vector<ValueId> storage_of(const Graph& graph) {
  std::vector<ValueId> storage(graph.values.size());
  for (size_t v = 0; v < storage.size(); ++v) storage[v] = static_cast<ValueId>(v);
  for (const Node& node : graph.nodes) {
    if (node.op->view) storage[static_cast<size_t>(node.outputs[0])] = storage[static_cast<size_t>(node.inputs[0])];
  }
  return storage;
}

std::optional<ReduceKind> reduce_kind(const OpDef& op) {
  constexpr std::pair<std::string_view, ReduceKind> kKinds[] = {{"reduce_sum", ReduceKind::kSum},
                                                                {"reduce_max", ReduceKind::kMax},
                                                                {"reduce_min", ReduceKind::kMin},
                                                                {"reduce_prod", ReduceKind::kProd}};
  for (const auto& [name, kind] : kKinds) {
    if (name == op.name) return kind;
  }
  return std::nullopt;
}

std::vector<bool> reduced_flags(const Node& reduction, size_t rank) {
  std::vector<bool> reduced(rank, false);
  for (int64_t d : reduction.attrs.ints("dims")) reduced[static_cast<size_t>(d)] = true;
  return reduced;
}

Shape chosen_dims(const Node& reduction, const Shape& shape, bool reduced) {
  const std::vector<bool> flags = reduced_flags(reduction, shape.size());
  Shape chosen;
  for (size_t d = 0; d < shape.size(); ++d) {
    if (flags[d] == reduced) chosen.push_back(shape[d]);
  }
  return chosen;
}

GraphExpressions::GraphExpressions(const CodeView& code, const std::set<int>& given, const LoopNest& nest,
                                   std::optional<ReductionOrder> order, Affine columns, uint32_t own_signs,
                                   Expressions& e)
    : code_(code),
      given_(given),
      nest_(nest),
      order_(std::move(order)),
      columns_(std::move(columns)),
      own_signs_(own_signs),
      e_(e),
      loops_(nest.sizes.size()) {}

int GraphExpressions::fail(absl::Status status) {
  status_.Update(status);
  return -1;
}

bool GraphExpressions::fit(const Affine& linear, const Shape& to, IndexMap& map) {
  LoopSplit split;
  switch (delinearize(linear, to, nest_.sizes, map, split)) {
    case Fit::kYes:
      return true;
    case Fit::kSplit:
      split_ = split;
      return false;
    case Fit::kNo:
      break;
  }
  fail(differs("expected loops that follow the dimensions of ", to_string(to), ", found others"));
  return false;
}

int GraphExpressions::value(ValueId v, const IndexMap& map) {
  if (stopped()) return -1;
  const ValueId stored = code_.storage[static_cast<size_t>(v)];
  const Literal* literal = code_.literals[static_cast<size_t>(stored)];
  if (literal != nullptr && is_uniform(*literal)) return constant(*literal);
  if (given_.count(stored)) return e_.load(stored, code_.graph.type(v).dtype, linearize(map, shape(v), loops_));
  return result(v, map);
}

bool GraphExpressions::is_given(ValueId v) const {
  return given_.count(code_.storage[static_cast<size_t>(v)]) || given_.count(code_.turned[static_cast<size_t>(v)]);
}

int GraphExpressions::signed_as(ValueId v, const IndexMap& map) {
  if (is_given(v)) return value(v, map);
  for (const Node& node : code_.graph.nodes) {
    if (node.op->name != "relu" || node.inputs[0] != v || !is_given(node.outputs[0])) continue;
    const auto at = std::find(either_sign_.begin(), either_sign_.end(), v) - either_sign_.begin();
    if (at == std::ssize(either_sign_)) either_sign_.push_back(v);
    const bool own = at < 32 && (own_signs_ >> at & 1) != 0;
    return value(own ? v : node.outputs[0], map);
  }
  return value(v, map);
}

int GraphExpressions::result(ValueId v, const IndexMap& map) {
  if (stopped()) return -1;
  std::vector<int64_t> key = key_of(v, map);
  if (auto at = known_.find(key); at != known_.end()) return at->second;
  if (const ValueId turned = code_.turned[static_cast<size_t>(v)]; given_.count(turned)) {
    IndexMap at;
    for (int64_t d : kChannelsLast) at.push_back(map[static_cast<size_t>(d)]);
    return e_.load(turned, code_.graph.type(v).dtype, linearize(at, shape(turned), loops_));
  }
  const Node* node = code_.graph.producer(v);
  if (node == nullptr || node->op->kernel || node->op->communicates || node->op->name == "stash")
    return fail(differs("expected ", code_.name(v), " among the operands, found none"));
  if (++depth_ > kMostDepth || e_.size() > kMostExpressions) return fail(differs("expected fewer nodes in one kernel"));
  const Structure* structure = Structure::find(node->op->name);
  const int made = node->op->view                ? reshape(*node, v, map)
                   : structure != nullptr        ? (this->*structure->expression)(*node, v, map)
                   : node->op->scalar != nullptr ? elementwise(*node, v, map)
                                                 : fail(differs("expected no generated code for ", node->op->name));
  --depth_;
  if (made >= 0) known_.emplace(std::move(key), made);
  return made;
}

int GraphExpressions::constant(const Literal& literal) {
  ScalarNode s{.op = ScalarOp::kConstant, .type = literal.type.dtype};
  if (is_float(s.type)) {
    s.f = element_f(literal, 0);
  } else {
    s.i = element_i(literal, 0);
  }
  return e_.scalar(s);
}

int GraphExpressions::reshape(const Node& node, ValueId v, const IndexMap& map) {
  IndexMap in;
  if (!fit(linearize(map, shape(v), loops_), shape(node.inputs[0]), in)) return -1;
  return value(node.inputs[0], in);
}

// An operand's map under NumPy broadcasting.
IndexMap GraphExpressions::aligned(const IndexMap& map, const Shape& operand) const {
  IndexMap in;
  const size_t lead = map.size() - operand.size();
  for (size_t d = 0; d < operand.size(); ++d) in.push_back(operand[d] == 1 ? constant_index(0, loops_) : map[lead + d]);
  return in;
}

int GraphExpressions::broadcast(const Node& node, ValueId, const IndexMap& map) {
  return value(node.inputs[0], aligned(map, shape(node.inputs[0])));
}

int GraphExpressions::transpose(const Node& node, ValueId, const IndexMap& map) {
  const auto& permutation = node.attrs.ints("permutation");
  IndexMap in = map;
  for (size_t d = 0; d < permutation.size(); ++d) in[static_cast<size_t>(permutation[d])] = map[d];
  return value(node.inputs[0], in);
}

int GraphExpressions::slice(const Node& node, ValueId, const IndexMap& map) {
  const auto &starts = node.attrs.ints("starts"), &strides = node.attrs.ints("strides");
  IndexMap in;
  for (size_t d = 0; d < map.size(); ++d) in.push_back(map[d] * strides[d] + constant_index(starts[d], loops_));
  return value(node.inputs[0], in);
}

int GraphExpressions::reverse(const Node& node, ValueId, const IndexMap& map) {
  IndexMap in = map;
  for (int64_t dim : node.attrs.ints("dims")) {
    const auto d = static_cast<size_t>(dim);
    in[d] = map[d] * -1 + constant_index(shape(node.inputs[0])[d] - 1, loops_);
  }
  return value(node.inputs[0], in);
}

GraphExpressions::Where GraphExpressions::where(const Affine& index, int64_t begin, int64_t end) const {
  const int64_t low = lowest(index, nest_.sizes), high = highest(index, nest_.sizes);
  if (low >= begin && high < end) return Where::kInside;
  return high < begin || low >= end ? Where::kOutside : Where::kBoth;
}

int GraphExpressions::pad(const Node& node, ValueId, const IndexMap& map) {
  const Shape& from = shape(node.inputs[0]);
  const auto& low = node.attrs.ints("low");
  IndexMap in = map;
  bool both = false;
  for (size_t d = 0; d < from.size(); ++d) {
    const Where w = where(map[d], low[d], low[d] + from[d]);
    if (w == Where::kOutside) return value(node.inputs[1], {});
    both = both || w == Where::kBoth;
    in[d].offset -= low[d];
  }
  if (both) return fail(differs("expected the inside of a padded tensor or its border, found both in one kernel"));
  return value(node.inputs[0], in);
}

int GraphExpressions::concat(const Node& node, ValueId, const IndexMap& map) {
  const auto dim = static_cast<size_t>(node.attrs.i("dim"));
  int64_t at = 0;
  for (ValueId v : node.inputs) {
    const int64_t size = shape(v)[dim];
    if (where(map[dim], at, at + size) == Where::kInside) {
      IndexMap in = map;
      in[dim].offset -= at;
      return value(v, in);
    }
    at += size;
  }
  return fail(differs("expected one of the tensors that are joined, found several in one kernel"));
}

// Over the columns, each of them once: their number is that of what is reduced.
int GraphExpressions::reduction(const Node& node, ValueId v, const IndexMap& map) {
  const Shape& from = shape(node.inputs[0]);
  const Shape inner = chosen_dims(node, from, true);
  const ReduceKind kind = *reduce_kind(*node.op);
  const int64_t count = elements(inner);
  const std::vector<bool> reduced = reduced_flags(node, from.size());
  if (count == 0) return e_.scalar(reduced_nothing(kind, code_.graph.type(v).dtype));
  IndexMap along(inner.size(), constant_index(0, loops_));
  if (count > 1) {
    if (column_points(nest_) != count)
      return fail(differs(code_.name(v), ": expected a reduction of ", count, " elements, found one of ",
                          column_points(nest_)));
    for (const Affine& a : map) {
      for (size_t k = static_cast<size_t>(nest_.rows()); k < loops_; ++k) {
        if (a.coefficients[k] != 0 && nest_.sizes[k] != 1)
          return fail(differs(code_.name(v), ": expected a reduction that is the same for all columns"));
      }
    }
    if (!fit(columns_, inner, along)) return -1;
    if (order_ && *order_ != strict_order(from, reduced, code_.graph.type(v).dtype))
      return fail(differs(code_.name(v), ": expected a reduction in the order of its shape, found another order"));
  }
  const bool keep = node.attrs.i("keep", 0) != 0;
  IndexMap in;
  size_t at = 0, at_inner = 0;
  for (size_t d = 0; d < from.size(); ++d) {
    in.push_back(reduced[d] ? along[at_inner++] : map[at]);
    at += keep || !reduced[d];
  }
  const int of = value(node.inputs[0], in);
  return of < 0 || count == 1 ? of : e_.reduce(kind, of);
}

int GraphExpressions::elementwise(const Node& node, ValueId v, const IndexMap& map) {
  const std::vector<TensorType> types = input_types(code_.graph, node);
  const ScalarFunction f = scalar_function(*node.op, {node.attrs, types});
  const int output = f.outputs[static_cast<size_t>(code_.graph.values[static_cast<size_t>(v)].output)];
  std::vector<bool> needed(f.nodes.size(), false);
  needed[static_cast<size_t>(output)] = true;
  for (size_t k = f.nodes.size(); k-- > 0;) {
    for (int operand : {f.nodes[k].a, f.nodes[k].b, f.nodes[k].c}) {
      if (needed[k] && operand >= 0) needed[static_cast<size_t>(operand)] = true;
    }
  }
  std::vector<int> made(f.nodes.size(), -1);
  for (size_t k = 0; k < f.nodes.size(); ++k) {
    ScalarNode s = f.nodes[k];
    if (!needed[k]) continue;
    for (int* operand : {&s.a, &s.b, &s.c}) *operand = *operand >= 0 ? made[static_cast<size_t>(*operand)] : -1;
    const auto at = static_cast<size_t>(s.index);
    const bool sign = s.op == ScalarOp::kInput && node.op->name == "relu_grad" && at == 1;
    made[k] = sign                       ? signed_as(node.inputs[at], aligned(map, types[at].shape))
              : s.op == ScalarOp::kInput ? value(node.inputs[at], aligned(map, types[at].shape))
              : s.op == ScalarOp::kIndex ? e_.index(map[at])
                                         : e_.scalar(s);
    if (made[k] < 0) return -1;
  }
  return made[static_cast<size_t>(output)];
}

}  // namespace partita::verifier
