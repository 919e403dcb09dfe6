#include "ir/mesh/sharding.h"

#include <algorithm>

#include "base/cat.h"
#include "base/status.h"

namespace partita {

Sharding Sharding::replicated(const Shape& shape) {
  Sharding s;
  for (int64_t n : shape) s.dims.push_back({{n, {}}});
  return s;
}

bool Sharding::is_split() const {
  for (const auto& dim : dims) {
    for (const Piece& p : dim) {
      if (!p.axes.empty()) return true;
    }
  }
  return false;
}

bool Sharding::is_split_by(int axis) const {
  for (const auto& dim : dims) {
    for (const Piece& p : dim) {
      if (std::count(p.axes.begin(), p.axes.end(), axis) > 0) return true;
    }
  }
  return false;
}

std::vector<int> Sharding::axes_of(int d) const {
  std::vector<int> axes;
  for (const Piece& p : dims[d]) axes.insert(axes.end(), p.axes.begin(), p.axes.end());
  return axes;
}

Sharding normalized(Sharding sharding) {
  for (auto& dim : sharding.dims) {
    std::vector<Piece> merged;
    for (Piece& p : dim) {
      if (p.size == 1 && p.axes.empty()) continue;
      // [8@x][48] is one piece of 384 split by x: an axis on the outermost part splits the whole evenly into contiguous
      // blocks.
      if (!merged.empty() && p.axes.empty()) {
        merged.back().size *= p.size;
      } else {
        merged.push_back(std::move(p));
      }
    }
    if (merged.empty()) merged.push_back({1, {}});
    dim = std::move(merged);
  }
  return sharding;
}

int64_t local_size(const Piece& piece, const Mesh& mesh) {
  int64_t parts = mesh.ways(piece.axes);
  PARTITA_CHECK(piece.size % parts == 0, cat("a piece of ", piece.size, " split ", parts, " ways"));
  return piece.size / parts;
}

Shape local_shape(const Sharding& sharding, const Mesh& mesh) {
  Shape shape;
  for (const auto& dim : sharding.dims) {
    int64_t n = 1;
    for (const Piece& p : dim) n *= local_size(p, mesh);
    shape.push_back(n);
  }
  return shape;
}

std::string to_string(const Sharding& sharding, const Mesh& mesh) {
  std::string s = "[";
  for (size_t d = 0; d < sharding.dims.size(); ++d) {
    const auto& dim = sharding.dims[d];
    s += d ? ", " : "";
    s += dim.size() > 1 ? "(" : "";
    for (size_t k = 0; k < dim.size(); ++k) {
      append(s, k ? " " : "", dim[k].size);
      for (int a : dim[k].axes) append(s, "@", mesh.axes[a].name);
    }
    s += dim.size() > 1 ? ")" : "";
  }
  s += "]";
  if (!sharding.partial.empty()) {
    s += sharding.kind == PartialKind::kSum   ? " partial("
         : sharding.kind == PartialKind::kMax ? " partial max("
                                              : " partial min(";
    for (size_t k = 0; k < sharding.partial.size(); ++k) append(s, k ? "," : "", mesh.axes[sharding.partial[k]].name);
    s += ")";
  }
  return s;
}

}  // namespace partita
