// Where the elements of a tensor lie in the memory of another one that was cut or turned.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "ir/graph/graph.h"

namespace partita {

// Element [i, j, …] of `shape` is the one at offset + i * strides[0] + j * strides[1] + …, counted in elements.
struct StridedView {
  Shape shape;
  int64_t offset = 0;
  Shape strides;
  bool operator==(const StridedView&) const = default;
};
StridedView dense_view(const Shape& shape);

// The result of node `n` (a reshape, a transpose, or a slice without steps) in the memory where its operand lies as
// `operand`; nullopt for other nodes, and where a reshape puts together what no stride describes.
std::optional<StridedView> view_after(const Graph& graph, const Node& n, const StridedView& operand);
// The other way: operand `k` of node `n` (a reshape, a transpose or a concat) in the memory where the node's result
// lies as `result`.
std::optional<StridedView> view_before(const Graph& graph, const Node& n, size_t k, const StridedView& result);

}  // namespace partita
