// How one value lies on a mesh. Each dimension is a product of pieces, outermost first; mesh axes split a piece evenly,
// outermost axis first.
//
//   a fused QKV weight [768, 2304] with heads over "tensor":  dims = {{768}, {3, 12@tensor, 64}}
//   over "data" the sum of all ranks' values is still owed:     partial = {data}
#pragma once

#include <string>
#include <vector>

#include "ir/mesh/mesh.h"
#include "ir/type/tensor_type.h"

namespace partita {

struct Piece {
  int64_t size = 1;       // global
  std::vector<int> axes;  // indices into the mesh
  bool operator==(const Piece&) const = default;
};

enum class PartialKind : uint8_t { kSum, kMax, kMin };

struct Sharding {
  std::vector<std::vector<Piece>> dims;
  std::vector<int> partial;  // mesh axes, ascending
  PartialKind kind = PartialKind::kSum;

  static Sharding replicated(const Shape& shape);
  bool is_split() const;
  bool is_split_by(int axis) const;
  // The axes that split dimension d, outermost first.
  std::vector<int> axes_of(int d) const;
  bool operator==(const Sharding&) const = default;
};

// Merges neighbouring pieces that no axis splits, and drops pieces of size 1.
Sharding normalized(Sharding sharding);
// Elements along a piece / a dimension / a tensor on one rank. Pieces divide evenly (checked when a sharding is made).
int64_t local_size(const Piece& piece, const Mesh& mesh);
Shape local_shape(const Sharding& sharding, const Mesh& mesh);
std::string to_string(const Sharding& sharding, const Mesh& mesh);  // "[768, (3 12@tensor 64)] partial(data)"

}  // namespace partita
