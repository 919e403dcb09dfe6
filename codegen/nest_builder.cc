// Every output is computed for every point of one domain, by walking back from it: a node of the group (or a free one)
// becomes operations on its inputs at composed index maps, anything else a load. So a nest is right whatever the
// domain; what the checks guard is that nothing expensive is computed twice.
//
//   y = x / reduce_sum(x, [1], keep) over x [4, 8]: domain [4, 8], columns {1}
//   y at (i, j): x at (i, j), and the sum at (i, 0): a reduction over the columns of x at (i, j)
//
// Padding and concatenation choose by index. Instead of selecting at every point, the domain is cut into boxes in each
// of which the choice is settled.
#include "codegen/nest_builder.h"

#include <algorithm>
#include <cmath>
#include <deque>
#include <map>

#include "base/cat.h"
#include "base/status.h"
#include "codegen/affine.h"
#include "codegen/keep_results.h"
#include "codegen/nest_schedule.h"

namespace partita {
namespace {

constexpr int kMaxNodes = 400, kMaxOperands = 40, kMaxDepth = 600, kMaxBoxes = 32;
constexpr size_t kMaxLoops = 64;
constexpr int64_t kSerialReduction = 16384;  // elements that one thread may reduce to a scalar on its own
constexpr int64_t kWideFold = 1 << 17;       // columns of a fold at most

// A loop over part of a dimension of the domain (or all of it).
struct Loop {
  int64_t size = 1;
  bool column = false;
  int64_t step = 1;  // in the row-major number of the domain's points
};

// The domain of a group, and how its reductions lie in it.
struct Domain {
  Shape shape;
  std::vector<bool> column;   // per dimension of shape
  std::vector<NodeId> folds;  // reductions over rows as well; outputs of the group
};

// A box of the domain: its points are origin + sum of step * index.
struct Box {
  int64_t origin = 0;
  std::vector<Loop> loops;
};

enum class Outcome { kBuilt, kRefine, kCut, kFailed };

int scalar_cost(const ScalarFunction& f) {
  int cost = 0;
  for (const ScalarNode& n : f.nodes) {
    switch (n.op) {
      case ScalarOp::kInput:
      case ScalarOp::kConstant:
        break;
      case ScalarOp::kExp:
      case ScalarOp::kLog:
      case ScalarOp::kLog1p:
      case ScalarOp::kExpm1:
      case ScalarOp::kTanh:
      case ScalarOp::kErf:
      case ScalarOp::kPow:
      case ScalarOp::kSin:
      case ScalarOp::kCos:
      case ScalarOp::kTan:
      case ScalarOp::kAsin:
      case ScalarOp::kAcos:
      case ScalarOp::kAtan:
      case ScalarOp::kSinh:
      case ScalarOp::kCosh:
        cost += 20;
        break;
      case ScalarOp::kPhilox:
        cost += 60;
        break;
      case ScalarOp::kDiv:
      case ScalarOp::kSqrt:
      case ScalarOp::kMod:
        cost += 6;
        break;
      default:
        cost += 1;
    }
  }
  return cost;
}

class NestMaker {
 public:
  NestMaker(const CodeGraph& graph, std::span<const NodeId> nodes, std::span<const ValueId> outputs)
      : code_(graph), graph_(graph.graph), nodes_(nodes), outputs_(outputs), single_(nodes.size() == 1) {}

  std::optional<GroupCode> run() {
    auto domain = choose_domain();
    if (!domain) return std::nullopt;
    domain_ = *std::move(domain);
    if (elements(domain_.shape) == 0) return empty_domain();
    GroupCode code;
    if (build_boxes(code) != Outcome::kBuilt) return std::nullopt;
    return code;
  }

  std::string why;

 private:
  Outcome fail(std::string text) {
    if (why.empty()) why = std::move(text);
    return outcome_ = Outcome::kFailed;
  }
  bool in_group(NodeId n) const { return std::binary_search(nodes_.begin(), nodes_.end(), n); }
  bool is_output(ValueId v) const { return std::find(outputs_.begin(), outputs_.end(), v) != outputs_.end(); }
  static std::vector<bool> reduced_dims(const Node& node, size_t rank) {
    std::vector<bool> reduced(rank, false);
    for (int64_t d : node.attrs.ints("dims")) reduced[static_cast<size_t>(d)] = true;
    return reduced;
  }

  // ---- The domain.

  static bool same_dims(const std::vector<bool>& a, const std::vector<bool>& b, const Shape& shape) {
    for (size_t d = 0; d < shape.size(); ++d) {
      if (shape[d] != 1 && a[d] != b[d]) return false;
    }
    return true;
  }

