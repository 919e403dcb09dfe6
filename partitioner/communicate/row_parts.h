// Rows of a value in equal parts, of which ops compute each by itself: the factor algebra of a split, over parts that
// one rank has one after the other.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "ir/graph/builder.h"

namespace partita {

// `count` parts of a value whose elements lie as [before, count, rest]: part i is [before, i, rest]. What ranks have
// gathered into [ranks, rows, …] has `ranks` before the parts of its rows.
struct RowParts {
  int64_t count = 1;
  int64_t before = 0;  // 0: the value is whole
  bool operator==(const RowParts&) const = default;
};

// Where the parts are told apart: in dimension `dim`, which is [outer, count, inner].
struct PartedDim {
  size_t dim = 0;
  int64_t outer = 1, inner = 1;
};
// nullopt where no dimension has them all.
std::optional<PartedDim> parted_dim(const Shape& shape, const RowParts& parts);
Shape part_shape(Shape shape, const RowParts& parts);

ValueId take_part(Builder& b, ValueId whole, const RowParts& parts, int64_t index);
ValueId join_parts(Builder& b, std::vector<ValueId> of, const RowParts& parts, const Shape& whole);

// How a node's operands and results are cut where it computes part by part, each result the same to the bit.
struct NodeParts {
  std::vector<RowParts> inputs, outputs;
};
// For one of the node's values cut so; nullopt where the op's formula needs rows of several parts for one (a
// contraction, what must stay whole), or a collective's ranks hold other rows then.
std::optional<NodeParts> parts_of_node(const Graph& graph, const Node& node, ValueId value, const RowParts& parts);

}  // namespace partita
