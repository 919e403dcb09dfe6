// From one sharding of a value to another: the shortest sequence of collectives that we know, as ops on local shapes.
#pragma once

#include "ir/graph/builder.h"
#include "ir/mesh/sharding.h"

namespace partita {

// Cuts the pieces of one dimension at the boundaries of the other's. False where they do not nest.
bool common_pieces(const std::vector<Piece>& a, const std::vector<Piece>& b, std::vector<Piece>& out_a,
                   std::vector<Piece>& out_b);
// What of a resharding from `from` to `to` makes a rank's part smaller: sums that `to` does not leave partial are
// completed, and its new axes split what they can before anything is gathered.
Sharding narrowed(const Sharding& from, const Sharding& to, const Mesh& mesh);

class Resharder {
 public:
  Resharder(Builder& b, const Mesh& mesh) : b_(b), mesh_(mesh), coordinates_(mesh.axes.size(), kNoValue) {}

  // `local` lies as `from`; returns what lies as `to`. Partial sums that `to` does not have are reduced (scattered
  // where `to` splits by their axis).
  ValueId reshard(ValueId local, Sharding from, const Sharding& to);
  // This rank's coordinate along an axis, an i64 scalar input of the program.
  ValueId coordinate(int axis);
  // `value` instead, for the axis in time.
  void set_coordinate(int axis, ValueId value) { coordinates_[axis] = value; }

 private:
  struct State;
  ValueId split(ValueId x, State& s, size_t piece, int axis);
  ValueId gather(ValueId x, State& s, size_t piece, size_t axes);
  ValueId exchange(ValueId x, State& s, size_t gathered, size_t split);
  ValueId scatter_sum(ValueId x, State& s, size_t piece, const std::vector<int>& axes, PartialKind kind);
  Attrs group(const std::vector<int>& axes) const;

  Builder& b_;
  const Mesh& mesh_;
  std::vector<ValueId> coordinates_;
};

}  // namespace partita