  std::optional<Domain> choose_domain() {
    struct Reduction {
      NodeId node;
      std::vector<bool> dims;
      bool innermost = false, all = true;
    };
    std::vector<Reduction> reductions;
    int64_t size = -1;
    Domain domain;
    for (NodeId n : nodes_) {
      if (code_.roles[n] != NodeRole::kReduction) continue;
      const Node& node = graph_.nodes[n];
      const Shape& shape = code_.shape(node.inputs[0]);
      Reduction r{n, reduced_dims(node, shape.size())};
      for (size_t d = 0; d < shape.size(); ++d) {
        if (shape[d] == 1) continue;
        r.innermost = r.dims[d];
        r.all = r.all && r.dims[d];
      }
      if (elements(shape) > size) {
        size = elements(shape);
        domain.shape = shape;
      }
      reductions.push_back(std::move(r));
    }
    bool full_output = false;
    int64_t largest = -1;
    for (ValueId v : outputs_) {
      int64_t n = elements(code_.shape(v));
      if (reductions.empty() && n > largest) domain.shape = code_.shape(v);
      largest = std::max(largest, n);
      full_output = full_output || n == size;
    }
    if (reductions.empty()) {
      domain.column.assign(domain.shape.size(), false);
      return domain;
    }
    if (size > 0 && largest > size) return fail("an output larger than what is reduced"), std::nullopt;
    const Reduction* row = nullptr;     // sets the columns
    const Reduction* column = nullptr;  // reduces other dimensions than the innermost
    bool whole = false;
    for (const Reduction& r : reductions) {
      const Shape& shape = code_.shape(graph_.nodes[r.node].inputs[0]);
      if (elements(shape) != size || shape != domain.shape) {
        // Another view of the domain (or less): its dimensions are compared when its input's map is known.
        if (elements(shape) != size) return fail("reductions of different sizes"), std::nullopt;
        continue;
      }
      bool foldable = is_output(graph_.nodes[r.node].outputs[0]) && reads_inside(graph_.nodes[r.node].outputs[0]) == 0;
      if (r.all && size > kSerialReduction) {
        if (!foldable) return fail("a total that takes two steps"), std::nullopt;
        whole = true;
      } else if (r.innermost) {
        row = &r;
      } else {
        column = &r;
      }
    }
    if (row == nullptr && column == nullptr && !whole) return fail("no reduction over the domain"), std::nullopt;
    if (row != nullptr) {
      domain.column = row->dims;
    } else if (column != nullptr && (full_output || whole)) {
      domain.column = column->dims;
      domain.column.flip();
      int64_t columns = 1;
      for (size_t d = 0; d < domain.shape.size(); ++d) columns *= domain.column[d] ? domain.shape[d] : 1;
      bool foldable =
          is_output(graph_.nodes[column->node].outputs[0]) && reads_inside(graph_.nodes[column->node].outputs[0]) == 0;
      if (!foldable || columns > kWideFold || columns * 8 > size) domain.column = column->dims;
    } else if (column != nullptr) {
      domain.column = column->dims;
      if (few_blocks(domain.shape, column->dims) && is_output(graph_.nodes[column->node].outputs[0]) &&
          reads_inside(graph_.nodes[column->node].outputs[0]) == 0)
        domain.column.flip();
    } else {
      domain.column = inner_columns(domain.shape);
    }
    return domain;
  }

  // How many nodes of the group read a value.
  int reads_inside(ValueId v) const {
    int count = 0;
    for (NodeId n : nodes_) count += std::count(graph_.nodes[n].inputs.begin(), graph_.nodes[n].inputs.end(), v) > 0;
    return count;
  }

  // Long sums of few columns: too few blocks of lanes to share among threads, while rows can be shared.
  static bool few_blocks(const Shape& shape, const std::vector<bool>& reduced) {
    int64_t rows = 1, columns = 1;
    for (size_t d = 0; d < shape.size(); ++d) (reduced[d] ? rows : columns) *= shape[d];
    return columns >= 32 && columns < 16 * kLaneBlock && rows >= 64 && rows * columns >= 8 * kSerialReduction;
  }

  // The innermost dimensions that make up a row worth vectorizing.
  static std::vector<bool> inner_columns(const Shape& shape) {
    std::vector<bool> column(shape.size(), false);
    int64_t n = 1;
    for (size_t d = shape.size(); d-- > 0 && n < 256;) {
      column[d] = true;
      n *= shape[d];
    }
    return column;
  }

  // ---- Boxes.

