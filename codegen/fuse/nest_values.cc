#include "codegen/fuse/nest_values.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>

namespace partita {
namespace {

constexpr int kMaxDepth = 600;

std::vector<int64_t> memo_key(int64_t id, const IndexMap& map) {
  std::vector<int64_t> key{id};
  for (const Affine& a : map) {
    key.push_back(a.offset);
    key.insert(key.end(), a.coefficients.begin(), a.coefficients.end());
  }
  return key;
}

// NaN is NaN here, and -0 is not 0.
bool same_node(NestNode a, NestNode b) {
  if (std::isnan(a.scalar.f) && std::isnan(b.scalar.f)) a.scalar.f = b.scalar.f = 0;
  return a == b && std::signbit(a.scalar.f) == std::signbit(b.scalar.f);
}

}  // namespace

NestValues::NestValues(const GroupView& group, const Domain& domain, const Box& box)
    : group_(group), code_(group.code), graph_(group.code.graph), domain_(domain), box_(box), loops_(box.loops.size()) {
  for (const BoxLoop& loop : box.loops) nest.sizes.push_back(loop.size);
}

Outcome NestValues::fail(std::string reason) {
  if (why.empty()) why = std::move(reason);
  return outcome_ = Outcome::kFailed;
}

Affine NestValues::point_number(bool rows, bool columns) const {
  bool all = rows && columns;
  Affine at = constant_index(all ? box_.origin : 0, loops_);
  int64_t stride = 1;
  for (size_t k = loops_; k-- > 0;) {
    const BoxLoop& loop = box_.loops[k];
    if (!(loop.column ? columns : rows)) continue;
    at.coefficients[k] = loop.size == 1 ? 0 : all ? loop.step : stride;
    stride *= loop.size;
  }
  return at;
}

int64_t NestValues::points(bool rows, bool columns) const {
  int64_t n = 1;
  for (const BoxLoop& loop : box_.loops) n *= (loop.column ? columns : rows) ? loop.size : 1;
  return n;
}

bool NestValues::has_columns() const {
  return std::any_of(box_.loops.begin(), box_.loops.end(), [](const BoxLoop& loop) { return loop.column; });
}

Outcome NestValues::fit(const Affine& linear, const Shape& shape, IndexMap& map) {
  switch (delinearize(linear, shape, nest.sizes, map, split)) {
    case Fit::kYes:
      return outcome_;
    case Fit::kSplit:
      return outcome_ = Outcome::kRefine;
    case Fit::kNo:
      break;
  }
  return fail("a reshape that does not follow the loops");
}

// ---- Nodes.

int NestValues::push(NestNode n) {
  uint64_t h = static_cast<uint64_t>(n.op) * 31 + static_cast<uint64_t>(n.scalar.op);
  for (int64_t x : {int64_t{n.scalar.a}, int64_t{n.scalar.b}, int64_t{n.scalar.c}, int64_t{n.access.operand},
                    n.access.offset, n.scalar.i}) {
    h = h * 0x9E3779B97F4A7C15u + static_cast<uint64_t>(x + 7);
  }
  for (size_t k = 0; k < hashes_.size(); ++k) {
    if (hashes_[k] == h && same_node(nest.nodes[k], n)) return static_cast<int>(k);
  }
  hashes_.push_back(h);
  nest.nodes.push_back(std::move(n));
  return static_cast<int>(nest.nodes.size()) - 1;
}

bool NestValues::is_constant(int node, double value) const {
  const ScalarNode& s = nest.nodes[node].scalar;
  if (nest.nodes[node].op != NestOp::kScalar || s.op != ScalarOp::kConstant) return false;
  return is_float(s.type) ? s.f == value : s.i == static_cast<int64_t>(value);
}

int NestValues::push_scalar(const ScalarNode& s) {
  // What padding with zero leaves behind. (-0 + 0 is 0.)
  const bool drops_zero = !code_.strict || !is_float(s.type);
  if (s.op == ScalarOp::kAdd && drops_zero && is_constant(s.b, 0)) return s.a;
  if (s.op == ScalarOp::kAdd && drops_zero && is_constant(s.a, 0)) return s.b;
  if (s.op == ScalarOp::kSub && is_constant(s.b, 0)) return s.a;
  if (s.op == ScalarOp::kMul && is_constant(s.b, 1)) return s.a;
  if (s.op == ScalarOp::kMul && is_constant(s.a, 1)) return s.b;
  if (s.op == ScalarOp::kCast && nest.nodes[s.a].scalar.type == s.type) return s.a;
  return push({.op = NestOp::kScalar, .scalar = s});
}

int NestValues::constant(const Literal& literal) {
  ScalarNode s{.op = ScalarOp::kConstant, .type = literal.type.dtype};
  if (is_float(s.type)) {
    s.f = element_f(literal, 0);
  } else {
    s.i = element_i(literal, 0);
  }
  return push({.op = NestOp::kScalar, .scalar = s});
}

int NestValues::index(const Affine& a) {
  return push({.op = NestOp::kIndex,
               .scalar = {.op = ScalarOp::kIndex, .type = DType::kI64},
               .access = {-1, a.coefficients, a.offset}});
}

int NestValues::load(ValueId v, const Affine& at) {
  auto known = std::find(operands.begin(), operands.end(), v);
  int operand = static_cast<int>(known - operands.begin());
  if (known == operands.end()) operands.push_back(v);
  return push({.op = NestOp::kLoad,
               .scalar = {.op = ScalarOp::kInput, .type = graph_.type(v).dtype},
               .access = {operand, at.coefficients, at.offset}});
}

// ---- Values.

int NestValues::generate(ValueId v, const IndexMap& map) {
  if (outcome_ != Outcome::kBuilt) return -1;
  const Literal* literal = code_.literals[v];
  if (literal != nullptr && is_uniform(*literal)) return constant(*literal);
  NodeId p = code_.producer(v);
  bool inside = p != kNoNode && (group_.contains(p) || code_.free[p] || code_.roles[p] == NodeRole::kView);
  if (!inside) return load(v, linearize(map, code_.shape(v), loops_));
  auto key = memo_key(v, map);
  if (auto at = memo_.find(key); at != memo_.end()) return at->second;
  if (++depth_ > kMaxDepth) return fail("too deep"), -1;
  int node = generate_node(p, v, map);
  --depth_;
  if (outcome_ != Outcome::kBuilt) return -1;
  memo_.emplace(std::move(key), node);
  return node;
}

int NestValues::generate_node(NodeId p, ValueId v, const IndexMap& map) {
  const Node& node = graph_.nodes[p];
  if (group_.contains(p)) note(p, map);
  switch (code_.roles[p]) {
    case NodeRole::kElementwise:
      return elementwise(node, v, map);
    case NodeRole::kReduction:
      return reduction(node, v, map);
    case NodeRole::kPad:
      return pad(node, map);
    case NodeRole::kConcat:
      return concat(node, map);
    case NodeRole::kIota:
      return push_scalar({.op = ScalarOp::kCast, .type = graph_.type(v).dtype, .a = index(map[0])});
    case NodeRole::kView:
      return view(node.inputs[0], v, map);
    case NodeRole::kBroadcast:
      return generate(node.inputs[0], aligned(map, code_.shape(node.inputs[0])));
    case NodeRole::kTranspose:
    case NodeRole::kSlice:
    case NodeRole::kReverse:
      return generate(node.inputs[0], moved(node, map));
    case NodeRole::kLibrary:
    case NodeRole::kCopy:
    case NodeRole::kCollective:
      break;
  }
  return fail("no nest for this op"), -1;
}

// A view of a stored value needs no index along the value's dimensions, only the address.
int NestValues::view(ValueId x, ValueId v, const IndexMap& map) {
  Affine at = linearize(map, code_.shape(v), loops_);
  ValueId stored = code_.storage(x);
  NodeId p = code_.producer(stored);
  const Literal* literal = code_.literals[stored];
  if (literal != nullptr && is_uniform(*literal)) return constant(*literal);
  if (p == kNoNode || !(group_.contains(p) || code_.free[p])) return load(stored, at);
  IndexMap in;
  if (fit(at, code_.shape(x), in) == Outcome::kFailed && !group_.contains(p)) obstacle = stored;
  return outcome_ == Outcome::kBuilt ? generate(x, in) : -1;
}

// An operand's map under NumPy broadcasting.
IndexMap NestValues::aligned(const IndexMap& map, const Shape& shape) const {
  IndexMap in;
  size_t lead = map.size() - shape.size();
  for (size_t d = 0; d < shape.size(); ++d) in.push_back(shape[d] == 1 ? constant_index(0, loops_) : map[lead + d]);
  return in;
}

// The operand's map under transpose, slice or reverse.
IndexMap NestValues::moved(const Node& node, const IndexMap& map) const {
  const Shape& from = code_.shape(node.inputs[0]);
  IndexMap in = map;
  NodeRole role = role_of(*node.op);
  if (role == NodeRole::kTranspose) {
    const auto& permutation = node.attrs.ints("permutation");
    for (size_t d = 0; d < permutation.size(); ++d) in[static_cast<size_t>(permutation[d])] = map[d];
  } else if (role == NodeRole::kSlice) {
    const auto &starts = node.attrs.ints("starts"), &strides = node.attrs.ints("strides");
    for (size_t d = 0; d < from.size(); ++d) in[d] = map[d] * strides[d] + constant_index(starts[d], loops_);
  } else {
    for (int64_t d : node.attrs.ints("dims")) {
      size_t k = static_cast<size_t>(d);
      in[k] = map[k] * -1 + constant_index(from[k] - 1, loops_);
    }
  }
  return in;
}

int NestValues::elementwise(const Node& node, ValueId v, const IndexMap& map) {
  auto types = input_types(graph_, node);
  ScalarFunction f = scalar_function(*node.op, {node.attrs, types});
  std::vector<int> inputs(node.inputs.size(), -1);
  for (size_t k = 0; k < node.inputs.size(); ++k) {
    if (node.inputs[k] != kNoValue) inputs[k] = generate(node.inputs[k], aligned(map, types[k].shape));
    if (outcome_ != Outcome::kBuilt) return -1;
  }
  std::vector<bool> needed(f.nodes.size(), false);
  for (int o : f.outputs) needed[o] = true;
  for (size_t k = f.nodes.size(); k-- > 0;) {
    for (int operand : {f.nodes[k].a, f.nodes[k].b, f.nodes[k].c}) {
      if (needed[k] && operand >= 0) needed[operand] = true;
    }
  }
  std::vector<int> ids(f.nodes.size(), -1);
  for (size_t k = 0; k < f.nodes.size(); ++k) {
    ScalarNode s = f.nodes[k];
    if (!needed[k]) continue;
    for (int* operand : {&s.a, &s.b, &s.c}) *operand = *operand >= 0 ? ids[*operand] : -1;
    ids[k] = s.op == ScalarOp::kInput   ? inputs[s.index]
             : s.op == ScalarOp::kIndex ? index(map[static_cast<size_t>(s.index)])
                                        : push_scalar(s);
  }
  for (size_t k = 0; k < node.outputs.size(); ++k) memo_.emplace(memo_key(node.outputs[k], map), ids[f.outputs[k]]);
  return ids[f.outputs[graph_.values[v].output]];
}

int NestValues::reduction(const Node& node, ValueId v, const IndexMap& map) {
  const Shape& shape = code_.shape(node.inputs[0]);
  auto dims = reduced_dims(node, shape.size());
  if (is_fold(group_, domain_, v)) return fail("a total that the same sweep needs"), -1;
  for (const Affine& a : map) {
    for (size_t k = 0; k < loops_; ++k) {
      bool varies = box_.loops[k].column && box_.loops[k].size != 1 && a.coefficients[k] != 0;
      if (varies) return fail("a reduction that varies along the columns"), -1;
    }
  }
  Shape inner;
  for (size_t d = 0; d < shape.size(); ++d) {
    if (dims[d]) inner.push_back(shape[d]);
  }
  if (points(false, true) != elements(inner)) return fail("reductions over different columns"), -1;
  IndexMap along, in;
  if (fit(point_number(false, true), inner, along) != Outcome::kBuilt) return -1;
  bool keep = node.attrs.i("keep", 0) != 0;
  size_t at = 0, at_inner = 0;
  for (size_t d = 0; d < shape.size(); ++d) {
    in.push_back(dims[d] ? along[at_inner++] : map[at]);
    at += keep || !dims[d];
  }
  int value = generate(node.inputs[0], in);
  if (outcome_ != Outcome::kBuilt) return -1;
  return push({.op = NestOp::kReduce,
               .scalar = {.op = ScalarOp::kInput, .type = graph_.type(v).dtype, .a = value},
               .reduce = reduce_kind_of(*node.op)});
}

// ---- Choices by index.

// Which part of a dimension `index` lies in; the parts begin at `starts` (ascending, the first at or below every
// index). Where it is in several, the box is cut where the first ends, along the loop that moves the index most.
int NestValues::part_of(const Affine& index, const std::vector<int64_t>& starts) {
  int64_t low = lowest(index, nest.sizes), high = highest(index, nest.sizes);
  auto part = [&](int64_t i) { return std::upper_bound(starts.begin(), starts.end(), i) - starts.begin() - 1; };
  if (part(low) == part(high)) return static_cast<int>(part(low));
  if (has_columns()) return fail("a choice by index in a reduction"), -1;
  size_t loop = 0;
  for (size_t k = 0; k < loops_; ++k) {
    int64_t reach = nest.sizes[k] == 1 ? 0 : std::abs(index.coefficients[k]);
    if (reach > (nest.sizes[loop] == 1 ? 0 : std::abs(index.coefficients[loop]))) loop = k;
  }
  int64_t c = index.coefficients[loop], size = nest.sizes[loop], boundary = starts[static_cast<size_t>(part(low)) + 1];
  // The first point at or past the boundary, with the other loops at their lowest.
  int64_t start = low - std::min<int64_t>(0, c * (size - 1));
  int64_t cut = c > 0 ? (boundary - start + c - 1) / c : (start - boundary) / -c + 1;
  cut_loop = loop;
  cut_at = cut <= 0 || cut >= size ? size / 2 : cut;
  outcome_ = Outcome::kCut;
  return -1;
}

int NestValues::pad(const Node& node, const IndexMap& map) {
  const Shape& from = code_.shape(node.inputs[0]);
  const auto& low = node.attrs.ints("low");
  IndexMap in = map;
  for (size_t d = 0; d < from.size(); ++d) {
    int part = part_of(map[d], {INT64_MIN, low[d], low[d] + from[d]});
    if (outcome_ != Outcome::kBuilt) return -1;
    if (part != 1) return generate(node.inputs[1], {});
    in[d].offset -= low[d];
  }
  return generate(node.inputs[0], in);
}

int NestValues::concat(const Node& node, const IndexMap& map) {
  size_t dim = static_cast<size_t>(node.attrs.i("dim"));
  std::vector<int64_t> starts;
  std::vector<ValueId> parts;
  int64_t at = 0;
  for (ValueId v : node.inputs) {
    int64_t n = code_.shape(v)[dim];
    if (n == 0) continue;
    starts.push_back(at);
    parts.push_back(v);
    at += n;
  }
  int part = part_of(map[dim], starts);
  if (outcome_ != Outcome::kBuilt) return -1;
  IndexMap in = map;
  in[dim].offset -= starts[static_cast<size_t>(part)];
  return generate(parts[static_cast<size_t>(part)], in);
}

void NestValues::note(NodeId n, const IndexMap& map) {
  Visit& visit = visits[n];
  visit.along.assign(loops_, false);
  for (const Affine& a : map) {
    for (size_t k = 0; k < loops_; ++k) visit.along[k] = visit.along[k] || a.coefficients[k] != 0;
  }
  visit.maps.push_back(memo_key(0, map));
}

}  // namespace partita
