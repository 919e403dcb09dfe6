#include "codegen/place_tensors.h"

#include "base/cat.h"
#include "base/status.h"

namespace partita {

runtime::Placement placement_of(const PlacedTensor& tensor, const Mesh& mesh) {
  runtime::Placement p{.logical = tensor.logical, .shape = {}, .local = {}, .axes = {}};
  PARTITA_CHECK(tensor.sharding.dims.size() == tensor.logical.size(), "a sharding of another rank");
  for (size_t d = 0; d < tensor.logical.size(); ++d) {
    int64_t whole = 1;
    for (const Piece& piece : tensor.sharding.dims[d]) {
      whole *= piece.size;
      int64_t local = local_size(piece, mesh), stride = local;
      std::vector<runtime::AxisStride> axes;
      for (size_t k = piece.axes.size(); k-- > 0;) {
        if (piece.axes[k] != mesh.time) axes.insert(axes.begin(), {piece.axes[k], stride});
        stride *= mesh.axes[piece.axes[k]].size;
      }
      p.shape.push_back(piece.size);
      p.local.push_back(local);
      p.axes.push_back(std::move(axes));
    }
    PARTITA_CHECK(whole >= tensor.logical[d], cat("pieces of ", whole, " for a dimension of ", tensor.logical[d]));
  }
  return p;
}

}  // namespace partita
