#include <algorithm>
#include <functional>

#include "ir/graph/builder.h"
#include "ir/op/op_def.h"
#include "tools/mutation/graph_edits.h"
#include "tools/mutation/tree_mutations.h"

namespace partita {
namespace {

using Stages = std::vector<LocalProgram>;

struct At {
  LocalProgram* stage = nullptr;
  NodeId node = kNoNode;
  Graph& graph() const { return stage->graph; }
  Node& operator*() const { return graph().nodes[static_cast<size_t>(node)]; }
};

// One of the nodes that fit; no stage where there is none.
At pick(Stages& stages, std::mt19937& rng, const std::function<bool(const Graph&, const Node&)>& fits) {
  std::vector<At> found;
  for (LocalProgram& s : stages) {
    for (size_t n = 0; n < s.graph.nodes.size(); ++n) {
      if (fits(s.graph, s.graph.nodes[n])) found.push_back({&s, static_cast<NodeId>(n)});
    }
  }
  return found.empty() ? At{} : found[rng() % found.size()];
}

// `old` by `r`, with what `make` gives as the result of one of its nodes.
Graph with_result(const Graph& old, Rewriter r, NodeId one,
                  const std::function<ValueId(const Node&, Rewriter&)>& make) {
  for (size_t n = 0; n < old.nodes.size(); ++n) {
    const Node& node = old.nodes[n];
    if (static_cast<NodeId>(n) != one) {
      r.copy(node);
      continue;
    }
    r.at(node);
    r.replace(node.outputs[0], make(node, r));
  }
  return std::move(r).finish();
}

bool is_tree(const Graph&, const Node& n) { return n.op->name == "accumulate_tree"; }

// Each micro-batch's term is added to the sum of all before it.
bool chain_of_terms(Stages& stages, std::mt19937& rng) {
  const At at = pick(stages, rng, is_tree);
  if (at.stage == nullptr) return false;
  (*at).op = find_op("accumulate");
  (*at).attrs = {};
  return true;
}

// A tree over other terms than there are.
bool other_leaves(Stages& stages, std::mt19937& rng) {
  const At at = pick(stages, rng, is_tree);
  if (at.stage == nullptr) return false;
  const int64_t terms = (*at).attrs.i("micro_batches");
  (*at).attrs.set("micro_batches", rng() % 2 == 0 && terms > 1 ? terms / 2 : terms * 2);
  return true;
}

// Ranks meet before a rank's own micro-batches do.
bool ranks_first(Stages& stages, std::mt19937& rng) {
  auto sum_over_ranks = [](const Graph& g, ValueId of) {
    for (size_t n = 0; n < g.nodes.size(); ++n) {
      const Node& x = g.nodes[n];
      if (x.op->name == "all_reduce" && x.segment == Segment::kReduce &&
          std::count(x.inputs.begin(), x.inputs.end(), of) > 0)
        return static_cast<NodeId>(n);
    }
    return kNoNode;
  };
  const At tree = pick(stages, rng, [&](const Graph& g, const Node& n) {
    return is_tree(g, n) && sum_over_ranks(g, n.outputs[0]) != kNoNode;
  });
  if (tree.stage == nullptr) return false;
  const Graph old = tree.graph();
  const NodeId late = sum_over_ranks(old, old.nodes[tree.node].outputs[0]);
  const Node& sum = old.nodes[late];
  Rewriter r(old);
  for (size_t n = 0; n < old.nodes.size(); ++n) {
    const Node& node = old.nodes[n];
    r.at(node);
    if (static_cast<NodeId>(n) == tree.node) {
      const ValueId early = r.builder().emit("all_reduce", {r(node.inputs[1])}, sum.attrs);
      r.replace(node.outputs[0], r.builder().emit("accumulate_tree", {r(node.inputs[0]), early}, node.attrs));
    } else if (static_cast<NodeId>(n) == late) {
      std::vector<ValueId> others, results;
      for (size_t k = 0; k < node.inputs.size(); ++k) {
        const bool moved = node.inputs[k] == old.nodes[tree.node].outputs[0];
        if (moved) r.replace(node.outputs[k], r(node.inputs[k]));
        if (!moved) others.push_back(r(node.inputs[k])), results.push_back(node.outputs[k]);
      }
      if (others.empty()) continue;
      const std::vector<ValueId> made = r.builder().emit_all("all_reduce", others, node.attrs);
      for (size_t k = 0; k < results.size(); ++k) r.replace(results[k], made[k]);
    } else {
      r.copy(node);
    }
  }
  tree.graph() = std::move(r).finish();
  return true;
}

bool sums_gradients(const Graph& g, const Node& n) {
  return n.op->name == "all_reduce" && n.attrs.s("reduce", "sum") == "sum" && is_float(g.type(n.inputs[0]).dtype) &&
         n.attrs.ints("axes").size() > 1;
}

// Ranks of several axes in another order.
bool axes_in_turn(Stages& stages, std::mt19937& rng) {
  const At at = pick(stages, rng, sums_gradients);
  if (at.stage == nullptr) return false;
  std::vector<int64_t> axes = (*at).attrs.ints("axes");
  std::reverse(axes.begin(), axes.end());
  (*at).attrs.set("axes", axes);
  return true;
}

// (a + b) + c becomes a + (b + c): of what the squares of parameters, or terms of a gradient, leave.
bool other_brackets(Stages& stages, std::mt19937& rng) {
  auto adds = [](const Graph& g, const Node* n) {
    return n != nullptr && n->op->name == "add" && n->segment == Segment::kUpdate &&
           is_float(g.type(n->outputs[0]).dtype);
  };
  const At outer = pick(stages, rng, [&](const Graph& g, const Node& n) {
    return adds(g, &n) && adds(g, g.producer(n.inputs[0])) && g.producer(n.inputs[1]) != nullptr &&
           g.type(n.inputs[1]) == g.type(n.outputs[0]) &&
           g.type(g.producer(n.inputs[0])->inputs[1]) == g.type(n.outputs[0]);
  });
  if (outer.stage == nullptr) return false;
  const Graph old = outer.graph();
  outer.graph() = with_result(old, Rewriter(old), outer.node, [&](const Node& node, Rewriter& r) {
    const Node& inner = *old.producer(node.inputs[0]);
    const ValueId rest = r.builder().add(r(inner.inputs[1]), r(node.inputs[1]));
    return r.builder().add(r(inner.inputs[0]), rest);
  });
  return true;
}

// The blocks of a norm one after the other, not as a tree.
bool flat_norm(Stages& stages, std::mt19937& rng) {
  const At at = pick(stages, rng, [](const Graph&, const Node& n) { return n.op->name == "sum_tree"; });
  if (at.stage == nullptr) return false;
  (*at).op = find_op("reduce_sum");
  (*at).attrs = {{"dims", std::vector<int64_t>{0}}, {"keep", int64_t{0}}};
  return true;
}

// A norm's squares in other blocks.
bool other_blocks(Stages& stages, std::mt19937& rng) {
  const At at = pick(stages, rng, [](const Graph& g, const Node& n) {
    return n.op->name == "block_squares" && g.type(n.inputs[0]).shape[2] % 2 == 0;
  });
  if (at.stage == nullptr) return false;
  const Graph old = at.graph();
  at.graph() = with_result(old, Rewriter(old), at.node, [&](const Node& node, Rewriter& r) {
    Builder& b = r.builder();
    const Shape& shape = old.type(node.inputs[0]).shape;
    const ValueId halves =
        b.emit("block_squares", {b.reshape(r(node.inputs[0]), {shape[0], shape[1] * 2, shape[2] / 2})});
    return b.reduce_sum(b.reshape(halves, {shape[1], 2}), {1}, false);
  });
  return true;
}

// A product whose inner dimension is added up in blocks.
bool has_blocks(const Graph&, const Node& n) { return n.op->name == "matmul" && n.attrs.i("block", 0) > 0; }

int64_t inner_of(const Graph& g, const Node& n) {
  const Shape& shape = g.type(n.inputs[0]).shape;
  return shape[shape.size() - (n.attrs.i("transpose_a", 0) != 0 ? 2 : 1)];
}

void set_blocks(Node& n, int64_t groups, int64_t block) {
  if (groups > 1 || n.attrs.has("groups")) n.attrs.set("groups", groups);
  n.attrs.set("block", block);
}

// A rank adds up all that it has, one after the other.
bool chain_of_blocks(Stages& stages, std::mt19937& rng) {
  const At at = pick(stages, rng, [](const Graph& g, const Node& n) {
    return has_blocks(g, n) && inner_of(g, n) > n.attrs.i("groups", 1) * n.attrs.i("block");
  });
  if (at.stage == nullptr) return false;
  set_blocks(*at, 1, 0);
  return true;
}

bool blocks_of_other_sizes(Stages& stages, std::mt19937& rng) {
  const At at =
      pick(stages, rng, [](const Graph& g, const Node& n) { return has_blocks(g, n) && n.attrs.i("block") % 2 == 0; });
  if (at.stage == nullptr) return false;
  const int64_t block = (*at).attrs.i("block"), groups = (*at).attrs.i("groups", 1);
  const bool larger = inner_of(at.graph(), *at) > groups * block && rng() % 2 == 0;
  set_blocks(*at, groups, larger ? block * 2 : block / 2);
  return true;
}

// The same number of blocks, each of elements that lie elsewhere.
bool blocks_elsewhere(Stages& stages, std::mt19937& rng) {
  const At at = pick(stages, rng, [](const Graph& g, const Node& n) {
    return has_blocks(g, n) && (n.attrs.i("block") % 2 == 0 || n.attrs.i("groups", 1) > 1);
  });
  if (at.stage == nullptr) return false;
  const int64_t block = (*at).attrs.i("block"), groups = (*at).attrs.i("groups", 1);
  if (groups > 1)
    set_blocks(*at, 1, block * groups);
  else
    set_blocks(*at, 2, block / 2);
  return true;
}

// A product in whatever order its sizes give.
bool product_in_any_order(Stages& stages, std::mt19937& rng) {
  const At at = pick(stages, rng, has_blocks);
  if (at.stage == nullptr) return false;
  Attrs left;
  for (const char* name : {"transpose_a", "transpose_b"}) {
    if ((*at).attrs.has(name)) left.set(name, (*at).attrs.i(name));
  }
  (*at).attrs = left;
  return true;
}

// What is added to the sum of all ranks' blocks is added to the first rank's, before they meet.
bool sum_after_addition(Stages& stages, std::mt19937& rng) {
  auto sum_of_blocks = [](const Graph& g, ValueId v) -> const Node* {
    const Node* sum = g.producer(v);
    if (sum != nullptr && sum->op->view) sum = g.producer(sum->inputs[0]);
    const bool is_sum = sum != nullptr && sum->op->name == "all_reduce" && sum->inputs.size() == 1;
    const Node* of = is_sum ? g.producer(sum->inputs[0]) : nullptr;
    return of != nullptr && has_blocks(g, *of) ? sum : nullptr;
  };
  const At at = pick(stages, rng, [&](const Graph& g, const Node& n) {
    return n.op->name == "add" &&
           (sum_of_blocks(g, n.inputs[0]) == nullptr) != (sum_of_blocks(g, n.inputs[1]) == nullptr);
  });
  if (at.stage == nullptr) return false;
  const Graph old = at.graph();
  const Node& addition = old.nodes[static_cast<size_t>(at.node)];
  const size_t of_sum = sum_of_blocks(old, addition.inputs[0]) != nullptr ? 0 : 1;
  const Node& sum = *sum_of_blocks(old, addition.inputs[of_sum]);
  const std::string axis = at.stage->mesh.axes[static_cast<size_t>(sum.attrs.ints("axes")[0])].name;
  Rewriter r(old);
  ValueId coordinate = kNoValue;
  for (const GraphInput& in : old.inputs) {
    if (in.kind == InputKind::kCoordinate && in.name == axis) coordinate = r(in.value);
  }
  if (coordinate == kNoValue) {
    coordinate = r.builder().input(axis, {DType::kI64, {}}, InputKind::kCoordinate);
    at.stage->inputs.push_back({{}, Sharding{}});
  }
  at.graph() = with_result(old, std::move(r), at.node, [&](const Node& node, Rewriter& r) {
    Builder& b = r.builder();
    const ValueId first = b.emit("eq", {coordinate, b.scalar(DType::kI64, 0)}), other = r(node.inputs[1 - of_sum]);
    const ValueId once = b.select(first, other, b.scalar(b.dtype(other), 0));
    const Shape& shape = old.type(node.inputs[of_sum]).shape;
    return b.emit("all_reduce", {b.add(b.reshape(r(sum.inputs[0]), shape), once)}, sum.attrs);
  });
  return true;
}

constexpr TreeMutation kMutations[] = {
    {.name = "a chain of micro-batches, no tree", .in_graphs = chain_of_terms},
    {.name = "a tree over another number of micro-batches", .in_graphs = other_leaves},
    {.name = "ranks before a rank's own micro-batches", .in_graphs = ranks_first},
    {.name = "ranks in the order of another axis", .in_graphs = axes_in_turn},
    {.name = "other brackets", .in_graphs = other_brackets},
    {.name = "the blocks of a norm in turn", .in_graphs = flat_norm},
    {.name = "other blocks of a norm", .in_graphs = other_blocks},
    {.name = "a rank's blocks of a product in a chain", .in_graphs = chain_of_blocks},
    {.name = "blocks of other sizes", .in_graphs = blocks_of_other_sizes},
    {.name = "blocks of other elements", .in_graphs = blocks_elsewhere},
    {.name = "a product in any order", .in_graphs = product_in_any_order},
    {.name = "ranks' blocks after what is added to them", .in_graphs = sum_after_addition},
};

}  // namespace

std::span<const TreeMutation> tree_graph_mutations() { return kMutations; }

}  // namespace partita
