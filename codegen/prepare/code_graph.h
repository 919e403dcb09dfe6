// A graph as the code generator sees it: what each node is made of, and which nodes are never worth a buffer of their
// own.
#pragma once

#include <cstdint>
#include <vector>

#include "ir/graph/graph.h"
#include "ir/nest/loop_nest.h"
#include "ir/nest/reduction_order.h"

namespace partita {

enum class NodeRole : uint8_t {
  kElementwise,  // a scalar body
  kView,         // the same bytes under another shape
  kBroadcast,
  kTranspose,
  kSlice,
  kReverse,
  kPad,
  kConcat,
  kIota,  // index functions
  kReduction,
  kLibrary,  // a kernel of the runtime
  kCopy,     // the same bytes in another place
  kCollective,
};
// Runs on whole operands in memory: a step of its own.
inline bool is_call(NodeRole role) { return role >= NodeRole::kLibrary; }
NodeRole role_of(const OpDef& op);
// Of a kReduction.
ReduceKind reduce_kind_of(const OpDef& op);

// Partial results of a fold at most on a GPU: as many as there may be blocks.
inline constexpr int64_t kDeviceFoldUnits = 512;

struct CodeGraph {
  // `phases`: per node, the part of its segment that a schedule runs on its own; empty: there are no parts.
  explicit CodeGraph(const Graph& graph, bool on_gpu = false, std::vector<int32_t> phases = {}, bool strict = false);

  const Graph& graph;
  bool on_gpu;                           // where nests run
  int64_t fold_units;                    // partial results of a fold at most
  bool strict;                           // as LoopNest::strict, of all nests
  std::vector<NodeRole> roles;           // per node
  std::vector<int32_t> phases;           // per node
  std::vector<const Literal*> literals;  // per value: the constant behind it
  // Per node: computed again wherever it is used, as an index function or a few operations. Its value is stored only
  // where a library kernel or the outside reads it.
  std::vector<bool> free;
  // Per value: read from memory by a library or collective node, or by the outside. Never a view.
  std::vector<bool> kept;

  const Shape& shape(ValueId v) const { return graph.type(v).shape; }
  NodeId producer(ValueId v) const { return graph.values[v].producer; }
  bool is_free(ValueId v) const { return producer(v) != kNoNode && free[producer(v)]; }
  // Whether the node only puts parts together in memory (ir/ops/concat.cc).
  bool is_apart(NodeId n) const { return roles[n] == NodeRole::kConcat && graph.nodes[n].attrs.i("apart", 0) != 0; }
  // From now on the node's value is stored like any other.
  void store(NodeId n) { free[n] = false; }
  // The value whose bytes `v` is a view of.
  ValueId storage(ValueId v) const;

 private:
  void mark_kept();
  void mark_free();
  // 16 bits as f32, on a GPU: a sweep that others read its result of stores it in 16 bits.
  bool is_widening(const Node& node) const;
  // One or two cheap operations on one stored value of the result's size, such as the bias added to a product: reading
  // that value costs its few readers no more than reading the result would, and the result is never written.
  bool is_cheap_view(const Node& node, const std::vector<std::vector<NodeId>>& readers) const;
};

}  // namespace partita
