// Parts of dimensions: how they line up with each other, with an op's factors and with the program's interface.
#include <algorithm>
#include <utility>

#include "base/cat.h"
#include "base/status.h"
#include "tools/verify/layout/index_map.h"

namespace partita::verifier {
namespace {

using Kind = Piece::Kind;

// Cuts the outer `size` off a piece; nullopt where it has no such part. `all`: every rank is to have all of that.
std::optional<Piece> cut_outer(Piece& piece, int64_t size, bool all = false) {
  if (size <= 0 || piece.size % size != 0) return std::nullopt;
  int64_t rest = piece.size / size;
  Piece outer = piece;
  outer.size = size;
  switch (piece.kind) {
    case Kind::kLocal:
      outer.local = size;
      piece.local = rest;
      break;
    case Kind::kAxis:
      outer.divisor = piece.divisor * rest;
      break;
    case Kind::kFree:
      // Any rank may have any part of it; the outer part is taken to be the one that is split, where it may be.
      if (all && piece.local % size == 0) {
        outer.local = size;
        piece.local /= size;
      } else if (piece.local % rest == 0) {
        outer.local = piece.local / rest;
        piece.local = rest;
      } else if (rest % piece.local == 0) {
        outer.local = 1;
      } else {
        return std::nullopt;
      }
      break;
  }
  piece.size = rest;
  return outer;
}

void push(Pieces& pieces, const Piece& p) {
  if (p.size == 1) return;
  Piece* last = pieces.empty() ? nullptr : &pieces.back();
  bool joins = last != nullptr && last->kind == p.kind &&
               (p.kind == Kind::kLocal || (p.kind == Kind::kFree && last->local == last->size && p.local == p.size) ||
                (p.kind == Kind::kAxis && last->axis == p.axis && last->divisor == p.divisor * p.size));
  if (!joins) {
    pieces.push_back(p);
    return;
  }
  last->size *= p.size;
  last->local *= p.local;
  if (p.kind == Kind::kAxis) last->divisor = p.divisor;
}

// Moves pieces of `size` in total from the outer end of one list to another.
bool take(Pieces& from, int64_t size, Pieces& to, bool all = false) {
  while (size > 1) {
    if (from.empty()) return false;
    Piece& p = from.front();
    if (p.size <= size) {
      if (size % p.size != 0) return false;
      size /= p.size;
      to.push_back(p);
      from.erase(from.begin());
    } else {
      auto outer = cut_outer(p, size, all);
      if (!outer) return false;
      to.push_back(*outer);
      size = 1;
    }
  }
  return true;
}

// The outer part of a digit, of elements `stride` or further apart, cut off; nullopt where it has no such part.
std::optional<Digit> cut_outer(Digit& digit, int64_t stride) {
  if (digit.stride >= stride) return std::exchange(digit, Digit{});
  const int64_t inner = stride / digit.stride;
  if (stride % digit.stride != 0 || digit.size % inner != 0) return std::nullopt;
  const Digit outer{digit.size / inner, stride};
  digit.size = inner;
  return outer;
}

// The pieces of one dimension: serial digits, outermost first, are tiled by the rank's digits of the same dimension, in
// their order, and by digits of coordinates. Where a rank's neighbours count on, though the serial value has others
// between them, they are one digit of the rank's.
std::optional<Pieces> tile(const std::vector<Digit>& serial, std::vector<Digit> local, std::vector<AxisDigit>& axes) {
  Pieces pieces;
  size_t next = 0;
  const auto pass = [&] {
    while (next < local.size() && local[next].size == 1) ++next;
  };
  for (const Digit& s : serial) {
    pass();
    if (s.stride == 0) {
      bool here = next < local.size() && local[next].stride == 0;
      int64_t size = here ? local[next].size : 1;
      if (s.size % size != 0) return std::nullopt;
      next += here;
      push(pieces, {Kind::kFree, s.size, size, -1, 1});
      continue;
    }
    for (int64_t top = s.stride * s.size; top > s.stride; pass()) {
      if (next < local.size() && local[next].stride * local[next].size == top) {
        const auto outer = cut_outer(local[next], s.stride);
        if (!outer) return std::nullopt;
        push(pieces, {Kind::kLocal, outer->size, outer->size, -1, 1});
        top = outer->stride;
      } else {
        auto at = std::find_if(axes.begin(), axes.end(), [&](const AxisDigit& d) { return d.stride * d.size == top; });
        if (at == axes.end() || at->stride < s.stride) return std::nullopt;
        push(pieces, {Kind::kAxis, at->size, 1, at->axis, at->divisor});
        top = at->stride;
        axes.erase(at);
      }
    }
  }
  if (next != local.size()) return std::nullopt;
  return pieces;
}

}  // namespace

absl::StatusOr<std::vector<Pieces>> pieces_of(const IndexMap& serial, const Shape& serial_shape, const IndexMap& local,
                                              const Shape& local_shape) {
  auto no = [](const std::string& why) { return absl::FailedPreconditionError(why); };
  if (serial.root != local.root || local.root < 0) return no("it is another value");
  if (serial_shape.size() != local_shape.size()) return no("it has another number of dimensions");
  if (!local.through.empty() && local.through != serial.digits) return no("it is another view of its root");
  auto theirs = by_dimension(local.through.empty() ? serial.digits : whole(serial_shape), serial_shape);
  auto mine = by_dimension(local.digits, local_shape);
  if (!theirs || !mine) return no("its layout does not fit its dimensions");
  std::vector<AxisDigit> axes = local.axes;
  std::vector<Pieces> dims;
  for (size_t d = 0; d < serial_shape.size(); ++d) {
    auto pieces = tile((*theirs)[d], (*mine)[d], axes);
    if (!pieces) return no(cat("its dimension ", d, " is no even part of the serial value's"));
    dims.push_back(*std::move(pieces));
  }
  if (!axes.empty()) return no("ranks hold parts of it that leave others out");
  return dims;
}

std::optional<Pieces> unified(Pieces a, Pieces b) {
  Pieces out;
  while (!a.empty() && !b.empty()) {
    if (a.front().kind != Kind::kFree && b.front().kind == Kind::kFree) std::swap(a, b);
    if (a.front().kind == Kind::kFree && b.front().kind != Kind::kFree) {
      Piece free = a.front();
      Pieces taken;
      // What is split by coordinates may reach further than the free piece.
      if (!take(b, free.size, taken) || local_size(taken) != free.local) return std::nullopt;
      a.erase(a.begin());
      for (const Piece& p : taken) push(out, p);
      continue;
    }
    if (a.front().size > b.front().size) std::swap(a, b);
    Piece first = a.front();
    a.erase(a.begin());
    Piece second = b.front();
    if (first.size == second.size) {
      b.erase(b.begin());
    } else {
      auto outer = cut_outer(b.front(), first.size);
      if (!outer) return std::nullopt;
      second = *outer;
    }
    if (!(first == second)) return std::nullopt;
    push(out, first);
  }
  if (!a.empty() || !b.empty()) return std::nullopt;
  return out;
}

namespace {

std::optional<std::vector<Pieces>> taken_by_factor(const Formula& formula, const std::vector<int>& dim, Pieces pieces) {
  std::vector<Pieces> factors;
  for (int f : dim) {
    Pieces taken, mine;
    const bool all = formula.factors[f].role == FactorRole::kWhole;
    if (!take(pieces, formula.factors[f].size, taken, all)) return std::nullopt;
    for (const Piece& p : taken) push(mine, p);
    factors.push_back(std::move(mine));
  }
  if (!pieces.empty()) return std::nullopt;
  return factors;
}

}  // namespace

std::optional<std::vector<Pieces>> by_factor(const Formula& formula, const std::vector<int>& dim, Pieces pieces) {
  auto factors = taken_by_factor(formula, dim, pieces);
  // What every rank has all of can be cut anywhere: a value repeated along a dimension has edges of its own in it.
  bool whole = std::all_of(pieces.begin(), pieces.end(),
                           [](const Piece& p) { return p.kind != Kind::kAxis && p.local == p.size; });
  if (factors || !whole) return factors;
  int64_t size = 1;
  for (const Piece& p : pieces) size *= p.size;
  return taken_by_factor(formula, dim, {{Kind::kLocal, size, size, -1, 1}});
}

absl::StatusOr<std::vector<Pieces>> placed_pieces(const runtime::Placement& placement, const Mesh& mesh) {
  auto no = [](const std::string& why) { return absl::FailedPreconditionError(why); };
  std::vector<Pieces> dims;
  size_t at = 0;
  for (int64_t size : placement.logical) {
    Pieces pieces;
    int64_t covered = 1;
    while (covered < size || (at < placement.shape.size() && placement.shape[at] == 1)) {
      if (at >= placement.shape.size() || placement.shape[at] < 1 || size % (covered * placement.shape[at]) != 0)
        return no("its placement does not refine its shape");
      std::vector<runtime::AxisStride> axes = placement.axes[at];
      std::sort(axes.begin(), axes.end(), [](const auto& a, const auto& b) { return a.stride > b.stride; });
      int64_t top = placement.shape[at];
      for (const runtime::AxisStride& a : axes) {
        int64_t ways = mesh.axes[a.axis].size;
        if (ways == 1) continue;
        if (a.stride * ways != top) return no("the ranks' boxes overlap or leave something out");
        push(pieces, {Kind::kAxis, ways, 1, a.axis, 1});
        top = a.stride;
      }
      if (top != placement.local[at]) return no("the ranks' boxes overlap or leave something out");
      push(pieces, {Kind::kLocal, top, top, -1, 1});
      covered *= placement.shape[at++];
    }
    if (covered != size) return no("its placement does not refine its shape");
    dims.push_back(std::move(pieces));
  }
  while (at < placement.shape.size()) {
    if (placement.shape[at++] != 1) return no("its placement does not refine its shape");
  }
  return dims;
}

}  // namespace partita::verifier
