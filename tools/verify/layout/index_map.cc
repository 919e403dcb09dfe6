#include "tools/verify/layout/index_map.h"

#include <algorithm>
#include <utility>

#include "base/cat.h"
#include "base/status.h"

namespace partita::verifier {
namespace {

template <typename... Args>
absl::Status wrong(const Args&... args) {
  return absl::FailedPreconditionError(cat(args...));
}

// Takes digits that make up exactly `size` off the outer end; nullopt where the edge cuts through one.
std::optional<std::vector<Digit>> take_outer(std::vector<Digit>& digits, int64_t size) {
  std::vector<Digit> taken;
  while (size > 1) {
    if (digits.empty()) return std::nullopt;
    Digit& d = digits.front();
    if (d.size <= size) {
      if (size % d.size != 0) return std::nullopt;
      size /= d.size;
      taken.push_back(d);
      digits.erase(digits.begin());
    } else {
      if (d.size % size != 0) return std::nullopt;
      int64_t rest = d.size / size;
      taken.push_back({size, d.stride * rest});
      d.size = rest;
      size = 1;
    }
  }
  return taken;
}

// Digits of the index become digits of a coordinate; those that the value does not vary along are forgotten.
void onto_axis(const std::vector<Digit>& digits, int axis, std::vector<AxisDigit>& axes) {
  int64_t divisor = 1;
  for (size_t k = digits.size(); k-- > 0;) {
    if (digits[k].stride != 0) axes.push_back({axis, divisor, digits[k].size, digits[k].stride});
    divisor *= digits[k].size;
  }
}

// The digits of a coordinate, outermost first, taken off; nullopt unless they are all of it.
std::optional<std::vector<Digit>> off_axis(std::vector<AxisDigit>& axes, int axis, int64_t size) {
  std::vector<AxisDigit> mine;
  std::copy_if(axes.begin(), axes.end(), std::back_inserter(mine), [&](const AxisDigit& d) { return d.axis == axis; });
  std::erase_if(axes, [&](const AxisDigit& d) { return d.axis == axis; });
  std::sort(mine.begin(), mine.end(), [](const AxisDigit& a, const AxisDigit& b) { return a.divisor > b.divisor; });
  std::vector<Digit> digits;
  for (const AxisDigit& d : mine) {
    if (size % d.size != 0 || d.divisor != size / d.size) return std::nullopt;
    size /= d.size;
    digits.push_back({d.size, d.stride});
  }
  if (size != 1) return std::nullopt;
  return digits;
}

std::string axis_names(const std::vector<int>& axes, const Mesh& mesh) {
  std::string s;
  for (int a : axes) append(s, s.empty() ? "" : ",", mesh.axes[a].name);
  return s;
}

absl::Status check_partial(const IndexMap& x, const std::vector<int>& axes, PartialKind kind) {
  for (int a : axes) {
    if (!x.is_partial(a)) return wrong("it is reduced over an axis along which it is not partial");
  }
  if (x.kind != kind) return wrong("it is reduced by another operation than it is partial by");
  return absl::OkStatus();
}

void settle(IndexMap& x, const std::vector<int>& axes) {
  std::erase_if(x.partial, [&](int a) { return std::find(axes.begin(), axes.end(), a) != axes.end(); });
  if (x.partial.empty()) x.kind = PartialKind::kSum;
}

}  // namespace

bool IndexMap::depends_on(int axis) const {
  return std::any_of(axes.begin(), axes.end(), [&](const AxisDigit& d) { return d.axis == axis; });
}

bool IndexMap::is_partial(int axis) const { return std::find(partial.begin(), partial.end(), axis) != partial.end(); }

void merge(std::vector<Digit>& digits) {
  std::vector<Digit> merged;
  for (const Digit& d : digits) {
    if (d.size == 1) continue;
    if (!merged.empty() && merged.back().stride == d.stride * d.size) {
      merged.back() = {merged.back().size * d.size, d.stride};
    } else {
      merged.push_back(d);
    }
  }
  digits = std::move(merged);
}

std::optional<std::vector<std::vector<Digit>>> by_dimension(const std::vector<Digit>& digits, const Shape& shape) {
  std::vector<std::vector<Digit>> dims;
  std::vector<Digit> rest = digits;
  for (int64_t size : shape) {
    auto taken = take_outer(rest, size);
    if (!taken) return std::nullopt;
    merge(*taken);
    dims.push_back(*std::move(taken));
  }
  return dims;
}

std::vector<Digit> whole(const Shape& shape) {
  std::vector<Digit> digits{{elements(shape), 1}};
  merge(digits);
  return digits;
}

absl::StatusOr<IndexMap> transposed(const IndexMap& x, const Shape& shape, const std::vector<int64_t>& permutation) {
  auto dims = by_dimension(x.digits, shape);
  if (!dims) return wrong("its layout does not fit its dimensions");
  IndexMap out = x;
  out.digits.clear();
  for (int64_t d : permutation) out.digits.insert(out.digits.end(), (*dims)[d].begin(), (*dims)[d].end());
  merge(out.digits);
  return out;
}

absl::StatusOr<IndexMap> broadcasted(const IndexMap& x, const Shape& from, const Shape& to) {
  auto dims = by_dimension(x.digits, from);
  if (!dims) return wrong("its layout does not fit its dimensions");
  IndexMap out = x;
  out.digits.clear();
  size_t lead = to.size() - from.size();
  for (size_t d = 0; d < to.size(); ++d) {
    if (d < lead || from[d - lead] != to[d]) {
      out.digits.push_back({to[d], 0});
    } else {
      out.digits.insert(out.digits.end(), (*dims)[d - lead].begin(), (*dims)[d - lead].end());
    }
  }
  merge(out.digits);
  return out;
}

namespace {

// Calls visit(layout) with the same value as parts of the root seen through some view, for each way in which its axes
// may be outer parts of the view's dimensions, until that returns true. Ways in which digits go on come first.
bool visit_views(const IndexMap& x, std::vector<std::vector<Digit>> dims, std::vector<Pieces> pieces,
                 std::vector<AxisDigit> axes, const std::function<bool(const IndexMap&)>& visit) {
  if (axes.empty()) {
    IndexMap seen = x;
    for (const auto& digits : dims) seen.through.insert(seen.through.end(), digits.begin(), digits.end());
    merge(seen.through);
    number(pieces, seen);
    return visit(seen);
  }
  const AxisDigit a = axes.back();
  axes.pop_back();
  auto goes_on = [&](const std::vector<Digit>& digits) {
    return !digits.empty() && digits.front().stride * digits.front().size == a.stride;
  };
  for (bool first : {true, false}) {
    for (size_t d = 0; d < dims.size(); ++d) {
      if (goes_on(dims[d]) != first) continue;
      auto more_dims = dims;
      auto more_pieces = pieces;
      more_dims[d].insert(more_dims[d].begin(), Digit{a.size, a.stride});
      more_pieces[d].insert(more_pieces[d].begin(), Piece{Piece::Kind::kAxis, a.size, 1, a.axis, a.divisor});
      if (visit_views(x, std::move(more_dims), std::move(more_pieces), axes, visit)) return true;
    }
  }
  return false;
}

// The value, held as `shape`, as a part of its root as a view that `is_view` knows shows it; nullopt where there is
// none, or it is a part of a view already.
std::optional<IndexMap> seen_through(const IndexMap& x, const Shape& shape, const IsView& is_view) {
  if (!x.through.empty()) return std::nullopt;
  auto dims = by_dimension(x.digits, shape);
  if (!dims) {  // pairs that reach over the edge of windows: of the view itself, the dimensions are what they are
    if (!x.axes.empty() || !is_view(x.digits)) return std::nullopt;
    IndexMap seen = x;
    seen.through = std::exchange(seen.digits, whole(shape));
    return seen;
  }
  std::vector<Pieces> pieces;
  for (int64_t n : shape) pieces.push_back({{Piece::Kind::kLocal, n, n, -1, 1}});
  std::vector<AxisDigit> axes = x.axes;  // the innermost last
  std::sort(axes.begin(), axes.end(), [](const AxisDigit& a, const AxisDigit& b) { return a.stride > b.stride; });
  std::optional<IndexMap> found;
  visit_views(x, *std::move(dims), std::move(pieces), std::move(axes), [&](const IndexMap& seen) {
    if (!is_view(seen.through)) return false;
    found = seen;
    return true;
  });
  return found;
}

}  // namespace

std::optional<IndexMap> seen_through(const IndexMap& x, const IsView& is_view) {
  Shape shape;
  for (const Digit& d : x.digits) shape.push_back(d.size);
  return seen_through(x, shape, is_view);
}

absl::StatusOr<IndexMap> sliced_by(const IndexMap& x, const Shape& shape, int dim, int axis, const Mesh& mesh,
                                   const IsView& is_view) {
  if (x.depends_on(axis)) return wrong("it is sliced along axis ", mesh.axes[axis].name, ", which splits it already");
  if (x.is_partial(axis)) return wrong("it is sliced along axis ", mesh.axes[axis].name, ", over which it is partial");
  auto dims = by_dimension(x.digits, shape);
  auto taken = dims ? take_outer((*dims)[dim], mesh.axes[axis].size) : std::nullopt;
  if (!taken) {
    if (auto seen = seen_through(x, shape, is_view)) return sliced_by(*seen, shape, dim, axis, mesh, is_view);
    if (!dims) return wrong("its layout does not fit its dimensions");
    return wrong("its dimension ", dim, " cannot be cut into ", mesh.axes[axis].size, " parts");
  }
  IndexMap out = x;
  onto_axis(*taken, axis, out.axes);
  out.digits.clear();
  for (const auto& d : *dims) out.digits.insert(out.digits.end(), d.begin(), d.end());
  merge(out.digits);
  return out;
}

namespace {

// The digits of the root that `size` steps of `stride` through a view's index go over, outermost first; nullopt where
// they begin or end inside of one that they do not divide.
std::optional<std::vector<Digit>> through_view(const std::vector<Digit>& view, int64_t size, int64_t stride) {
  std::vector<Digit> found;
  int64_t inner = 1;  // of the view's index, inside of the digit at hand
  for (size_t k = view.size(); k-- > 0 && size > 1; inner *= view[k].size) {
    const Digit& v = view[k];
    if (stride >= inner * v.size) continue;
    if (stride % inner != 0 || v.size % (stride / inner) != 0) return std::nullopt;
    const int64_t left = v.size / (stride / inner), take = std::min(left, size);
    if (left % take != 0 || size % take != 0) return std::nullopt;
    found.insert(found.begin(), Digit{take, v.stride * (stride / inner)});
    size /= take, stride *= take;
  }
  if (size > 1) return std::nullopt;
  return found;
}

// A part of a view as one of the root itself, where no digit of it is cut any more.
void see_directly(IndexMap& x) {
  if (x.through.empty()) return;
  std::vector<AxisDigit> axes = x.axes;
  for (AxisDigit& a : axes) {
    auto direct = through_view(x.through, a.size, a.stride);
    if (!direct || direct->size() != 1) return;
    a.stride = direct->front().stride;
  }
  std::vector<Digit> digits;
  for (const Digit& d : x.digits) {
    auto direct = d.stride == 0 ? std::vector<Digit>{d} : through_view(x.through, d.size, d.stride);
    if (!direct) return;
    digits.insert(digits.end(), direct->begin(), direct->end());
  }
  merge(digits);
  x.digits = std::move(digits);
  x.axes = std::move(axes);
  x.through.clear();
}

}  // namespace

absl::StatusOr<IndexMap> gathered(const IndexMap& x, const std::vector<int>& axes, const Mesh& mesh) {
  IndexMap out = x;
  std::vector<Digit> lead;
  for (int a : axes) {
    if (x.is_partial(a)) return wrong("it is gathered along axis ", mesh.axes[a].name, ", over which it is partial");
    auto digits = off_axis(out.axes, a, mesh.axes[a].size);
    if (!digits) return wrong("it is gathered along axis ", mesh.axes[a].name, ", which does not split it");
    lead.insert(lead.end(), digits->begin(), digits->end());
  }
  out.digits.insert(out.digits.begin(), lead.begin(), lead.end());
  merge(out.digits);
  see_directly(out);
  return out;
}

absl::StatusOr<IndexMap> exchanged(const IndexMap& x, const std::vector<int>& axes, const Mesh& mesh) {
  IndexMap out = x;
  std::vector<Digit> lead;
  std::vector<AxisDigit> put;
  for (int a : axes) {
    if (x.is_partial(a)) return wrong("it is exchanged along axis ", mesh.axes[a].name, ", over which it is partial");
    auto off = off_axis(out.axes, a, mesh.axes[a].size);
    auto on = take_outer(out.digits, mesh.axes[a].size);
    if (!off || !on) return wrong("it is exchanged along axis ", mesh.axes[a].name, ", which does not split it");
    lead.insert(lead.end(), off->begin(), off->end());
    onto_axis(*on, a, put);
  }
  out.axes.insert(out.axes.end(), put.begin(), put.end());
  out.digits.insert(out.digits.begin(), lead.begin(), lead.end());
  merge(out.digits);
  return out;
}

absl::StatusOr<IndexMap> reduced(const IndexMap& x, const std::vector<int>& axes, PartialKind kind) {
  PARTITA_RETURN_IF_ERROR(check_partial(x, axes, kind));
  IndexMap out = x;
  settle(out, axes);
  return out;
}

absl::StatusOr<IndexMap> scattered(const IndexMap& x, const std::vector<int>& axes, PartialKind kind, const Mesh& mesh,
                                   const IsView& is_view) {
  PARTITA_RETURN_IF_ERROR(check_partial(x, axes, kind));
  IndexMap out = x;
  for (int a : axes) {
    auto on = take_outer(out.digits, mesh.axes[a].size);
    if (!on) {
      int64_t size = 1;
      for (const Digit& d : x.digits) size *= d.size;
      // In levels, the parts of a sum are gathered again: the serial program need not have such a view.
      const IsView any = [](const std::vector<Digit>&) { return true; };
      for (const IsView& view : {is_view, any}) {
        if (auto seen = seen_through(x, {size}, view)) return scattered(*seen, axes, kind, mesh, is_view);
      }
      return wrong("it cannot be scattered into ", mesh.axes[a].size, " parts");
    }
    onto_axis(*on, a, out.axes);
  }
  settle(out, axes);
  merge(out.digits);
  return out;
}

void number(const std::vector<Pieces>& dims, IndexMap& out) {
  int64_t stride = 1;
  out.digits.clear();
  out.axes.clear();
  for (size_t d = dims.size(); d-- > 0;) {
    for (size_t k = dims[d].size(); k-- > 0;) {
      const Piece& p = dims[d][k];
      if (p.kind == Piece::Kind::kFree) {
        out.digits.push_back({p.local, 0});
        if (!out.through.empty()) stride *= p.size;
        continue;
      }
      if (p.kind == Piece::Kind::kLocal) out.digits.push_back({p.size, stride});
      if (p.kind == Piece::Kind::kAxis) out.axes.push_back({p.axis, p.divisor, p.size, stride});
      stride *= p.size;
    }
  }
  std::reverse(out.digits.begin(), out.digits.end());
  merge(out.digits);
}

int64_t local_size(const Pieces& pieces) {
  int64_t n = 1;
  for (const Piece& p : pieces) n *= p.local;
  return n;
}

std::string to_string(const IndexMap& layout, const Mesh& mesh) {
  std::string s;
  if (layout.root < 0) return "no value of the serial program";
  append(s, "index");
  for (const Digit& d : layout.digits) append(s, " (", d.size, ":", d.stride, ")");
  for (const AxisDigit& d : layout.axes) append(s, ", ", mesh.axes[d.axis].name, " (", d.size, ":", d.stride, ")");
  if (!layout.through.empty()) s += ", through";
  for (const Digit& d : layout.through) append(s, " (", d.size, ":", d.stride, ")");
  constexpr const char* kKinds[] = {"sum", "max", "min"};
  if (!layout.partial.empty())
    append(s, ", ", kKinds[static_cast<int>(layout.kind)], " partial over ", axis_names(layout.partial, mesh));
  if (layout.sliced) append(s, ", one micro-batch a rank");
  return s;
}

std::string to_string(const std::vector<Pieces>& dims, const Mesh& mesh) {
  std::string s = "[";
  for (const Pieces& pieces : dims) {
    if (s.size() > 1) s += ", ";
    if (pieces.empty()) s += "1";
    for (size_t k = 0; k < pieces.size(); ++k) {
      append(s, k ? " " : "", pieces[k].size);
      if (pieces[k].kind == Piece::Kind::kAxis) append(s, "@", mesh.axes[pieces[k].axis].name);
      if (pieces[k].kind == Piece::Kind::kFree) append(s, "(any ", pieces[k].local, ")");
    }
  }
  return s + "]";
}

bool same_placement(const runtime::Placement& a, const runtime::Placement& b) {
  auto same_axis = [](const runtime::AxisStride& x, const runtime::AxisStride& y) {
    return x.axis == y.axis && x.stride == y.stride;
  };
  auto same_axes = [&](const auto& x, const auto& y) {
    return std::equal(x.begin(), x.end(), y.begin(), y.end(), same_axis);
  };
  return a.logical == b.logical && a.shape == b.shape && a.local == b.local &&
         std::equal(a.axes.begin(), a.axes.end(), b.axes.begin(), b.axes.end(), same_axes);
}

}  // namespace partita::verifier
