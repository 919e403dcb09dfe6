// How a rank's tensor relates to a value of the serial program, as an affine map of indices:
//
//   local[i] on a rank with coordinates c  =  root[sum of digit(i) * stride + sum of digit(c) * stride]
//
// where the row-major index i, the coordinates and the root's index are mixed-radix numbers. A reshape changes nothing,
// a transpose permutes digits, a broadcast adds digits of stride 0, and a collective exchanges digits of the index with
// digits of a coordinate.
//
//   w f32[4,6] split over data (2) along its columns is local f32[4,3]:  index (4:6)(3:1), data (2:3)
//   its transpose f32[3,4]:                                             index (3:1)(4:6), data (2:3)
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "ir/mesh/mesh.h"
#include "ir/mesh/sharding.h"
#include "ir/op/formula.h"
#include "ir/type/tensor_type.h"
#include "runtime/program/program.h"

namespace partita::verifier {

using partita::to_string;

struct Digit {
  int64_t size = 1;
  int64_t stride = 0;  // 0: the value is the same all along
  bool operator==(const Digit&) const = default;
};

// (coordinate / divisor) % size along a mesh axis.
struct AxisDigit {
  int axis = 0;
  int64_t divisor = 1;
  int64_t size = 1;
  int64_t stride = 0;
  bool operator==(const AxisDigit&) const = default;
};

struct IndexMap {
  int32_t root = -1;          // a value of the serial program that is no view; -1: none is known
  std::vector<Digit> digits;  // of the local index, outermost first
  std::vector<AxisDigit> axes;
  // Not empty: the index that they make counts the elements of the root as seen through these digits. A view that is
  // cut inside a digit of its own (three heads in two parts) has no other layout.
  std::vector<Digit> through;
  std::vector<int> partial;  // mesh axes, ascending: the combination over them is still to come
  PartialKind kind = PartialKind::kSum;
  bool sliced = false;  // ranks along the slice axes hold this value of different micro-batches
  bool summed = false;  // it is the sum, or a part of it as `partial` says, over the micro-batches that these ranks run
                        // at the same time: a term for an accumulator, and nothing else

  bool depends_on(int axis) const;
  bool is_partial(int axis) const;
};

// Merges neighbouring digits that count on, drops those of size 1.
void merge(std::vector<Digit>& digits);
// The digits of each dimension; nullopt where a digit reaches over a dimension's edge.
std::optional<std::vector<std::vector<Digit>>> by_dimension(const std::vector<Digit>& digits, const Shape& shape);
// Row-major digits of a whole tensor.
std::vector<Digit> whole(const Shape& shape);

// What the ops that only move data do to a layout; FailedPrecondition says what does not fit.
absl::StatusOr<IndexMap> transposed(const IndexMap& x, const Shape& shape, const std::vector<int64_t>& permutation);
absl::StatusOr<IndexMap> broadcasted(const IndexMap& x, const Shape& from, const Shape& to);
// Block `coordinate along axis` of `parts` blocks along `dim`.
// A part that is cut inside of a digit is one of the value as a view shows it: of the views that it could be, which
// differ in where their axes lie, the first one that `is_view` knows.
using IsView = std::function<bool(const std::vector<Digit>&)>;
// The value as a part of its root as a view that `is_view` knows shows it, which can be cut where the root's own digits
// cannot; nullopt where there is none, or it is a part of a view already.
std::optional<IndexMap> seen_through(const IndexMap& x, const IsView& is_view);
absl::StatusOr<IndexMap> sliced_by(const IndexMap& x, const Shape& shape, int dim, int axis, const Mesh& mesh,
                                   const IsView& is_view);
absl::StatusOr<IndexMap> gathered(const IndexMap& x, const std::vector<int>& axes, const Mesh& mesh);
absl::StatusOr<IndexMap> exchanged(const IndexMap& x, const std::vector<int>& axes, const Mesh& mesh);
absl::StatusOr<IndexMap> reduced(const IndexMap& x, const std::vector<int>& axes, PartialKind kind);
absl::StatusOr<IndexMap> scattered(const IndexMap& x, const std::vector<int>& axes, PartialKind kind, const Mesh& mesh,
                                   const IsView& is_view);

// A part of a dimension of a serial value: kept whole by every rank, split by (a digit of) an axis, or constant along
// the dimension, in which case a rank may hold any part of it.
struct Piece {
  enum class Kind : uint8_t { kLocal, kAxis, kFree } kind = Kind::kLocal;
  int64_t size = 1;   // of the serial value
  int64_t local = 1;  // of the rank's
  int axis = -1;
  int64_t divisor = 1;
  bool operator==(const Piece&) const = default;
};
using Pieces = std::vector<Piece>;  // outermost first

// The rank's tensor as a part of the serial one: per dimension of the serial value, its pieces. FailedPrecondition
// where it is no such part.
absl::StatusOr<std::vector<Pieces>> pieces_of(const IndexMap& serial, const Shape& serial_shape, const IndexMap& local,
                                              const Shape& local_shape);
// The common refinement of two splits of the same thing; nullopt where they differ.
std::optional<Pieces> unified(Pieces a, Pieces b);
// Cuts a dimension's pieces at its factors' boundaries.
std::optional<std::vector<Pieces>> by_factor(const Formula& formula, const std::vector<int>& dim, Pieces pieces);
// The layout of a value that is made of pieces, as its own root, or as the view that out.through says; along what is
// free the former has no index of its own.
void number(const std::vector<Pieces>& dims, IndexMap& out);
int64_t local_size(const Pieces& pieces);

// The pieces that a placement of the program's interface states, per logical dimension; FailedPrecondition where boxes
// overlap or leave something out.
absl::StatusOr<std::vector<Pieces>> placed_pieces(const runtime::Placement& placement, const Mesh& mesh);
// Whether the two place alike.
bool same_placement(const runtime::Placement& a, const runtime::Placement& b);

std::string to_string(const IndexMap& layout, const Mesh& mesh);
std::string to_string(const std::vector<Pieces>& dims, const Mesh& mesh);

}  // namespace partita::verifier
