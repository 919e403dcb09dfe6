// Where a rank's part of a logical tensor lies: a box in the refined shape, and the logical boxes it is made of.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "runtime/program/program.h"

namespace partita::runtime {

// World ranks count through the mesh row-major: the first axis is the outermost. Where a stage lacks an axis, its ranks
// are those at coordinate 0 alone.
int64_t mesh_size(std::span<const MeshAxis> mesh);
std::vector<int64_t> mesh_coordinates(std::span<const MeshAxis> mesh, int64_t rank);
// The axis along which programs differ, the stages of a pipeline, or -1; and which of these programs a rank runs.
int stage_axis(std::span<const MeshAxis> mesh);
int64_t stage_of(std::span<const MeshAxis> mesh, int64_t rank);
// World ranks of the group that `rank` belongs to, row-major over the group's axes in their order.
std::vector<int> group_ranks(std::span<const MeshAxis> mesh, const CollectiveGroup& group, int64_t rank);
// The world rank at place `peer` of the group, counted over all its axes' coordinates, also those that no rank has: the
// same number on all ranks of a stage. -1 where none is there.
int64_t peer_rank(std::span<const MeshAxis> mesh, const CollectiveGroup& group, int64_t rank, int64_t peer);

// Offsets of the rank's box in placement.shape; its extents are placement.local.
std::vector<int64_t> box_offset(const Placement& placement, std::span<const int64_t> coordinates);
// Whether no rank with smaller coordinates holds the same box: true on exactly one rank of each set that does.
bool owns_box(const Placement& placement, std::span<const int64_t> coordinates);

// InvalidArgument unless shape refines logical and every rank's box lies inside and has `elements` elements. Only what
// may be `padded` may be refined to more than there is.
absl::Status check_placement(const Placement& placement, std::span<const MeshAxis> mesh, int64_t elements,
                             bool padded = false);
// Whether the refined shape has more elements than the tensor.
bool is_padded(const Placement& placement);

// One piece of a rank's box in logical coordinates. `packed` tells where in the rank's own (dense) tensor its elements
// lie: element e of the piece, with indices i_d, is at packed_offset + sum of i_d * packed_stride[d].
struct LogicalPiece {
  std::vector<int64_t> offset, extent;
  int64_t packed_offset = 0;
  std::vector<int64_t> packed_stride;
};
// Calls `visit` for each piece. Pieces never overlap, none has padding, and where no dimension is refined there is one
// at most.
absl::Status for_each_piece(const Placement& placement, std::span<const int64_t> coordinates,
                            absl::FunctionRef<absl::Status(const LogicalPiece&)> visit);

// Whether the piece lies in the rank's own tensor as in a dense buffer.
bool is_dense(const LogicalPiece& piece);
// Copies a piece between the rank's own tensor and a dense buffer of the piece's extent.
void pack_piece(const LogicalPiece& piece, int64_t element_bytes, const std::byte* own, std::byte* dense);
void unpack_piece(const LogicalPiece& piece, int64_t element_bytes, const std::byte* dense, std::byte* own);

}  // namespace partita::runtime
