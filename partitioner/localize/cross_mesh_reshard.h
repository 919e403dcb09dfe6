// What crosses between stages of a pipeline whose ranks lie along different mesh axes.
#pragma once

#include <functional>
#include <vector>

#include "ir/graph/builder.h"
#include "ir/mesh/sharding.h"

namespace partita {

// A value that lies as `from` on the ranks of one stage, sent to those of another one, each part once: what the
// receivers need in parts along axes of their own is cut by the senders, what the senders have in parts along axes that
// the receivers lack is put together by them. No sum is partial along axes that the receivers lack.
struct CrossMeshReshard {
  Attrs attrs;        // of the op cross_mesh_reshard, but for its stages
  Sharding received;  // along axes of the receivers alone: as near to `wanted` as goes without more communication
};
CrossMeshReshard cross_mesh_reshard(const Sharding& from, const Sharding& wanted, const Mesh& mesh, int64_t sender,
                                    int64_t receiver);

// `from` as the sender should have it before: sums completed that `wanted` does not leave partial, in parts where that
// divides.
Sharding before_cross_mesh_reshard(const Sharding& from, const Sharding& wanted, const Mesh& mesh, int64_t sender,
                                   int64_t receiver);

// The sender's side: what the receivers at each coordinate along `scatter_axes` get, row-major; one value where there
// are none. `coordinate` gives a mesh axis's coordinate of the rank.
std::vector<ValueId> parts_to_send(Builder& b, ValueId x, const Attrs& attrs, const Mesh& mesh,
                                   const std::function<ValueId(int)>& coordinate);
// The receiver's side: parts from the senders along `gather_axes`, row-major.
ValueId parts_together(Builder& b, std::vector<ValueId> parts, const Attrs& attrs, const Mesh& mesh);

}  // namespace partita
