#include "tools/verify/kernels/prove_nest.h"

#include <algorithm>
#include <numeric>
#include <set>

#include "base/status.h"
#include "tools/verify/kernels/whole_nest.h"
#include "tools/verify/layout/mismatch.h"

namespace partita::verifier {
namespace {

constexpr int kMostSplits = 64;
constexpr size_t kMostSigns = 6;     // of relus in a nest, each of which may be seen in two ways
constexpr size_t kMostOrders = 512;  // in which rows and columns can be the dimensions of what is reduced

std::set<int> given_to(const NestUse& use) {
  std::set<int> given;
  for (int o = 0; o < use.nest.inputs; ++o) {
    if (const int v = use.values[static_cast<size_t>(o)]; v >= 0) given.insert(v);
  }
  return given;
}

// A nest with its expressions, at some splitting of its loops.
struct Walk {
  const LoopNest& nest;
  const std::vector<Affine>& numbers;
  Expressions& e;
  GraphExpressions& graph;
  const std::vector<int>& made;  // per node

  // That a node is `expected`, as the graph says.
  absl::Status equal(int expected, int node) const {
    if (graph.split() || !graph.status().ok()) return graph.status();
    const int found = made[static_cast<size_t>(node)];
    return expected == found ? absl::OkStatus() : differs(e.difference(expected, found));
  }
};

// A point's number, where these loops are one inside the other in this order.
Affine point_number_in(const LoopNest& nest, const std::vector<size_t>& order) {
  Affine number = constant_index(0, nest.sizes.size());
  int64_t stride = 1;
  for (size_t d = order.size(); d-- > 0;) {
    number.coefficients[order[d]] = stride;
    stride *= nest.sizes[order[d]];
  }
  return number;
}

// Runs `prove` on a nest, with loops made two until it needs no more of it. `columns`: the order of those loops in
// which reductions number their elements; empty: their own.
template <typename Prove>
absl::Status walk(const CodeView& code, const NestUse& use, std::vector<Affine> numbers, Prove prove,
                  const std::vector<size_t>& columns, uint32_t own_signs, size_t& either_sign) {
  LoopNest nest = with_whole_columns(use.nest);
  const int loops = static_cast<int>(nest.sizes.size());
  numbers.push_back(columns.empty() ? point_number(nest, nest.rows(), loops) : point_number_in(nest, columns));
  const std::set<int> given = given_to(use);
  std::optional<ReductionOrder> order;
  if (use.nest.strict) order = column_order(use.nest);
  for (int round = 0; round < kMostSplits; ++round) {
    Expressions e(nest.sizes, nest.columns);
    GraphExpressions graph(code, given, nest, order, numbers.back(), own_signs, e);
    const std::vector<int> made = nest_expressions(nest, use.values, e);
    const absl::Status status = prove(Walk{nest, numbers, e, graph, made});
    either_sign = graph.either_sign().size();
    if (!graph.split()) return status;
    split_loop(nest, numbers, *graph.split());
  }
  return differs("expected loops that follow the dimensions of its values");
}

template <typename Prove>
absl::Status walk(const CodeView& code, const NestUse& use, const std::vector<Affine>& numbers, Prove prove,
                  const std::vector<size_t>& columns = {}) {
  size_t either_sign = 0;
  const absl::Status first = walk(code, use, numbers, prove, columns, 0, either_sign);
  const uint32_t ways = 1U << std::min(either_sign, kMostSigns);
  for (uint32_t own_signs = 1; !first.ok() && own_signs < ways; ++own_signs) {
    if (walk(code, use, numbers, prove, columns, own_signs, either_sign).ok()) return absl::OkStatus();
  }
  return first;
}

// What an operand holds in the end: of several stores, the one in the last pass.
const NestStore& last_store(const LoopNest& nest, int operand) {
  const std::vector<int> level = levels(nest);
  const NestStore* last = nullptr;
  for (const NestStore& s : nest.stores) {
    if (s.access.operand != operand) continue;
    const bool later = last == nullptr || level[static_cast<size_t>(s.node)] > level[static_cast<size_t>(last->node)];
    if (later) last = &s;
  }
  return *last;
}

// Where values have their channels last in memory, and not in their shape, a reduction's columns are its dimensions in
// another order than theirs.
absl::Status prove_store(const CodeView& code, const NestUse& use, int operand, int value) {
  const auto prove = [&](const Walk& w) -> absl::Status {
    const NestStore& store = last_store(w.nest, operand);
    IndexMap map;
    if (!w.graph.fit({store.access.offset, store.access.strides}, code.graph.type(value).shape, map))
      return w.graph.status();
    return w.equal(w.graph.result(value, map), store.node);
  };
  absl::Status first = walk(code, use, {}, prove);
  const LoopNest nest = with_whole_columns(use.nest);
  const bool reduces =
      std::any_of(nest.nodes.begin(), nest.nodes.end(), [](const NestNode& n) { return n.op == NestOp::kReduce; });
  if (first.ok() || use.nest.strict || !reduces) return first;
  std::vector<size_t> order(static_cast<size_t>(nest.columns));
  std::iota(order.begin(), order.end(), static_cast<size_t>(nest.rows()));
  for (size_t tried = 1; tried < kMostOrders && std::next_permutation(order.begin(), order.end()); ++tried) {
    if (walk(code, use, {}, prove, order).ok()) return absl::OkStatus();
  }
  return first;
}

// Orders of all loops that keep the rows' and the columns' own: a domain's dimensions are one of them. Behind them all
// others: of values whose channels are last in memory, and not in their shape, the dimensions are one of those.
std::vector<Affine> point_numbers(const LoopNest& nest) {
  const size_t loops = nest.sizes.size();
  std::vector<bool> column(loops, false);
  std::fill(column.begin() + nest.rows(), column.end(), true);
  std::vector<Affine> numbers;
  std::vector<size_t> order(loops);
  do {
    size_t row = static_cast<size_t>(nest.rows()), at = loops;
    for (size_t d = loops; d-- > 0;) order[d] = column[d] ? --at : --row;
    numbers.push_back(point_number_in(nest, order));
  } while (numbers.size() < kMostOrders && std::next_permutation(column.begin(), column.end()));
  std::iota(order.begin(), order.end(), 0);
  while (numbers.size() < kMostOrders && std::next_permutation(order.begin(), order.end()))
    numbers.push_back(point_number_in(nest, order));
  return numbers;
}

// A reduction over rows, of each column or of the columns too. Its dimensions may be stored in another order.
class FoldProof {
 public:
  FoldProof(const CodeView& code, const NestUse& use, int operand, int value)
      : code_(code), use_(use), operand_(operand), value_(value), node_(code.graph.producer(value)) {
    stored_.resize(code.graph.type(value).shape.size());
    std::iota(stored_.begin(), stored_.end(), 0);
    while (node_ != nullptr && node_->op->name == "transpose") {
      const std::vector<int64_t>& perm = node_->attrs.ints("permutation");
      for (size_t& d : stored_) d = static_cast<size_t>(perm[d]);
      node_ = code.graph.producer(node_->inputs[0]);
    }
  }

