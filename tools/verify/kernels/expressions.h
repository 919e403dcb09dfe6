// Scalar expressions over the loops of a nest in one normal form: those that are equal have one number. Both what a
// nest computes and what its graph says become such expressions, and a kernel is proved where the two are one.
//
//   nest:   %2 = sub %0 %1, the loads of a [768 1] and of b [0 1]      graph: a - broadcast(b) at (i, j)
//   both:   sub(load a at 768 i + j, load b at j)
//
// Simplified is what the nest builder simplifies and nothing else: x + 0, x - 0, x * 1, casts to the same type or,
// of what was read, to a wider one and back, and reductions over one element; and max(x, 0) <= 0 is x <= 0.
#pragma once

#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "ir/nest/affine.h"
#include "ir/nest/loop_nest.h"

namespace partita::verifier {

class Expressions {
 public:
  // Of loops of these sizes; the last `columns` of them are a nest's columns.
  Expressions(std::vector<int64_t> sizes, int columns);

  // Element `at` of a value of the graph, or, below -1, of a temporary.
  int load(int value, DType type, const Affine& at);
  int index(const Affine& at);
  // Over all columns.
  int reduce(ReduceKind kind, int of);
  // Operands are expressions.
  int scalar(const ScalarNode& node);

  DType type(int e) const { return entries_[static_cast<size_t>(e)].scalar.type; }
  size_t size() const { return entries_.size(); }
  // What `expected` is where the two first differ, and what `found` is there.
  std::string difference(int expected, int found) const;

 private:
  using Entry = NestNode;  // of a load, access.operand is the value

  int intern(Entry entry);
  bool is_constant(int e, double value) const;
  Affine trimmed(Affine at) const;
  const Entry& entry(int e) const { return entries_[static_cast<size_t>(e)]; }
  std::string text(int e, int depth) const;

  std::vector<int64_t> sizes_;
  int64_t column_points_ = 1;
  std::vector<Entry> entries_;
  absl::flat_hash_map<std::vector<int64_t>, int> numbers_;
};

// The expression of each node of a nest; `values`: what its operands hold.
std::vector<int> nest_expressions(const LoopNest& nest, const std::vector<int>& values, Expressions& e);

}  // namespace partita::verifier
