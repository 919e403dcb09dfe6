// Parts of rows that a rank computes one after the other (pin overlap_products): like parts on several ranks, along an
// axis of the mesh along which nothing is sent. A slice takes the part of a coordinate, as a rank does; a concatenation
// of all of them is a gather.
#pragma once

#include <map>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "ir/graph/graph.h"
#include "ir/mesh/mesh.h"
#include "tools/verify/layout/index_map.h"

namespace partita::verifier {

class RowParts {
 public:
  // Adds an axis to the mesh for each number of parts of which the graph takes one somewhere.
  RowParts(const Graph& local, Mesh& mesh);

  // Takes in a slice that is one of several equal parts, or a concatenation of all of them: the layout of its result.
  // False where the node is neither.
  bool visit(const Node& node, std::vector<IndexMap>& layouts, const Mesh& mesh, const IsView& is_view);
  // For every other node, once its results' layouts are known: what it computes is of one part. Aborted where its
  // operands are of several, or a result would be a sum of one part's rows alone.
  absl::Status follow(const Node& node, const std::vector<IndexMap>& layouts, const Mesh& mesh);

 private:
  using Place = std::pair<int, int64_t>;  // axis, coordinate
  bool take(const Node& node, std::vector<IndexMap>& layouts, const Mesh& mesh, const IsView& is_view);
  bool join(const Node& node, std::vector<IndexMap>& layouts, const Mesh& mesh);

  const Graph& g_;
  std::map<int64_t, int> axis_of_;  // by the number of parts
  std::map<ValueId, Place> at_;     // of values that are a part
  const Node* moved_ = nullptr;     // the last slice or concatenation
};

}  // namespace partita::verifier