  Outcome build_boxes(GroupCode& code) {
    std::deque<Box> boxes(1);
    int64_t step = 1;
    for (size_t d = domain_.shape.size(); d-- > 0; step *= domain_.shape[d])
      boxes[0].loops.insert(boxes[0].loops.begin(), {domain_.shape[d], domain_.column[d], step});
    int built = 0, limit = single_ ? 1 << 20 : kMaxBoxes;
    while (!boxes.empty()) {
      Box box = std::move(boxes.front());
      boxes.pop_front();
      Outcome outcome = build_box(box, code);
      if (outcome == Outcome::kFailed) return outcome;
      if (outcome == Outcome::kBuilt) {
        if (++built > limit) return fail("too many boxes");
      } else if (outcome == Outcome::kRefine) {
        if (box.loops.size() > kMaxLoops) return fail("too many loops");
        Loop& loop = box.loops[split_.loop];
        Loop inner{split_.inner, loop.column, loop.step};
        loop.size /= split_.inner;
        loop.step *= split_.inner;
        box.loops.insert(box.loops.begin() + split_.loop + 1, inner);
        boxes.push_front(std::move(box));
      } else {
        Box high = box;
        Loop& loop = high.loops[cut_loop_];
        high.origin += loop.step * cut_at_;
        loop.size -= cut_at_;
        box.loops[cut_loop_].size = cut_at_;
        boxes.push_front(std::move(high));
        boxes.push_front(std::move(box));
      }
    }
    return Outcome::kBuilt;
  }

  Outcome build_box(const Box& box, GroupCode& code) {
    loops_ = box.loops;
    origin_ = box.origin;
    sizes_.clear();
    column_.clear();
    for (const Loop& loop : loops_) {
      sizes_.push_back(loop.size);
      column_.push_back(loop.column);
    }
    nest_ = {};
    hashes_.clear();
    memo_.clear();
    seen_.clear();
    inputs_.clear();
    outcome_ = Outcome::kBuilt;
    depth_ = 0;
    nest_.sizes = sizes_;
    std::vector<std::pair<ValueId, NestStore>> stores;
    std::vector<std::pair<ValueId, NestFold>> folds;
    for (ValueId v : outputs_) {
      if (is_fold(v)) {
        NestFold fold = make_fold(v);
        if (outcome_ == Outcome::kBuilt) folds.emplace_back(v, fold);
      } else {
        IndexMap map;
        if (output_map(v, map) != Outcome::kBuilt) return outcome_;
        int node = generate(v, map);
        if (outcome_ != Outcome::kBuilt) return outcome_;
        Affine at = linearize(map, code_.shape(v), loops_.size());
        stores.push_back({v, {node, {-1, at.coefficients, at.offset}}});
      }
      if (outcome_ != Outcome::kBuilt) return outcome_;
    }
    if (nest_.nodes.size() > kMaxNodes && !single_) return fail("too many operations");
    if (inputs_.size() + outputs_.size() > kMaxOperands && !single_) return fail("too many operands");
    if (!single_ && check_repeats() != Outcome::kBuilt) return outcome_;
    finish(code, stores, folds);
    return Outcome::kBuilt;
  }

  // The row-major number of a point: in the domain, or among the rows or the columns alone (there are no boxes then).
  Affine point_number(bool rows, bool columns) const {
    bool all = rows && columns;
    Affine at = constant_index(all ? origin_ : 0, loops_.size());
    int64_t stride = 1;
    for (size_t k = loops_.size(); k-- > 0;) {
      if (!(column_[k] ? columns : rows)) continue;
      at.coefficients[k] = sizes_[k] == 1 ? 0 : all ? loops_[k].step : stride;
      stride *= sizes_[k];
    }
    return at;
  }

  Outcome fit(const Affine& linear, const Shape& shape, IndexMap& map) {
    LoopSplit split;
    Fit fit = delinearize(linear, shape, sizes_, map, split);
    if (fit == Fit::kYes) return outcome_;
    if (fit == Fit::kNo) return fail("a reshape that does not follow the loops");
    split_ = split;
    return outcome_ = Outcome::kRefine;
  }

  // Where an output is stored at each point: at full size, or once a row.
  Outcome output_map(ValueId v, IndexMap& map) {
    const Shape& shape = code_.shape(v);
    int64_t n = elements(shape), rows = 1, all = elements(domain_.shape);
    for (const Loop& loop : loops_) rows *= loop.column ? 1 : loop.size;
    if (n == all) {
      // The domain's own order; transposed nests are read, not written, in another.
      return fit(point_number(true, true), shape, map);
    }
    if (n == rows) return fit(point_number(true, false), shape, map);
    return fail("outputs of different sizes");
  }

  // ---- Folds: reductions over rows.

  bool is_fold(ValueId v) const {
    NodeId p = code_.producer(v);
    if (p == kNoNode || code_.roles[p] != NodeRole::kReduction || !in_group(p) || reads_inside(v) > 0) return false;
    const Node& node = graph_.nodes[p];
    const Shape& shape = code_.shape(node.inputs[0]);
    if (shape != domain_.shape) return false;
    auto dims = reduced_dims(node, shape.size());
    return !same_dims(dims, domain_.column, shape);
  }