  absl::Status run() {
    const std::optional<ReduceKind> kind = node_ == nullptr ? std::nullopt : reduce_kind(*node_->op);
    const LoopNest whole = with_whole_columns(use_.nest);
    const NestFold* fold = fold_of(whole);
    if (!kind || fold == nullptr || fold->reduce != *kind)
      return differs("expected the node of ", code_.name(value_), ", found a reduction over rows");
    const Shape& shape = code_.graph.type(node_->inputs[0]).shape;
    const bool total = whole.nodes[static_cast<size_t>(fold->node)].op == NestOp::kReduce;
    const int64_t kept = elements(chosen_dims(*node_, shape, false)),
                  reduced = elements(chosen_dims(*node_, shape, true));
    WrittenParts parts;
    if (fold->extent != kept || !parts.is_all(kept, part_of(whole, *fold)) ||
        row_points(whole) * (total ? column_points(whole) : 1) != reduced)
      return differs("expected all of ", code_.name(value_), ", found another reduction");
    const DType type = code_.graph.type(value_).dtype;
    if (use_.nest.strict &&
        fold_order(use_.nest, *fold_of(use_.nest)) != strict_order(shape, reduced_flags(*node_, shape.size()), type))
      return differs("expected a reduction in the order of its shape, found another order");
    return total ? prove_total(whole) : prove_columns();
  }

