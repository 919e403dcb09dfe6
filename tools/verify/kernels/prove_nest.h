// That a kernel writes what its step says: each result, from its nest alone, is the composition of the graph's nodes
// between it and the operands.
//
//   step: kernel k7 of %3, %4 -> %9            nest: store 2 [768 1] = sub(load 0, load 1)
//   proof: at element i, %9 = sub(%3 at i, %4 at i) by its node, and that is what is stored there
//
// Sums over rows go through partial results of the units of work, which another kernel adds up: what a temporary holds
// is taken from the nest that wrote it.
#pragma once

#include <map>
#include <vector>

#include "absl/status/status.h"
#include "ir/nest/loop_nest.h"
#include "tools/verify/kernels/graph_expressions.h"
#include "tools/verify/kernels/written_parts.h"

namespace partita::verifier {

// A nest as a step runs it; check_nest accepts it.
struct NestUse {
  LoopNest nest;
  std::vector<int> values;  // per operand: a value of the graph, never a view, or, below -1, a temporary
};
// The kernel that has written a temporary last, and to which of its operands.
struct TemporaryWriter {
  const NestUse* use = nullptr;
  int operand = -1;
};
using TemporaryWriters = std::map<int, TemporaryWriter>;

// Aborted where a result of the graph is not what its nodes make of the operands.
absl::Status prove_nest(const CodeView& code, const NestUse& use, const TemporaryWriters& writers);
// Aborted where the temporary is not all of `value`, cast to `type`.
absl::Status prove_cast(const CodeView& code, const TemporaryWriter& writer, int value, DType type);
// The part of an operand that the kernel writes: of a fold, of one unit's partial results.
WrittenPart written_part(const LoopNest& nest, int operand);

}  // namespace partita::verifier
