// What passes between stages of a pipeline whose ranks lie along different mesh axes.
//
// Stages are joined on the whole mesh, as if each had ranks at all coordinates. What a stage computes cannot depend on
// an axis that it lacks: it reads no coordinate along it, is placed and sent nothing by it, and communicates along it
// only in sums over all stages. So each rank that is not there would have what the one at coordinate 0 has.
#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "ir/mesh/mesh.h"
#include "tools/verify/bundle/bundle.h"

namespace partita::verifier {

Mesh mesh_of(const runtime::Program& program);

// The coordinates along `axes` of a row-major index over them.
std::vector<int64_t> coordinates_along(const std::vector<int>& axes, int64_t index, const Mesh& mesh);

// Aborted where the program of `stage` uses an axis that it lacks.
absl::Status check_axes(const RankProgram& p, const Mesh& mesh, int64_t stage);

// Where a receive's value comes from. Along `scattered` axes, which the sending stage lacks, receivers may get values
// of different sends: `nodes`, one for each coordinate along them, row-major. Along `gathered` axes, which the
// receiving stage lacks, the sender is the one at coordinates `at`.
struct Sources {
  int stage = 0;
  std::vector<NodeId> nodes;
  std::vector<int> scattered, gathered;
  std::vector<int64_t> at;
  bool operator==(const Sources&) const = default;
};

// What such sends send, in the sender's graph: one value, or block c of its first dimension to receivers at coordinates
// c along `cut`, some of the scattered axes. Aborted where it is something else.
struct Sent {
  ValueId value = kNoValue;
  std::vector<int> cut;
};
absl::StatusOr<Sent> what_is_sent(const Graph& sender, const Sources& sources, const Mesh& mesh);

// Whether shards of a value, from senders with these coordinates in turn, are all of its shards along `axes`,
// row-major, from the first of those that differ in the other gathered axes.
bool are_all_shards(const std::vector<const Sources*>& shards, const Mesh& mesh, std::vector<int>& axes);

}  // namespace partita::verifier
