// Whether a local node does to parts of values what a serial node does to the whole ones.
#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "tools/verify/layout/serial_values.h"

namespace partita::verifier {

// The layouts of the local node's outputs. `operands`: the layouts of its inputs. FailedPrecondition says what differs:
// a factor that must stay whole is split, operands are split differently, attributes are not those of the local shapes,
// or a partial sum would pass through what is not linear.
absl::StatusOr<std::vector<IndexMap>> match_node(const SerialValues& serial, NodeId serial_node, const Graph& local,
                                                 const Node& node, const std::vector<IndexMap>& operands,
                                                 const Mesh& mesh);

// Whether a rank's tensor is the part of a serial value that a placement states; FailedPrecondition where it is not.
absl::Status same_part(const IndexMap& serial, const Shape& serial_shape, const IndexMap& local,
                       const Shape& local_shape, const runtime::Placement& placement, const Mesh& mesh);

}  // namespace partita::verifier
