// The value is seen as one dimension for each axis that splits it and for what is left between them. Example, samples
// over four ranks that go to two, each of which has the outer axis alone:
//   from  [2@f0, 2@f1, b]     view [1, 1, b], gathered along f1:  [1, 2, b]  =  [2@f0, 2, b]
#include "partitioner/localize/cross_mesh_reshard.h"

#include <algorithm>

#include "base/status.h"
#include "partitioner/localize/reshard.h"

namespace partita {
namespace {

constexpr int kNone = -1;

// A part of dimension `dim` that one axis splits, one to a rank, or none does.
struct Part {
  size_t dim = 0;
  int64_t size = 1;
  int now = kNone, wanted = kNone;
  bool gathered = false;  // the receivers have all of it
};

// [n@x,y] as [x@x][y@y][n/xy].
std::vector<Piece> one_to_a_rank(const std::vector<Piece>& pieces, const Mesh& mesh) {
  std::vector<Piece> out;
  for (Piece p : pieces) {
    for (int a : p.axes) {
      const int64_t n = mesh.axes[static_cast<size_t>(a)].size;
      out.push_back({n, {a}});
      p.size /= n;
    }
    if (p.size > 1 || p.axes.empty()) out.push_back({p.size, {}});
  }
  return out;
}

class Parts {
 public:
  Parts(const Sharding& from, const Sharding& wanted, const Mesh& mesh) : mesh_(mesh) {
    for (size_t d = 0; d < from.dims.size(); ++d) {
      std::vector<Piece> now = one_to_a_rank(from.dims[d], mesh), then = one_to_a_rank(wanted.dims[d], mesh), a, b;
      auto whole = [&](const Piece& p) { return p.axes.empty() || p.size == size_of(p.axes[0]); };
      const bool nests = common_pieces(now, then, a, b) && std::all_of(a.begin(), a.end(), whole) &&
                         std::all_of(b.begin(), b.end(), whole);
      if (!nests) a = now, b.assign(now.size(), Piece{});
      for (size_t k = 0; k < a.size(); ++k)
        parts_.push_back(
            {d, a[k].size, a[k].axes.empty() ? kNone : a[k].axes[0], b[k].axes.empty() ? kNone : b[k].axes[0]});
    }
  }

  bool has(int axis) const {
    return std::any_of(parts_.begin(), parts_.end(), [&](const Part& p) { return p.now == axis; });
  }

  // Lets the axis split what it is wanted to split, else what no other one is wanted to; false where nothing divides.
  bool put(int axis) {
    auto fits = [&](const Part& p, int how) {
      if (p.now != kNone || p.size % size_of(axis) != 0) return false;
      return how == 0 ? p.wanted == axis : how == 1 ? p.wanted == kNone : true;
    };
    for (int how : {0, 1, 2}) {
      auto p = std::find_if(parts_.begin(), parts_.end(), [&](const Part& x) { return fits(x, how); });
      if (p == parts_.end()) continue;
      Part rest = *p;
      rest.size /= size_of(axis);
      rest.wanted = kNone;
      p->size = size_of(axis);
      p->now = axis;
      if (rest.size > 1) parts_.insert(std::next(p), rest);
      return true;
    }
    return false;
  }

  int64_t dim_of(int axis) const {
    auto p = std::find_if(parts_.begin(), parts_.end(), [&](const Part& x) { return x.now == axis; });
    return p - parts_.begin();
  }

  std::vector<Part>& parts() { return parts_; }

  Sharding sharding(size_t dims) const {
    Sharding s;
    s.dims.resize(dims);
    for (const Part& p : parts_) {
      const bool split = p.now != kNone && !p.gathered;
      s.dims[p.dim].push_back({p.size, split ? std::vector<int>{p.now} : std::vector<int>{}});
    }
    return normalized(std::move(s));
  }

 private:
  int64_t size_of(int axis) const { return mesh_.axes[static_cast<size_t>(axis)].size; }

