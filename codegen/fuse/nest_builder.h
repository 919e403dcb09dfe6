// Fusion groups become loop nests. This is also the judge of what can be fused: a group that has no nests is no group.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "codegen/prepare/code_graph.h"
#include "ir/nest/loop_nest.h"

namespace partita {

// Where a nest's operand lives: a value of the graph, or one of the group's own intermediate buffers.
struct NestOperand {
  ValueId value = kNoValue;
  int temporary = -1;  // index into GroupCode::temporaries
  bool operator==(const NestOperand&) const = default;
};

struct BuiltNest {
  LoopNest nest;                      // scheduled
  std::vector<NestOperand> operands;  // parallel to nest.operands
};

// The nests of a group, to run in order.
struct GroupCode {
  std::vector<BuiltNest> nests;
  std::vector<TensorType> temporaries;
};

// Why there is no code.
struct BuildFailure {
  std::string why;
  ValueId obstacle = kNoValue;  // a free value that could be read if it were stored
};

// `nodes` in graph order, `outputs` the values to store. Free nodes that lead to them are computed in place; every
// other value is read from memory. nullopt where one pass over rows cannot do it without computing something expensive
// twice. A single node always has code, once its obstacles are stored.
std::optional<GroupCode> build_group(const CodeGraph& graph, std::span<const NodeId> nodes,
                                     std::span<const ValueId> outputs, BuildFailure* failure = nullptr);

}  // namespace partita
