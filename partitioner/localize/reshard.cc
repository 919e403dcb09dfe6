// Both shardings are cut into common pieces, the value is seen as one dimension per piece, and each step changes the
// axes of one or two pieces:
//   partial      -> reduce-scatter where the target splits a piece by that axis next, else all-reduce
//   moved axis   -> all-to-all from the piece it leaves to the piece it enters
//   axis gone    -> all-gather;   axis new -> slice (no communication)
// Axes are taken off and put on innermost last, so that blocks stay contiguous. What axes of the mesh from outside
// inwards divide is gathered or scattered by one collective of all their ranks: one after the other, the outer one
// would send between nodes what each rank of a node has of its own, as often as there are ranks. Axes in another order
// are levels, nearest ranks first (partitioner/shard/place_tensors.h): a collective each.
#include "partitioner/localize/reshard.h"

#include <algorithm>

#include "base/cat.h"
#include "base/status.h"

namespace partita {

// The value as a list of pieces with their current and wanted axes.
struct Resharder::State {
  std::vector<int64_t> size;  // global
  std::vector<std::vector<int>> now, want;
};

namespace {

constexpr const char* kReduce[] = {"sum", "max", "min"};

// [n@x,y] as [x@x][n/x@y].
std::vector<Piece> one_axis_each(const std::vector<Piece>& pieces, const Mesh& mesh) {
  std::vector<Piece> out;
  for (Piece p : pieces) {
    while (p.axes.size() > 1) {
      int64_t n = mesh.axes[p.axes[0]].size;
      out.push_back({n, {p.axes[0]}});
      p.size /= n;
      p.axes.erase(p.axes.begin());
    }
    out.push_back(std::move(p));
  }
  return out;
}

bool are_joint(int axis, int next) { return axis < next; }

// An axis of an outer piece splits it evenly only if its extent divides it.
bool divides(const std::vector<Piece>& pieces, const Mesh& mesh) {
  for (const Piece& p : pieces) {
    if (p.size % mesh.ways(p.axes) != 0) return false;
  }
  return true;
}

}  // namespace

bool common_pieces(const std::vector<Piece>& a, const std::vector<Piece>& b, std::vector<Piece>& out_a,
                   std::vector<Piece>& out_b) {
  size_t i = 0, j = 0;
  if (a.empty() || b.empty()) return a.empty() == b.empty();
  Piece x = a[0], y = b[0];
  while (true) {
    int64_t cut = std::min(x.size, y.size);
    if (cut == 0 || x.size % cut != 0 || y.size % cut != 0) return false;
    out_a.push_back({cut, x.axes});
    out_b.push_back({cut, y.axes});
    x = {x.size / cut, {}};
    y = {y.size / cut, {}};
    if (x.size == 1 && i + 1 < a.size()) x = a[++i];
    if (y.size == 1 && j + 1 < b.size()) y = b[++j];
    if (x.size == 1 && y.size == 1 && i + 1 == a.size() && j + 1 == b.size()) return true;
    if ((x.size == 1) != (y.size == 1) && i + 1 == a.size() && j + 1 == b.size()) return false;
  }
}

Sharding narrowed(const Sharding& from, const Sharding& to, const Mesh& mesh) {
  Sharding out = from;
  std::erase_if(out.partial, [&](int axis) { return std::count(to.partial.begin(), to.partial.end(), axis) == 0; });
  for (size_t d = 0; d < from.dims.size(); ++d) {
    std::vector<Piece> a, b;
    if (!common_pieces(from.dims[d], to.dims[d], a, b) || !divides(a, mesh) || !divides(b, mesh)) continue;
    for (size_t k = 0; k < a.size(); ++k) {
      const std::vector<int>& want = b[k].axes;
      if (a[k].axes.size() >= want.size() || !std::equal(a[k].axes.begin(), a[k].axes.end(), want.begin())) continue;
      while (a[k].axes.size() < want.size() && !out.is_split_by(want[a[k].axes.size()]))
        a[k].axes.push_back(want[a[k].axes.size()]);
    }
    out.dims[d] = std::move(a);
  }
  return normalized(std::move(out));
}

Attrs Resharder::group(const std::vector<int>& axes) const {
  return {{"axes", std::vector<int64_t>(axes.begin(), axes.end())}, {"parts", mesh_.ways(axes)}};
}

ValueId Resharder::coordinate(int axis) {
  if (coordinates_[axis] == kNoValue)
    coordinates_[axis] = b_.input(mesh_.axes[axis].name, {DType::kI64, {}}, InputKind::kCoordinate);
  return coordinates_[axis];
}

namespace {

// Moves dimension `from` to `to`.
ValueId move_dimension(Builder& b, ValueId x, size_t from, size_t to) {
  std::vector<int64_t> order;
  for (int d = 0; d < b.rank(x); ++d) order.push_back(d);
  order.erase(order.begin() + static_cast<int64_t>(from));
  order.insert(order.begin() + static_cast<int64_t>(to), static_cast<int64_t>(from));
  return b.transpose(x, std::move(order));
}

// [.., n, ..] -> [.., parts, n / parts, ..]
ValueId unfold(Builder& b, ValueId x, size_t d, int64_t parts) {
  Shape s = b.shape(x);
  s[d] /= parts;
  s.insert(s.begin() + static_cast<int64_t>(d), parts);
  return b.reshape(x, std::move(s));
}

ValueId fold(Builder& b, ValueId x, size_t d) {
  Shape s = b.shape(x);
  s[d + 1] *= s[d];
  s.erase(s.begin() + static_cast<int64_t>(d));
  return b.reshape(x, std::move(s));
}

}  // namespace

ValueId Resharder::split(ValueId x, State& s, size_t piece, int axis) {
  s.now[piece].push_back(axis);
  return b_.emit("shard_slice", {x, coordinate(axis)},
                 {{"dim", static_cast<int64_t>(piece)}, {"parts", mesh_.axes[axis].size}});
}

ValueId Resharder::gather(ValueId x, State& s, size_t piece, size_t axes) {
  std::vector<int>& now = s.now[piece];
  Attrs attrs = group({now.end() - static_cast<std::ptrdiff_t>(axes), now.end()});
  now.resize(now.size() - axes);
  return fold(b_, move_dimension(b_, b_.emit("all_gather", {x}, std::move(attrs)), 0, piece), piece);
}

ValueId Resharder::exchange(ValueId x, State& s, size_t gathered, size_t split) {
  int axis = s.now[gathered].back();
  s.now[gathered].pop_back();
  s.now[split].push_back(axis);
  x = move_dimension(b_, unfold(b_, x, split, mesh_.axes[axis].size), split, 0);
  x = b_.emit("all_to_all", {x}, group({axis}));
  return fold(b_, move_dimension(b_, x, 0, gathered), gathered);
}

ValueId Resharder::scatter_sum(ValueId x, State& s, size_t piece, const std::vector<int>& axes, PartialKind kind) {
  s.now[piece].insert(s.now[piece].end(), axes.begin(), axes.end());
  x = move_dimension(b_, unfold(b_, x, piece, mesh_.ways(axes)), piece, 0);
  Attrs attrs = group(axes);
  attrs.set("reduce", std::string(kReduce[static_cast<int>(kind)]));
  return b_.emit("reduce_scatter", {x}, std::move(attrs));
}

ValueId Resharder::reshard(ValueId local, Sharding from, const Sharding& to) {
  State s;
  for (size_t d = 0; d < from.dims.size(); ++d) {
    std::vector<Piece> a, b;
    bool nests = common_pieces(from.dims[d], to.dims[d], a, b) && divides(a, mesh_) && divides(b, mesh_);
    if (!nests) {
      a.clear();
      b.clear();
      nests = common_pieces(one_axis_each(from.dims[d], mesh_), one_axis_each(to.dims[d], mesh_), a, b) &&
              divides(a, mesh_) && divides(b, mesh_);
    }
    if (!nests) {  // through the whole dimension: first all of it (of one micro-batch), then the part
      Sharding whole = from;
      for (Piece& p : whole.dims[d])
        p.axes.erase(std::find_if_not(p.axes.begin(), p.axes.end(), [&](int a) { return mesh_.is_apart(a); }),
                     p.axes.end());
      PARTITA_CHECK(!(whole == from), "pieces of a dimension that do not meet");
      Sharding one = normalized(whole);
      return reshard(reshard(local, std::move(from), whole), std::move(one), to);
    }
    for (size_t k = 0; k < a.size(); ++k) {
      s.size.push_back(a[k].size);
      s.now.push_back(a[k].axes);
      s.want.push_back(b[k].axes);
    }
  }
  Shape pieces;
  for (size_t k = 0; k < s.size.size(); ++k) pieces.push_back(local_size({s.size[k], s.now[k]}, mesh_));
  ValueId x = b_.reshape(local, std::move(pieces));

  auto is_prefix = [](const std::vector<int>& a, const std::vector<int>& b) {
    return a.size() <= b.size() && std::equal(a.begin(), a.end(), b.begin());
  };
  auto next_axis = [&](size_t k) {
    return is_prefix(s.now[k], s.want[k]) && s.now[k].size() < s.want[k].size() ? s.want[k][s.now[k].size()] : -1;
  };
  PARTITA_CHECK(std::includes(from.partial.begin(), from.partial.end(), to.partial.begin(), to.partial.end()),
                "a sum that is complete is owed again");
  std::vector<int> reduce;
  for (int axis : from.partial) {
    if (std::find(to.partial.begin(), to.partial.end(), axis) == to.partial.end()) reduce.push_back(axis);
  }
  for (size_t at = 0; at < reduce.size();) {
    size_t k = 0;
    while (k < s.size.size() && next_axis(k) != reduce[at]) ++k;
    if (k == s.size.size()) {
      ++at;
      continue;
    }
    std::vector<int> together;
    for (const std::vector<int>& want = s.want[k]; together.size() < want.size() - s.now[k].size();) {
      const int next = want[s.now[k].size() + together.size()];
      const auto owed = std::find(reduce.begin(), reduce.end(), next);
      if (owed == reduce.end() || (!together.empty() && !are_joint(together.back(), next))) break;
      together.push_back(next), reduce.erase(owed);
    }
    x = scatter_sum(x, s, k, together, from.kind);
    at = 0;  // those before it may be the next of their pieces now
  }
  if (!reduce.empty()) {
    Attrs attrs = group(reduce);
    attrs.set("reduce", std::string(kReduce[static_cast<int>(from.kind)]));
    x = b_.emit("all_reduce", {x}, std::move(attrs));
  }
  // The piece that an axis of piece `k` splits next; one behind the last: none.
  auto moves_to = [&](int axis, size_t k) {
    size_t other = 0;
    while (other < s.size.size() && (other == k || next_axis(other) != axis)) ++other;
    return other;
  };
  auto gone_at_once = [&](size_t k) {
    const std::vector<int>&now = s.now[k], &want = s.want[k];
    const auto stay = static_cast<size_t>(std::ranges::mismatch(now, want).in1 - now.begin());
    size_t first = now.size() - 1;
    while (first > stay && are_joint(now[first - 1], now[first]) && moves_to(now[first - 1], k) == s.size.size())
      --first;
    return now.size() - first;
  };
  for (bool more = true; more;) {
    more = false;
    for (size_t k = 0; k < s.size.size(); ++k) {
      while (!is_prefix(s.now[k], s.want[k])) {
        const size_t other = moves_to(s.now[k].back(), k);
        x = other < s.size.size() ? exchange(x, s, k, other) : gather(x, s, k, gone_at_once(k));
        more = true;
      }
    }
  }
  for (size_t k = 0; k < s.size.size(); ++k) {
    while (s.now[k].size() < s.want[k].size()) x = split(x, s, k, s.want[k][s.now[k].size()]);
  }
  return b_.reshape(x, local_shape(to, mesh_));
}

}  // namespace partita