 private:
  const NestFold* fold_of(const LoopNest& nest) const {
    auto at = std::find_if(nest.folds.begin(), nest.folds.end(),
                           [&](const NestFold& f) { return f.access.operand == operand_; });
    return at == nest.folds.end() ? nullptr : &*at;
  }

  // Of everything, in whatever order of dimensions; where it matters, in theirs.
  absl::Status prove_total(const LoopNest& whole) {
    absl::Status first;
    for (const Affine& number : point_numbers(whole)) {
      absl::Status status = walk(code_, use_, {number}, [&](const Walk& w) -> absl::Status {
        IndexMap map;
        const ValueId of = node_->inputs[0];
        if (!w.graph.fit(w.numbers[0], code_.graph.type(of).shape, map)) return w.graph.status();
        return w.equal(w.graph.value(of, map), w.nest.nodes[static_cast<size_t>(fold_of(w.nest)->node)].scalar.a);
      });
      if (status.ok() || use_.nest.strict) return status;
      first.Update(status);
    }
    return first;
  }

  // Of all rows, for each column.
  absl::Status prove_columns() {
    return walk(code_, use_, {}, [&](const Walk& w) -> absl::Status {
      const NestFold& fold = *fold_of(w.nest);
      const ValueId of = node_->inputs[0];
      const Shape& shape = code_.graph.type(of).shape;
      IndexMap along, stored, map;
      if (!w.graph.fit(point_number(w.nest, 0, w.nest.rows()), chosen_dims(*node_, shape, true), along) ||
          !w.graph.fit({fold.access.offset, fold.access.strides}, code_.graph.type(value_).shape, stored))
        return w.graph.status();
      IndexMap columns(stored.size());  // of the reduction's own result
      for (size_t d = 0; d < stored.size(); ++d) columns[stored_[d]] = stored[d];
      std::vector<bool> reduced(shape.size(), false);
      for (int64_t d : node_->attrs.ints("dims")) reduced[static_cast<size_t>(d)] = true;
      const bool keeps = columns.size() == shape.size();
      for (size_t d = 0, r = 0, c = 0; d < shape.size(); ++d) {
        map.push_back(reduced[d] ? along[r++] : columns[keeps ? d : c++]);
      }
      return w.equal(w.graph.value(of, map), fold.node);
    });
  }