  NestFold make_fold(ValueId v) {
    const Node& node = graph_.nodes[code_.producer(v)];
    const Shape& shape = code_.shape(node.inputs[0]);
    auto dims = reduced_dims(node, shape.size());
    bool rows_all = true, columns_all = true, columns_none = true;
    for (size_t d = 0; d < shape.size(); ++d) {
      if (shape[d] == 1) continue;
      if (domain_.column[d]) {
        (dims[d] ? columns_none : columns_all) = false;
      } else {
        rows_all = rows_all && dims[d];
      }
    }
    NestFold fold;
    fold.reduce = reduce_kind_of(*node.op);
    if (!rows_all || (!columns_all && !columns_none)) return fail("a reduction across rows and columns"), fold;
    int64_t columns = 1;
    for (const Loop& loop : loops_) columns *= loop.column ? loop.size : 1;
    if (columns_none && columns > kWideFold) return fail("a fold of too many columns"), fold;
    IndexMap map;
    if (fit(point_number(true, true), shape, map) != Outcome::kBuilt) return fold;
    int value = generate(node.inputs[0], map);
    if (outcome_ != Outcome::kBuilt) return fold;
    if (columns_none) {
      Affine at = point_number(false, true);
      fold.node = value;
      fold.access = {-1, at.coefficients, 0};
      fold.extent = columns;
    } else {
      NestNode reduce{.op = NestOp::kReduce,
                      .scalar = {.op = ScalarOp::kInput, .type = graph_.type(v).dtype, .a = value},
                      .reduce = fold.reduce};
      fold.node = push(std::move(reduce));
      fold.access = {-1, std::vector<int64_t>(loops_.size(), 0), 0};
    }
    return fold;
  }

  // ---- Values.

  int push(NestNode n) {
    uint64_t h = static_cast<uint64_t>(n.op) * 31 + static_cast<uint64_t>(n.scalar.op);
    for (int64_t x : {int64_t{n.scalar.a}, int64_t{n.scalar.b}, int64_t{n.scalar.c}, int64_t{n.access.operand},
                      n.access.offset, n.scalar.i}) {
      h = h * 0x9E3779B97F4A7C15u + static_cast<uint64_t>(x + 7);
    }
    for (size_t k = 0; k < hashes_.size(); ++k) {
      if (hashes_[k] != h) continue;
      const NestNode& m = nest_.nodes[k];
      bool nan = n.scalar.f != n.scalar.f && m.scalar.f != m.scalar.f;
      NestNode a = n, b = m;
      if (nan) a.scalar.f = b.scalar.f = 0;
      if (a == b) return static_cast<int>(k);
    }
    hashes_.push_back(h);
    nest_.nodes.push_back(std::move(n));
    return static_cast<int>(nest_.nodes.size()) - 1;
  }

  bool is_constant(int node, double value) const {
    const NestNode& n = nest_.nodes[node];
    return n.op == NestOp::kScalar && n.scalar.op == ScalarOp::kConstant &&
           (is_float(n.scalar.type) ? n.scalar.f == value : n.scalar.i == static_cast<int64_t>(value));
  }

  int push_scalar(ScalarNode s) {
    // What padding with zero leaves behind.
    if (s.op == ScalarOp::kAdd && is_constant(s.b, 0)) return s.a;
    if (s.op == ScalarOp::kAdd && is_constant(s.a, 0)) return s.b;
    if (s.op == ScalarOp::kSub && is_constant(s.b, 0)) return s.a;
    if (s.op == ScalarOp::kMul && is_constant(s.b, 1)) return s.a;
    if (s.op == ScalarOp::kMul && is_constant(s.a, 1)) return s.b;
    if (s.op == ScalarOp::kCast && nest_.nodes[s.a].scalar.type == s.type) return s.a;
    return push({.op = NestOp::kScalar, .scalar = s});
  }

  int load(ValueId v, const IndexMap& map) { return load_linear(v, linearize(map, code_.shape(v), loops_.size())); }

  int constant(DType type, double f, int64_t i) {
    return push(
        {.op = NestOp::kScalar,
         .scalar = {
             .op = ScalarOp::kConstant, .type = type, .f = is_float(type) ? f : 0, .i = is_float(type) ? 0 : i}});
  }

  static std::vector<int64_t> memo_key(ValueId v, const IndexMap& map) {
    std::vector<int64_t> key{v};
    for (const Affine& a : map) {
      key.push_back(a.offset);
      key.insert(key.end(), a.coefficients.begin(), a.coefficients.end());
    }
    return key;
  }

  int generate(ValueId v, const IndexMap& map) {
    if (outcome_ != Outcome::kBuilt) return -1;
    if (const Literal* literal = code_.literals[v]; literal != nullptr && is_uniform(*literal)) {
      return is_float(literal->type.dtype) ? constant(literal->type.dtype, element_f(*literal, 0), 0)
                                           : constant(literal->type.dtype, 0, element_i(*literal, 0));
    }
    NodeId p = code_.producer(v);
    if (p == kNoNode || !(in_group(p) || code_.free[p] || code_.roles[p] == NodeRole::kView)) return load(v, map);
    auto key = memo_key(v, map);
    if (auto at = memo_.find(key); at != memo_.end()) return at->second;
    if (++depth_ > kMaxDepth) return fail("too deep"), -1;
    int node = generate_node(p, v, map);
    --depth_;
    if (outcome_ != Outcome::kBuilt) return -1;
    memo_.emplace(std::move(key), node);
    return node;
  }

