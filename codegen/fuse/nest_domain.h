// The domain of a fusion group: the points that one sweep visits, and which of its dimensions are the columns of a row.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "codegen/prepare/code_graph.h"

namespace partita {

struct GroupView {
  const CodeGraph& code;
  std::span<const NodeId> nodes;     // ascending
  std::span<const ValueId> outputs;  // values to store

  bool contains(NodeId n) const;
  bool stores(ValueId v) const;
  // How many nodes of the group read a value directly.
  int readers(ValueId v) const;
  bool is_single() const { return nodes.size() == 1; }
};

struct Domain {
  Shape shape;
  std::vector<bool> column;  // per dimension of shape; none: there is no reduction
};

// Which dimensions of its operand a reduction takes away.
std::vector<bool> reduced_dims(const Node& node, size_t rank);

// nullopt (and the reason in `why`) where the group's reductions do not fit into one sweep.
std::optional<Domain> choose_domain(const GroupView& group, std::string& why);

// Whether an output of the group is a reduction over other dimensions than the columns: rows leave partial results, and
// a second nest adds them up.
bool is_fold(const GroupView& group, const Domain& domain, ValueId v);

}  // namespace partita