  const CodeView& code_;
  const NestUse& use_;
  const int operand_, value_;
  const Node* node_;            // the reduction
  std::vector<size_t> stored_;  // its result's dimensions, in the order of the value's
};

// Adds up, over its columns, what the units of another kernel have left in a temporary.
absl::Status prove_sum_of_parts(const CodeView& code, const NestUse& use, const NestStore& store, const NestNode& load,
                                const TemporaryWriters& writers, int value) {
  const LoopNest nest = with_whole_columns(use.nest);
  const NestNode& node = nest.nodes[static_cast<size_t>(store.node)];
  const auto writer = writers.find(use.values[static_cast<size_t>(load.access.operand)]);
  if (writer == writers.end()) return differs("expected partial results that a kernel has written, found none");
  const NestUse& from = *writer->second.use;
  auto fold = std::find_if(from.nest.folds.begin(), from.nest.folds.end(),
                           [&](const NestFold& f) { return f.access.operand == writer->second.operand; });
  if (fold == from.nest.folds.end()) return differs("expected partial results, found another temporary");
  const DType type = from.nest.operands[static_cast<size_t>(writer->second.operand)];
  const bool reduces = node.op == NestOp::kReduce;
  const int64_t parts = units(from.nest);
  bool right =
      load.scalar.type == type && (reduces ? node.reduce == fold->reduce && column_points(nest) == parts : parts == 1);
  if (reduces && use.nest.strict)
    right = right && column_order(use.nest) == strict_order_of_parts(parts, fold->extent, type);
  int64_t step = fold->extent;
  right = right && load.access.offset == store.access.offset;
  for (size_t k = nest.sizes.size(); k-- > 0;) {
    const bool part = reduces && static_cast<int>(k) >= nest.rows();
    if (nest.sizes[k] == 1) continue;
    right = right && load.access.strides[k] == (part ? step : store.access.strides[k]);
    right = right && !(part && store.access.strides[k] != 0);
    if (part) step *= nest.sizes[k];
  }
  if (!right)
    return differs("expected the sum of ", parts, " partial results of ", fold->extent, " elements, found another");
  return FoldProof(code, from, writer->second.operand, value).run();
}

// A load of a temporary that is stored as it is, or reduced over the columns.
const NestNode* load_of_parts(const NestUse& use, const LoopNest& nest, int node) {
  const NestNode* n = &nest.nodes[static_cast<size_t>(node)];
  if (n->op == NestOp::kReduce) n = &nest.nodes[static_cast<size_t>(n->scalar.a)];
  const bool parts = n->op == NestOp::kLoad && use.values[static_cast<size_t>(n->access.operand)] < -1;
  return parts ? n : nullptr;
}

absl::Status prove_result(const CodeView& code, const NestUse& use, int operand, const TemporaryWriters& writers) {
  const int value = use.values[static_cast<size_t>(operand)];
  const LoopNest whole = with_whole_columns(use.nest);
  const bool folds = std::any_of(whole.folds.begin(), whole.folds.end(),
                                 [&](const NestFold& f) { return f.access.operand == operand; });
  if (folds) return differs("expected all of it, found partial results");
  const NestStore& store = last_store(whole, operand);
  const NestNode* load = load_of_parts(use, whole, store.node);
  return load != nullptr ? prove_sum_of_parts(code, use, store, *load, writers, value)
                         : prove_store(code, use, operand, value);
}

}  // namespace

absl::Status prove_nest(const CodeView& code, const NestUse& use, const TemporaryWriters& writers) {
  for (int o = use.nest.inputs; o < static_cast<int>(use.nest.operands.size()); ++o) {
    const int value = use.values[static_cast<size_t>(o)];
    if (value < 0) continue;
    const absl::Status status = prove_result(code, use, o, writers);
    if (!status.ok()) return differs("operand ", o, ": ", code.name(value), ": ", status.message());
  }
  return absl::OkStatus();
}

absl::Status prove_cast(const CodeView& code, const TemporaryWriter& writer, int value, DType type) {
  const LoopNest& nest = writer.use->nest;
  const Shape& shape = code.graph.type(value).shape;
  WrittenParts parts;
  const bool stored = std::any_of(nest.stores.begin(), nest.stores.end(),
                                  [&](const NestStore& s) { return s.access.operand == writer.operand; });
  if (!stored || nest.operands[static_cast<size_t>(writer.operand)] != type ||
      !parts.is_all(elements(shape), written_part(nest, writer.operand)))
    return differs("expected all of ", code.name(value), " in ", dtype_name(type));
  return walk(code, *writer.use, {}, [&](const Walk& w) -> absl::Status {
    const NestStore& store = last_store(w.nest, writer.operand);
    IndexMap map;
    if (!w.graph.fit({store.access.offset, store.access.strides}, shape, map)) return w.graph.status();
    const int of = w.graph.value(value, map);
    const int expected = of < 0 ? -1 : w.e.scalar({.op = ScalarOp::kCast, .type = type, .a = of});
    return w.equal(expected, store.node);
  });
}

WrittenPart written_part(const LoopNest& nest, int operand) {
  const LoopNest whole = with_whole_columns(nest);
  for (const NestFold& f : whole.folds) {
    if (f.access.operand == operand) return part_of(whole, f);
  }
  return part_of(whole, last_store(whole, operand));
}

}  // namespace partita::verifier