  int generate_node(NodeId p, ValueId v, const IndexMap& map) {
    const Node& node = graph_.nodes[p];
    if (in_group(p)) note(p, v, map);
    switch (code_.roles[p]) {
      case NodeRole::kElementwise:
        return elementwise(node, v, map);
      case NodeRole::kReduction:
        return reduction(node, v, map);
      case NodeRole::kPad:
        return pad(node, map);
      case NodeRole::kConcat:
        return concat(node, map);
      case NodeRole::kIota: {
        int index = push({.op = NestOp::kIndex,
                          .scalar = {.op = ScalarOp::kIndex, .type = DType::kI64},
                          .access = {-1, map[0].coefficients, map[0].offset}});
        return push_scalar({.op = ScalarOp::kCast, .type = graph_.type(v).dtype, .a = index});
      }
      default:
        break;
    }
    IndexMap in;
    ValueId x = node.inputs[0];
    const Shape& from = code_.shape(x);
    switch (code_.roles[p]) {
      case NodeRole::kView: {
        if (fit(linearize(map, code_.shape(v), loops_.size()), from, in) != Outcome::kBuilt) {
          // A view of a stored value needs no index along its dimensions, only the address.
          ValueId stored = code_.storage(x);
          NodeId q = code_.producer(stored);
          if (q != kNoNode && (in_group(q) || code_.free[q])) return -1;
          if (code_.literals[stored] != nullptr && is_uniform(*code_.literals[stored]))
            return outcome_ = Outcome::kBuilt,
                   generate(stored, IndexMap(code_.shape(stored).size(), constant_index(0, loops_.size())));
          outcome_ = Outcome::kBuilt;
          why.clear();
          Affine at = linearize(map, code_.shape(v), loops_.size());
          return load_linear(stored, at);
        }
        return generate(x, in);
      }
      case NodeRole::kBroadcast:
        return generate(x, aligned(map, from));
      case NodeRole::kTranspose: {
        in.resize(from.size());
        const auto& permutation = node.attrs.ints("permutation");
        for (size_t d = 0; d < permutation.size(); ++d) in[static_cast<size_t>(permutation[d])] = map[d];
        return generate(x, in);
      }
      case NodeRole::kSlice: {
        const auto &starts = node.attrs.ints("starts"), &strides = node.attrs.ints("strides");
        for (size_t d = 0; d < from.size(); ++d)
          in.push_back(map[d] * strides[d] + constant_index(starts[d], loops_.size()));
        return generate(x, in);
      }
      case NodeRole::kReverse: {
        in = map;
        for (int64_t d : node.attrs.ints("dims"))
          in[static_cast<size_t>(d)] =
              map[static_cast<size_t>(d)] * -1 + constant_index(from[static_cast<size_t>(d)] - 1, loops_.size());
        return generate(x, in);
      }
      default:
        return fail("no code for this op"), -1;
    }
  }

  int load_linear(ValueId v, const Affine& a) {
    auto at = std::find(inputs_.begin(), inputs_.end(), v);
    int operand = static_cast<int>(at - inputs_.begin());
    if (at == inputs_.end()) inputs_.push_back(v);
    return push({.op = NestOp::kLoad,
                 .scalar = {.op = ScalarOp::kInput, .type = graph_.type(v).dtype},
                 .access = {operand, a.coefficients, a.offset}});
  }

  // An operand's map under NumPy broadcasting.
  IndexMap aligned(const IndexMap& map, const Shape& shape) const {
    IndexMap in;
    size_t lead = map.size() - shape.size();
    for (size_t d = 0; d < shape.size(); ++d)
      in.push_back(shape[d] == 1 ? constant_index(0, loops_.size()) : map[lead + d]);
    return in;
  }

