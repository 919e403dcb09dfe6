// Example: a fused QKV weight [3*8*64, 512] split by heads over 4 ranks is refined to [3, 8, 64, 512], local [3, 2, 64,
// 512]. In logical rows rank 1 holds [128, 256), [640, 768), [1152, 1280): three pieces.
#include "runtime/program/placement.h"

#include <algorithm>
#include <cstring>

#include "base/box.h"
#include "base/cat.h"
#include "base/status.h"

namespace partita::runtime {
namespace {

// A contiguous stretch of one logical dimension that the box holds, and its place along that dimension of the rank's
// own tensor.
struct Interval {
  int64_t start, length, packed;
};

// Refined dimensions [begin, end) of each logical one. Ones in between go to the dimension that follows, the last take
// the rest.
std::vector<std::pair<size_t, size_t>> refinement(const Placement& p) {
  std::vector<std::pair<size_t, size_t>> ranges;
  size_t at = 0;
  for (size_t d = 0; d < p.logical.size(); ++d) {
    const size_t begin = at;
    int64_t product = 1;
    while (at < p.shape.size() && product < p.logical[d]) product *= std::max<int64_t>(p.shape[at++], 1);
    if (d + 1 == p.logical.size()) at = p.shape.size();
    ranges.emplace_back(begin, at);
  }
  return ranges;
}

std::vector<Interval> intervals(const Placement& p, std::span<const int64_t> offset, size_t begin, size_t end) {
  std::vector<Interval> list = {{0, 1, 0}};
  for (size_t d = begin; d < end; ++d) {
    std::vector<Interval> next;
    for (const Interval& outer : list) {
      // An outer stretch of whole rows stays one stretch.
      const bool whole = p.local[d] == p.shape[d];
      const int64_t rows = whole ? 1 : outer.length, length = whole ? outer.length * p.shape[d] : p.local[d];
      for (int64_t r = 0; r < rows; ++r)
        next.push_back({(outer.start + r) * p.shape[d] + offset[d], length, (outer.packed + r) * p.local[d]});
    }
    list = std::move(next);
  }
  return list;
}

template <bool kPack>
void copy_piece(const LogicalPiece& piece, int64_t size, std::byte* own, std::byte* dense) {
  const size_t rank = piece.extent.size();
  for (int64_t extent : piece.extent)
    if (extent == 0) return;
  std::vector<int64_t> index(rank, 0);
  const int64_t inner = rank == 0 ? 1 : piece.extent[rank - 1];
  const bool dense_rows = rank == 0 || piece.packed_stride[rank - 1] == 1;
  while (true) {
    int64_t at = piece.packed_offset;
    for (size_t d = 0; d + 1 < rank; ++d) at += index[d] * piece.packed_stride[d];
    for (int64_t i = 0; i < (dense_rows ? 1 : inner); ++i) {
      std::byte* mine = own + (at + (dense_rows ? 0 : i * piece.packed_stride[rank - 1])) * size;
      const size_t bytes = static_cast<size_t>((dense_rows ? inner : 1) * size);
      std::memcpy(kPack ? dense : mine, kPack ? mine : dense, bytes);
      dense += bytes;
    }
    size_t d = rank == 0 ? 0 : rank - 1;
    while (d > 0 && ++index[d - 1] == piece.extent[d - 1]) index[--d] = 0;
    if (d == 0) return;
  }
}

}  // namespace

namespace {

// Of an axis, in a stage.
int64_t size_in(const MeshAxis& axis, int64_t stage) {
  return std::count(axis.absent.begin(), axis.absent.end(), stage) > 0 ? 1 : axis.size;
}

// Ranks whose coordinate along the first axis is `stage`.
int64_t ranks_of(std::span<const MeshAxis> mesh, int64_t stage) {
  int64_t size = 1;
  for (size_t a = 1; a < mesh.size(); ++a) size *= size_in(mesh[a], stage);
  return size;
}

int64_t stages_of(std::span<const MeshAxis> mesh) { return mesh.empty() ? 1 : mesh[0].size; }

// -1 where the stage lacks an axis along which the coordinate is not 0.
int64_t rank_at(std::span<const MeshAxis> mesh, std::span<const int64_t> coordinates) {
  const int64_t stage = mesh.empty() ? 0 : coordinates[0];
  int64_t rank = 0;
  for (size_t a = 1; a < mesh.size(); ++a) {
    const int64_t size = size_in(mesh[a], stage);
    if (coordinates[a] >= size) return -1;
    rank = rank * size + coordinates[a];
  }
  for (int64_t before = 0; before < stage; ++before) rank += ranks_of(mesh, before);
  return rank;
}

}  // namespace

int64_t mesh_size(std::span<const MeshAxis> mesh) {
  int64_t size = 0;
  for (int64_t stage = 0; stage < stages_of(mesh); ++stage) size += ranks_of(mesh, stage);
  return size;
}

std::vector<int64_t> mesh_coordinates(std::span<const MeshAxis> mesh, int64_t rank) {
  std::vector<int64_t> coordinates(mesh.size());
  int64_t stage = 0;
  while (stage + 1 < stages_of(mesh) && rank >= ranks_of(mesh, stage)) rank -= ranks_of(mesh, stage++);
  for (size_t a = mesh.size(); a-- > 1; rank /= size_in(mesh[a], stage))
    coordinates[a] = rank % size_in(mesh[a], stage);
  if (!mesh.empty()) coordinates[0] = stage;
  return coordinates;
}

int stage_axis(std::span<const MeshAxis> mesh) {
  for (size_t a = 0; a < mesh.size(); ++a) {
    if (mesh[a].name == "pipeline") return static_cast<int>(a);
  }
  return -1;
}

int64_t stage_of(std::span<const MeshAxis> mesh, int64_t rank) {
  const int axis = stage_axis(mesh);
  return axis < 0 ? 0 : mesh_coordinates(mesh, rank)[static_cast<size_t>(axis)];
}

std::vector<int> group_ranks(std::span<const MeshAxis> mesh, const CollectiveGroup& group, int64_t rank) {
  int64_t places = 1;
  for (int32_t a : group.axes) places *= mesh[static_cast<size_t>(a)].size;
  std::vector<int> ranks;
  for (int64_t place = 0; place < places; ++place) {
    if (const int64_t r = peer_rank(mesh, group, rank, place); r >= 0) ranks.push_back(static_cast<int>(r));
  }
  return ranks;
}

int64_t peer_rank(std::span<const MeshAxis> mesh, const CollectiveGroup& group, int64_t rank, int64_t peer) {
  std::vector<int64_t> coordinates = mesh_coordinates(mesh, rank);
  for (size_t k = group.axes.size(); k-- > 0;) {
    const auto a = static_cast<size_t>(group.axes[k]);
    coordinates[a] = peer % mesh[a].size;
    peer /= mesh[a].size;
  }
  return peer == 0 ? rank_at(mesh, coordinates) : -1;
}

std::vector<int64_t> box_offset(const Placement& placement, std::span<const int64_t> coordinates) {
  std::vector<int64_t> offset(placement.shape.size(), 0);
  for (size_t d = 0; d < placement.axes.size(); ++d) {
    for (const AxisStride& axis : placement.axes[d])
      offset[d] += coordinates[static_cast<size_t>(axis.axis)] * axis.stride;
  }
  return offset;
}

bool owns_box(const Placement& placement, std::span<const int64_t> coordinates) {
  for (size_t a = 0; a < coordinates.size(); ++a) {
    const bool used = std::any_of(placement.axes.begin(), placement.axes.end(), [&](const auto& axes) {
      return std::any_of(axes.begin(), axes.end(),
                         [&](const AxisStride& s) { return static_cast<size_t>(s.axis) == a && s.stride != 0; });
    });
    if (!used && coordinates[a] != 0) return false;
  }
  return true;
}

bool is_padded(const Placement& p) { return *element_count(p.logical) != *element_count(p.shape); }

absl::Status check_placement(const Placement& p, std::span<const MeshAxis> mesh, int64_t elements, bool padded) {
  const auto logical = element_count(p.logical), refined = element_count(p.shape), local = element_count(p.local);
  if (!logical || !refined || !local || (*logical != *refined && !padded) || p.local.size() != p.shape.size() ||
      p.axes.size() != p.shape.size()) {
    return absl::InvalidArgumentError(cat("its placement is not consistent: ", shape_text(p.logical), " as ",
                                          shape_text(p.shape), ", local ", shape_text(p.local)));
  }
  if (*local != elements)
    return absl::InvalidArgumentError(
        cat("a rank's part ", shape_text(p.local), " does not match the buffer of ", elements, " elements"));
  for (size_t d = 0; d < p.shape.size(); ++d) {
    int64_t furthest = 0;
    for (const AxisStride& s : p.axes[d]) {
      if (s.axis < 0 || static_cast<size_t>(s.axis) >= mesh.size())
        return absl::InvalidArgumentError(cat("its placement names mesh axis ", s.axis, " of ", mesh.size()));
      if (s.stride < 0 || s.stride > p.shape[d])
        return absl::InvalidArgumentError(
            cat("its placement has the stride ", s.stride, " along a dimension of ", p.shape[d]));
      furthest += (mesh[static_cast<size_t>(s.axis)].size - 1) * s.stride;
      if (furthest > p.shape[d]) break;
    }
    if (furthest + p.local[d] > p.shape[d])
      return absl::InvalidArgumentError(cat("along dimension ", d, " of ", shape_text(p.shape), " a rank's part of ",
                                            p.local[d], " reaches outside"));
  }
  size_t at = 0;
  for (const auto& [begin, end] : refinement(p)) {
    int64_t product = 1;
    for (size_t d = begin; d < end; ++d) product *= p.shape[d];
    const bool covers = padded ? product >= p.logical[at] && product / 2 < p.logical[at] : product == p.logical[at];
    if (*logical != 0 && !covers)
      return absl::InvalidArgumentError(cat(shape_text(p.shape), " does not refine ", shape_text(p.logical)));
    ++at;
  }
  return absl::OkStatus();
}

absl::Status for_each_piece(const Placement& p, std::span<const int64_t> coordinates,
                            absl::FunctionRef<absl::Status(const LogicalPiece&)> visit) {
  if (*element_count(p.local) == 0) return absl::OkStatus();
  const std::vector<int64_t> offset = box_offset(p, coordinates);
  const size_t rank = p.logical.size();
  std::vector<std::vector<Interval>> lists;
  std::vector<int64_t> own(rank, 1), stride(rank, 1);
  for (const auto& [begin, end] : refinement(p)) {
    for (size_t d = begin; d < end; ++d) own[lists.size()] *= p.local[d];
    lists.push_back(intervals(p, offset, begin, end));
  }
  for (size_t d = rank; d-- > 1;) stride[d - 1] = stride[d] * own[d];
  std::vector<size_t> choice(rank, 0);
  LogicalPiece piece{
      .offset = std::vector<int64_t>(rank), .extent = std::vector<int64_t>(rank), .packed_stride = stride};
  while (true) {
    piece.packed_offset = 0;
    bool any = true;  // of it lies before the padding
    for (size_t d = 0; d < rank; ++d) {
      const Interval& i = lists[d][choice[d]];
      piece.offset[d] = i.start;
      piece.extent[d] = std::min(i.length, p.logical[d] - i.start);
      piece.packed_offset += i.packed * stride[d];
      any = any && piece.extent[d] > 0;
    }
    if (any) PARTITA_RETURN_IF_ERROR(visit(piece));
    size_t d = rank;
    while (d > 0 && ++choice[d - 1] == lists[d - 1].size()) choice[--d] = 0;
    if (d == 0) return absl::OkStatus();
  }
}

void pack_piece(const LogicalPiece& piece, int64_t element_bytes, const std::byte* own, std::byte* dense) {
  copy_piece<true>(piece, element_bytes, const_cast<std::byte*>(own), dense);
}
bool is_dense(const LogicalPiece& piece) {
  int64_t stride = 1;
  for (size_t d = piece.extent.size(); d-- > 0; stride *= piece.extent[d]) {
    if (piece.extent[d] != 1 && piece.packed_stride[d] != stride) return false;
  }
  return true;
}
void unpack_piece(const LogicalPiece& piece, int64_t element_bytes, const std::byte* dense, std::byte* own) {
  copy_piece<false>(piece, element_bytes, own, const_cast<std::byte*>(dense));
}

}  // namespace partita::runtime