  const Mesh& mesh_;
  std::vector<Part> parts_;
};

Sharding without_axes_of(const Sharding& sharding, const Mesh& mesh, int64_t stage) {
  Sharding s = sharding;
  for (auto& dim : s.dims) {
    for (Piece& p : dim) std::erase_if(p.axes, [&](int a) { return !mesh.has(a, stage); });
  }
  return s;
}

std::vector<int> as_ints(const std::vector<int64_t>& x) { return {x.begin(), x.end()}; }

}  // namespace

CrossMeshReshard cross_mesh_reshard(const Sharding& from, const Sharding& wanted, const Mesh& mesh, int64_t sender,
                                    int64_t receiver) {
  Parts parts(from, wanted, mesh);
  std::vector<int64_t> own, scattered, gathered;
  for (int a : mesh.differing(sender, receiver)) {
    PARTITA_CHECK(std::count(from.partial.begin(), from.partial.end(), a) == 0, "a sum that goes past its stage");
    const bool had = parts.has(a);
    if (!had && !parts.put(a)) continue;  // all get the same, or have it
    (mesh.has(a, receiver) ? scattered : gathered).push_back(a);
    if (!had && mesh.has(a, sender)) own.push_back(a);
  }
  CrossMeshReshard out;
  Shape view;
  auto in = [](const std::vector<int64_t>& axes, int a) { return std::count(axes.begin(), axes.end(), a) > 0; };
  for (Part& p : parts.parts()) {
    const bool cut = p.now != kNone && !in(own, p.now) && !in(scattered, p.now);
    view.push_back(cut ? 1 : p.size);
    p.gathered = in(gathered, p.now);
  }
  auto dims_of = [&](const std::vector<int64_t>& axes) {
    std::vector<int64_t> dims;
    for (int64_t a : axes) dims.push_back(parts.dim_of(static_cast<int>(a)));
    return dims;
  };
  out.received = parts.sharding(from.dims.size());
  out.received.partial = from.partial;
  out.received.kind = from.kind;
  out.attrs = {{"view", view},
               {"own_axes", own},
               {"own_dims", dims_of(own)},
               {"scatter_axes", scattered},
               {"scatter_dims", dims_of(scattered)},
               {"gather_axes", gathered},
               {"gather_dims", dims_of(gathered)},
               {"shape", local_shape(out.received, mesh)}};
  return out;
}

Sharding before_cross_mesh_reshard(const Sharding& from, const Sharding& wanted, const Mesh& mesh, int64_t sender,
                                   int64_t receiver) {
  const Sharding here = narrowed(from, without_axes_of(wanted, mesh, sender), mesh);
  Parts parts(here, wanted, mesh);
  for (int a : mesh.differing(sender, receiver)) {
    const bool partial = std::count(from.partial.begin(), from.partial.end(), a) > 0;
    if (partial && !parts.has(a)) parts.put(a);
  }
  Sharding out = parts.sharding(from.dims.size());
  out.partial = here.partial;
  out.kind = here.kind;
  return out;
}

std::vector<ValueId> parts_to_send(Builder& b, ValueId x, const Attrs& attrs, const Mesh& mesh,
                                   const std::function<ValueId(int)>& coordinate) {
  x = b.reshape(x, attrs.ints("view"));
  const std::vector<int64_t>&own = attrs.ints("own_axes"), &scatter = attrs.ints("scatter_dims");
  for (size_t k = 0; k < own.size(); ++k) {
    x = b.emit("shard_slice", {x, coordinate(static_cast<int>(own[k]))},
               {{"dim", attrs.ints("own_dims")[k]}, {"parts", mesh.axes[static_cast<size_t>(own[k])].size}});
  }
  std::vector<int64_t> order = scatter;
  for (int64_t d = 0; d < b.rank(x); ++d) {
    if (std::count(scatter.begin(), scatter.end(), d) == 0) order.push_back(d);
  }
  const int64_t ways = mesh.ways(as_ints(attrs.ints("scatter_axes"))), rest = elements(b.shape(x)) / ways;
  x = b.reshape(b.transpose(x, std::move(order)), {ways, rest});
  if (ways == 1) return {x};
  std::vector<ValueId> parts;
  for (int64_t w = 0; w < ways; ++w) {
    parts.push_back(b.emit("slice", {x},
                           {{"starts", std::vector<int64_t>{w, 0}},
                            {"limits", std::vector<int64_t>{w + 1, rest}},
                            {"strides", std::vector<int64_t>{1, 1}}}));
  }
  return parts;
}

ValueId parts_together(Builder& b, std::vector<ValueId> parts, const Attrs& attrs, const Mesh& mesh) {
  const std::vector<int64_t>&axes = attrs.ints("gather_axes"), &dims = attrs.ints("gather_dims");
  ValueId x = parts.size() == 1 ? parts[0] : b.emit("concat", std::move(parts), {{"dim", int64_t{0}}});
  // Dimensions of the view that parts were cut from, as one part has them.
  Shape shape;
  std::vector<int64_t> order;
  for (int64_t a : axes) shape.push_back(mesh.axes[static_cast<size_t>(a)].size);
  const Shape& view = attrs.ints("view");
  const auto& scattered = attrs.ints("scatter_dims");
  for (int64_t d = 0, next = static_cast<int64_t>(axes.size()); d < static_cast<int64_t>(view.size()); ++d) {
    auto gathered = std::find(dims.begin(), dims.end(), d);
    order.push_back(gathered != dims.end() ? gathered - dims.begin() : next++);
    const bool cut = std::count(scattered.begin(), scattered.end(), d) > 0;
    if (gathered == dims.end()) shape.push_back(cut ? 1 : view[static_cast<size_t>(d)]);
  }
  return b.reshape(b.transpose(b.reshape(x, std::move(shape)), std::move(order)), attrs.ints("shape"));
}

}  // namespace partita