  int elementwise(const Node& node, ValueId v, const IndexMap& map) {
    auto types = input_types(graph_, node);
    ScalarFunction f = scalar_function(*node.op, {node.attrs, types});
    std::vector<int> inputs(node.inputs.size(), -1);
    for (size_t k = 0; k < node.inputs.size(); ++k) {
      if (node.inputs[k] == kNoValue) continue;
      inputs[k] = generate(node.inputs[k], aligned(map, types[k].shape));
      if (outcome_ != Outcome::kBuilt) return -1;
    }
    std::vector<int> ids(f.nodes.size(), -1);
    std::vector<bool> needed(f.nodes.size(), false);
    for (int o : f.outputs) needed[o] = true;
    for (size_t k = f.nodes.size(); k-- > 0;) {
      for (int operand : {f.nodes[k].a, f.nodes[k].b, f.nodes[k].c}) {
        if (needed[k] && operand >= 0) needed[operand] = true;
      }
    }
    for (size_t k = 0; k < f.nodes.size(); ++k) {
      ScalarNode s = f.nodes[k];
      if (!needed[k]) continue;
      if (s.op == ScalarOp::kInput) {
        ids[k] = inputs[s.index];
        continue;
      }
      if (s.op == ScalarOp::kIndex) {
        const Affine& a = map[static_cast<size_t>(s.index)];
        ids[k] = push({.op = NestOp::kIndex,
                       .scalar = {.op = ScalarOp::kIndex, .type = DType::kI64},
                       .access = {-1, a.coefficients, a.offset}});
        continue;
      }
      for (int* operand : {&s.a, &s.b, &s.c}) *operand = *operand >= 0 ? ids[*operand] : -1;
      ids[k] = push_scalar(s);
    }
    for (size_t k = 0; k < node.outputs.size(); ++k) {
      if (node.outputs[k] != v) memo_.emplace(memo_key(node.outputs[k], map), ids[f.outputs[k]]);
    }
    return ids[f.outputs[graph_.values[v].output]];
  }

  int reduction(const Node& node, ValueId v, const IndexMap& map) {
    ValueId x = node.inputs[0];
    const Shape& shape = code_.shape(x);
    auto dims = reduced_dims(node, shape.size());
    if (is_fold(v)) return fail("a total that the same sweep needs"), -1;
    for (const Affine& a : map) {
      for (size_t k = 0; k < loops_.size(); ++k) {
        if (column_[k] && loops_[k].size != 1 && a.coefficients[k] != 0)
          return fail("a reduction that varies along the columns"), -1;
      }
    }
    int64_t columns = 1, reduced = 1;
    for (const Loop& loop : loops_) columns *= loop.column ? loop.size : 1;
    Shape inner;
    for (size_t d = 0; d < shape.size(); ++d) {
      if (dims[d]) inner.push_back(shape[d]), reduced *= shape[d];
    }
    if (columns != reduced) return fail("reductions over different columns"), -1;
    IndexMap along;
    if (fit(point_number(false, true), inner, along) != Outcome::kBuilt) return -1;
    bool keep = node.attrs.i("keep", 0) != 0;
    IndexMap in;
    size_t at = 0, at_inner = 0;
    for (size_t d = 0; d < shape.size(); ++d) {
      in.push_back(dims[d] ? along[at_inner++] : map[at]);
      at += keep || !dims[d];
    }
    int value = generate(x, in);
    if (outcome_ != Outcome::kBuilt) return -1;
    return push({.op = NestOp::kReduce,
                 .scalar = {.op = ScalarOp::kInput, .type = graph_.type(v).dtype, .a = value},
                 .reduce = reduce_kind_of(*node.op)});
  }

  // Settles which part of a dimension `index` lies in; the parts begin at `starts` (ascending, starts[0] is the
  // lowest). Cuts the box where it is in several.
  int part_of(const Affine& index, const std::vector<int64_t>& starts) {
    int64_t low = lowest(index, sizes_), high = highest(index, sizes_);
    int part = static_cast<int>(std::upper_bound(starts.begin(), starts.end(), low) - starts.begin()) - 1;
    int end = static_cast<int>(std::upper_bound(starts.begin(), starts.end(), high) - starts.begin()) - 1;
    if (part == end) return part;
    bool reduces = std::find(column_.begin(), column_.end(), true) != column_.end();
    if (reduces) return fail("a choice by index in a reduction"), -1;
    int loop = -1;
    for (size_t k = 0; k < sizes_.size(); ++k) {
      if (sizes_[k] == 1 || index.coefficients[k] == 0) continue;
      // Along several loops: cut the outermost, unless the choice is the same along it.
      if (loop < 0 || std::abs(index.coefficients[k]) > std::abs(index.coefficients[loop])) loop = static_cast<int>(k);
    }
    int64_t c = index.coefficients[loop], rest_low = low - std::min<int64_t>(0, c * (sizes_[loop] - 1)),
            boundary = starts[static_cast<size_t>(part) + 1];
    // First point at or past the boundary, with the other loops at their lowest.
    int64_t cut = c > 0 ? (boundary - rest_low + c - 1) / c : (rest_low - boundary) / -c + 1;
    if (c > 0 && (cut <= 0 || cut >= sizes_[loop])) cut = sizes_[loop] / 2;
    if (c < 0 && (cut <= 0 || cut >= sizes_[loop])) cut = sizes_[loop] / 2;
    cut_loop_ = static_cast<size_t>(loop);
    cut_at_ = cut;
    outcome_ = Outcome::kCut;
    return -1;
  }

