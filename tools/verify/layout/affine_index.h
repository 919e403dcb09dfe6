// Scalar arithmetic on a rank's coordinates and the micro-batch's index.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "ir/graph/graph.h"

namespace partita::verifier {

// constant + micro * micro-batch + run * run of the graph + sum of factor * coordinate along an axis.
struct Affine {
  int64_t constant = 0, micro = 0, run = 0;
  std::map<int, int64_t> axes;

  bool is_constant() const { return micro == 0 && run == 0 && axes.empty(); }
  // The coordinate along an axis, alone; or -1.
  int axis() const;
};

// How micro-batches are counted: `count` of them are one run of the graph, and which of those one is, is its coordinate
// along `axis`.
struct MicroSlices {
  int64_t count = 1;
  int axis = -1;
};

// The scalars of a graph that are such sums.
class IndexValues {
 public:
  IndexValues(const Graph& graph, const MicroSlices& slices)
      : g_(graph), slices_(slices), affine_(graph.values.size()) {}

  const std::optional<Affine>& at(ValueId v) const { return affine_[v]; }
  void set(ValueId v, Affine a) { affine_[v] = std::move(a); }
  // The axis at whose first coordinate a bool scalar holds, or -1.
  int first_along(ValueId v) const;
  // Takes in a node whose operands are such sums and whose result is one, or tells a first coordinate.
  bool visit(const Node& node);

 private:
  const Graph& g_;
  MicroSlices slices_;
  std::vector<std::optional<Affine>> affine_;
  std::map<ValueId, int> first_along_;
};

// What `op` ("add", "mul", and of the micro-batch by the number of slices "div" and "mod") makes of two; nullopt where
// that is no such sum, or too large.
std::optional<Affine> combined(std::string_view op, const Affine& a, const Affine& b, const MicroSlices& slices);

}  // namespace partita::verifier
