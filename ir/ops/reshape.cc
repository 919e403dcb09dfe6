#include "base/cat.h"
#include "base/status.h"
#include "ir/builder.h"

namespace partita {
namespace {

absl::StatusOr<std::vector<TensorType>> reshape_types(const OpView& use) {
  const Shape& to = use.attrs.ints("shape");
  auto n = checked_elements(to);
  if (!n || *n != elements(use.shape(0))) {
    return absl::InvalidArgumentError(cat("cannot reshape ", to_string(use.shape(0)), " into ", to_string(to), ": the element counts differ"));
  }
  return std::vector<TensorType>{{use.dtype(), to}};
}

// Walks both shapes from the left, opening a group whenever the running products agree again:
// [6,4] -> [2,3,4] gives "(a=2 b=3) c -> a b c". A group whose sizes do not nest stays whole on both sides.
std::string reshape_formula(const OpView& use) {
  const Shape &from = use.shape(0), &to = use.attrs.ints("shape");
  std::string in = "~", out;
  int names = 0;
  auto put = [](std::string& side, const std::vector<std::string>& factors) {
    side += factors.size() == 1 ? " " + factors[0] : factors.empty() ? " *" : " (";
    if (factors.size() < 2) return;
    for (size_t k = 0; k < factors.size(); ++k) side += (k ? " " : "") + factors[k];
    side += ")";
  };
  size_t i = 0, j = 0;
  while (i < from.size() || j < to.size()) {
    if (i < from.size() && from[i] == 1) {
      put(in, {}), ++i;
      continue;
    }
    if (j < to.size() && to[j] == 1) {
      put(out, {}), ++j;
      continue;
    }
    if (i >= from.size() || j >= to.size()) break;  // sizes of zero: leave the rest whole below
    size_t i0 = i, j0 = j;
    int64_t a = from[i++], b = to[j++];
    while (a != b && (a < b ? i < from.size() : j < to.size())) {
      if (a < b) {
        a *= from[i++];
      } else {
        b *= to[j++];
      }
    }
    // Cut the group at every point where either side has a boundary, as long as the cuts nest.
    std::vector<int64_t> cuts;  // products of trailing dimensions, on both sides
    int64_t p = 1;
    for (size_t k = i; k-- > i0 + 1;) cuts.push_back(p *= from[k]);
    p = 1;
    for (size_t k = j; k-- > j0 + 1;) cuts.push_back(p *= to[k]);
    cuts.push_back(1);
    cuts.push_back(a);
    std::sort(cuts.begin(), cuts.end());
    cuts.erase(std::unique(cuts.begin(), cuts.end()), cuts.end());
    bool nests = a == b && a > 0;
    for (size_t k = 0; nests && k + 1 < cuts.size(); ++k) nests = cuts[k + 1] % cuts[k] == 0;
    if (!nests) {
      for (size_t k = i0; k < i; ++k) put(in, {cat(factor_name(names++), "=", from[k], "^")});
      for (size_t k = j0; k < j; ++k) put(out, {cat(factor_name(names++), "=", to[k], "^")});
      continue;
    }
    std::vector<std::string> pieces;  // outermost first
    for (size_t k = cuts.size() - 1; k > 0; --k) pieces.push_back(cat(factor_name(names++), "=", cuts[k] / cuts[k - 1]));
    auto side = [&](std::string& text, const Shape& shape, size_t first, size_t last) {
      size_t piece = 0;
      for (size_t k = first; k < last; ++k) {
        std::vector<std::string> mine;
        for (int64_t left = shape[k]; left > 1; ++piece) {
          left /= cuts[cuts.size() - 1 - piece] / cuts[cuts.size() - 2 - piece];
          mine.push_back(pieces[piece]);
        }
        put(text, mine);
      }
    };
    side(in, from, i0, i);
    side(out, to, j0, j);
  }
  for (; i < from.size(); ++i) put(in, {cat(factor_name(names++), "=", from[i], "^")});
  for (; j < to.size(); ++j) put(out, {cat(factor_name(names++), "=", to[j], "^")});
  return in + " ->" + out;
}

}  // namespace

// The same elements in row-major order under attribute `shape`.
extern const OpDef kReshape = {
    .name = "reshape",
    .formula_of = reshape_formula,
    .infer = reshape_types,
    .gradient = [](const OpUse& use) -> std::vector<ValueId> { return {use.b.reshape(use.gradients[0], use.types[0].shape)}; },
    .view = true,
};

}  // namespace partita