  int pad(const Node& node, const IndexMap& map) {
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

  int concat(const Node& node, const IndexMap& map) {
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

  // ---- What is computed how often.

  void note(NodeId n, ValueId v, const IndexMap& map) {
    std::vector<bool> along(loops_.size(), false);
    for (const Affine& a : map) {
      for (size_t k = 0; k < loops_.size(); ++k) along[k] = along[k] || a.coefficients[k] != 0;
    }
    auto& s = seen_[n];
    s.maps.push_back(memo_key(v, map));
    s.maps.back()[0] = 0;  // outputs of one node count once
    s.along = along;
  }

  Outcome check_repeats() {
    bool reduces = std::find(column_.begin(), column_.end(), true) != column_.end();
    int64_t cheap_work = 0;
    for (auto& [n, s] : seen_) {
      std::sort(s.maps.begin(), s.maps.end());
      s.maps.erase(std::unique(s.maps.begin(), s.maps.end()), s.maps.end());
      if (s.maps.size() > 1) return fail("a value needed at two places");
      // Loops that it does not vary along cost a recomputation each, unless they are all columns (then it is a row's
      // value) or all innermost.
      int64_t repeats = 1;
      bool any_column = false;
      int last = -1;
      for (size_t k = 0; k < loops_.size(); ++k) {
        if (s.along[k] && loops_[k].size != 1) {
          last = static_cast<int>(k);
          any_column = any_column || column_[k];
        }
      }
      for (size_t k = 0; k < loops_.size(); ++k) {
        if (s.along[k] || loops_[k].size == 1) continue;
        bool hoisted = reduces ? column_[k] && !any_column : static_cast<int>(k) > last;
        if (!hoisted) repeats *= loops_[k].size;
      }
      if (repeats == 1) continue;
      const Node& node = graph_.nodes[n];
      if (code_.roles[n] == NodeRole::kReduction) return fail("a reduction repeated");
      if (code_.roles[n] != NodeRole::kElementwise) continue;
      auto types = input_types(graph_, node);
      int cost = scalar_cost(scalar_function(*node.op, {node.attrs, types}));
      cheap_work += cost;
      if (cost > 3 || cheap_work > 6) return fail("something expensive repeated");
    }
    return Outcome::kBuilt;
  }

  // ---- Assembly.

  void finish(GroupCode& code, std::vector<std::pair<ValueId, NestStore>>& stores,
              std::vector<std::pair<ValueId, NestFold>>& folds) {
    BuiltNest built;
    for (ValueId v : inputs_) built.operands.push_back({v, -1});
    nest_.inputs = static_cast<int>(inputs_.size());
    for (auto& [v, store] : stores) {
      store.access.operand = static_cast<int>(built.operands.size());
      built.operands.push_back({code_.storage(v), -1});
      nest_.stores.push_back(store);
    }
    int first_temporary = static_cast<int>(code.temporaries.size());
    for (size_t k = 0; k < folds.size(); ++k) {
      NestFold fold = folds[k].second;
      fold.access.operand = static_cast<int>(built.operands.size());
      built.operands.push_back({kNoValue, first_temporary + static_cast<int>(k)});
      nest_.folds.push_back(fold);
    }
    for (const NestOperand& o : built.operands)
      nest_.operands.push_back(o.value == kNoValue ? DType::kInvalid : graph_.type(o.value).dtype);
    for (size_t k = 0; k < folds.size(); ++k)
      nest_.operands[built.operands.size() - folds.size() + k] = graph_.type(folds[k].first).dtype;
    built.nest = nest_;
    remove_unused(built.nest);
    schedule(built.nest, column_);
    keep_results(built.nest);
    int64_t parts = units(built.nest);
    for (auto& [v, fold] : folds) code.temporaries.push_back({graph_.type(v).dtype, {parts, fold.extent}});
    code.nests.push_back(std::move(built));
    // Folds of one length are combined in one sweep.
    std::map<int64_t, std::vector<size_t>> by_extent;
    for (size_t k = 0; k < folds.size(); ++k) by_extent[folds[k].second.extent].push_back(k);
    for (const auto& [extent, which] : by_extent)
      code.nests.push_back(combine(folds, which, parts, extent, first_temporary));
  }

  // Adds up what the units of folds left.
  BuiltNest combine(const std::vector<std::pair<ValueId, NestFold>>& folds, const std::vector<size_t>& which,
                    int64_t parts, int64_t extent, int first_temporary) const {
    BuiltNest built;
    LoopNest& nest = built.nest;
    nest.sizes = {parts, extent};
    int64_t step = extent == 1 ? 0 : 1;
    nest.inputs = static_cast<int>(which.size());
    for (size_t k = 0; k < which.size(); ++k) {
      DType type = graph_.type(folds[which[k]].first).dtype;
      int node = static_cast<int>(nest.nodes.size()), operand = static_cast<int>(k);
      nest.operands.push_back(type);
      built.operands.push_back({kNoValue, first_temporary + static_cast<int>(which[k])});
      nest.nodes.push_back({.op = NestOp::kLoad,
                            .scalar = {.op = ScalarOp::kInput, .type = type},
                            .access = {operand, {extent, step}, 0}});
      nest.nodes.push_back({.op = NestOp::kReduce,
                            .scalar = {.op = ScalarOp::kInput, .type = type, .a = node},
                            .reduce = folds[which[k]].second.reduce});
      nest.stores.push_back({node + 1, {nest.inputs + operand, {0, step}, 0}});
    }
    for (size_t k : which) {
      nest.operands.push_back(graph_.type(folds[k].first).dtype);
      built.operands.push_back({code_.storage(folds[k].first), -1});
    }
    schedule(nest, {true, false});
    return built;
  }

  // Drops nodes that no store needs (second results, folded constants) and operands that then are not read.
  static void remove_unused(LoopNest& nest) {
    std::vector<bool> needed(nest.nodes.size(), false);
    for (const NestStore& s : nest.stores) needed[s.node] = true;
    for (const NestFold& f : nest.folds) needed[f.node] = true;
    for (size_t k = nest.nodes.size(); k-- > 0;) {
      for (int operand : {nest.nodes[k].scalar.a, nest.nodes[k].scalar.b, nest.nodes[k].scalar.c}) {
        if (needed[k] && operand >= 0) needed[operand] = true;
      }
    }
    std::vector<int> now(nest.nodes.size(), -1);
    std::vector<NestNode> kept;
    for (size_t k = 0; k < nest.nodes.size(); ++k) {
      if (!needed[k]) continue;
      NestNode n = nest.nodes[k];
      for (int* operand : {&n.scalar.a, &n.scalar.b, &n.scalar.c}) *operand = *operand >= 0 ? now[*operand] : -1;
      now[k] = static_cast<int>(kept.size());
      kept.push_back(std::move(n));
    }
    nest.nodes = std::move(kept);
    for (NestStore& s : nest.stores) s.node = now[s.node];
    for (NestFold& f : nest.folds) f.node = now[f.node];
  }

  // Nothing to compute but reductions of nothing, which have a value all the same.
  std::optional<GroupCode> empty_domain() {
    GroupCode code;
    for (ValueId v : outputs_) {
      int64_t n = elements(code_.shape(v));
      if (n == 0) continue;
      if (nodes_.size() != 1 || code_.roles[nodes_[0]] != NodeRole::kReduction)
        return fail("reductions of nothing"), std::nullopt;
      DType type = graph_.type(v).dtype;
      ReduceKind kind = reduce_kind_of(*graph_.nodes[nodes_[0]].op);
      BuiltNest built;
      built.nest.sizes = {n};
      built.nest.operands = {type};
      double f = kind == ReduceKind::kSum    ? 0
                 : kind == ReduceKind::kProd ? 1
                 : kind == ReduceKind::kMax  ? -INFINITY
                                             : INFINITY;
      int64_t bits = dtype_size(type) * 8,
              most = is_unsigned(type) ? -1 : static_cast<int64_t>((~uint64_t{0} >> 1) >> (64 - bits)),
              least = is_unsigned(type) ? 0 : -most - 1;
      int64_t i = kind == ReduceKind::kSum    ? 0
                  : kind == ReduceKind::kProd ? 1
                  : kind == ReduceKind::kMax  ? least
                                              : most;
      built.nest.nodes.push_back(
          {.op = NestOp::kScalar,
           .scalar = {
               .op = ScalarOp::kConstant, .type = type, .f = is_float(type) ? f : 0, .i = is_float(type) ? 0 : i}});
      built.nest.stores.push_back({0, {0, {1}, 0}});
      schedule(built.nest, {false});
      built.operands = {{code_.storage(v), -1}};
      code.nests.push_back(std::move(built));
    }
    return code;
  }

  struct Seen {
    std::vector<std::vector<int64_t>> maps;
    std::vector<bool> along;
  };

  const CodeGraph& code_;
  const Graph& graph_;
  std::span<const NodeId> nodes_;
  std::span<const ValueId> outputs_;
  bool single_;
  Domain domain_;
  std::vector<Loop> loops_;
  std::vector<bool> column_;

  // Of the box being built.
  int64_t origin_ = 0;
  std::vector<int64_t> sizes_;
  LoopNest nest_;
  std::vector<uint64_t> hashes_;
  std::map<std::vector<int64_t>, int> memo_;
  std::map<NodeId, Seen> seen_;
  std::vector<ValueId> inputs_;
  Outcome outcome_ = Outcome::kBuilt;
  LoopSplit split_;
  size_t cut_loop_ = 0;
  int64_t cut_at_ = 0;
  int depth_ = 0;
};

}  // namespace

std::optional<GroupCode> build_group(const CodeGraph& graph, std::span<const NodeId> nodes,
                                     std::span<const ValueId> outputs, std::string* why) {
  NestMaker builder(graph, nodes, outputs);
  auto code = builder.run();
  if (why != nullptr) *why = builder.why;
  return code;
}

}  // namespace partita
