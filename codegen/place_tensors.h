// How a sharded tensor lies on the mesh, as the runtime reads it.
#pragma once

#include "ir/mesh/mesh.h"
#include "partitioner/localize/local_program.h"
#include "runtime/program/program.h"

namespace partita {

// Each piece of a dimension is a refined dimension of its own; the innermost axis of a piece steps by the local extent.
// Of the first micro-batch, where the mesh has an axis in time.
runtime::Placement placement_of(const PlacedTensor& tensor, const Mesh& mesh);

}  // namespace partita
