// The graph of all stages of a pipeline while it is made: an op on the same values is there once, whichever stages have
// it.
#pragma once

#include <map>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "absl/status/statusor.h"
#include "ir/graph/builder.h"
#include "runtime/program/program.h"
#include "tools/verify/stages/check_stages.h"

namespace partita::verifier {

class JoinedGraph {
 public:
  explicit JoinedGraph(Mesh mesh) : mesh_(std::move(mesh)) {}

  // Where what is emitted from here on comes from: a stage's node, its segment and its origin.
  void come_from(StageNode at, Segment segment, std::string origin) {
    at_ = at, segment_ = segment, origin_ = std::move(origin);
  }
  // The same op on values of this graph, once. Errors as Builder::try_emit's.
  absl::StatusOr<std::vector<ValueId>> emit(const Node& x, std::vector<ValueId> inputs);
  // One with a single result, in the segment of what it comes from.
  absl::StatusOr<ValueId> apply(std::string_view op, std::vector<ValueId> inputs, Attrs attrs);
  // This rank's coordinate along an axis of the mesh, and what a sum or gather over axes says of them.
  ValueId coordinate(int axis);
  Attrs group(const std::vector<int>& axes) const;
  absl::StatusOr<ValueId> sum_along(ValueId v, const std::vector<int>& axes);

  // The value on the ranks whose coordinate along the axis is 0, zero on the others; is_first_along() knows the
  // condition again.
  absl::StatusOr<ValueId> first_along(ValueId v, int axis);

  bool is_zero(ValueId v) const;
  // Whether it says that the coordinate along the axis is 0.
  bool is_first_along(ValueId v, int axis) const;

  const Mesh& mesh() const { return mesh_; }
  const Graph& graph() const { return b_.graph(); }
  Builder& builder() { return b_; }
  const Builder& builder() const { return b_; }
  const std::vector<StageNode>& nodes() const { return nodes_; }  // per node, one that it comes from

  runtime::Program program;  // the interface alone, in the graph's order

 private:
  const Mesh mesh_;
  Builder b_;
  StageNode at_;
  Segment segment_ = {};
  std::string origin_;
  std::map<std::string, int32_t> origins_;
  std::map<std::tuple<const OpDef*, Segment, std::vector<ValueId>>, std::vector<NodeId>> made_;
  std::vector<StageNode> nodes_;
};

}  // namespace partita::verifier
