#include <algorithm>
#include <numeric>
#include <tuple>

#include "base/cat.h"
#include "base/status.h"
#include "ir/graph/builder.h"

namespace partita {
namespace {

absl::StatusOr<std::vector<TensorType>> reshape_types(const OpView& use) {
  const Shape& to = use.attrs.ints("shape");
  auto n = checked_elements(to);
  if (!n || *n != elements(use.shape(0))) {
    return absl::InvalidArgumentError(
        cat("cannot reshape ", to_string(use.shape(0)), " into ", to_string(to), ": the element counts differ"));
  }
  return std::vector<TensorType>{{use.dtype(), to}};
}

// Splits both shapes, from the left, into the shortest groups of equal products, and each group into factors:
//   [6,4] -> [2,3,4]   "~ (a b) c -> a b c"
//   [4,6] -> [6,4]     "~ (a b^) (c^ z) -> (a d^) (e^ z)"
// In the second the cuts do not nest: only what both outermost (innermost) dimensions share is a factor of both.
class ReshapeFormula {
 public:
  ReshapeFormula(const Shape& from, const Shape& to) : from_(from), to_(to) {}

  std::string text() {
    size_t i = 0, j = 0;
    while (i < from_.size() || j < to_.size()) {
      if (i < from_.size() && from_[i] == 1) {
        put(in_, {});
        ++i;
      } else if (j < to_.size() && to_[j] == 1) {
        put(out_, {});
        ++j;
      } else {
        size_t i0 = i, j0 = j;
        int64_t a = 1, b = 1;
        do {
          if (i < from_.size() && (a <= b || j == to_.size())) {
            a *= from_[i++];
          } else {
            b *= to_[j++];
          }
        } while (a != b && (i < from_.size() || j < to_.size()));
        group(i0, i, j0, j);
      }
    }
    return "~" + in_ + " ->" + out_;
  }

 private:
  std::string fresh(int64_t size, bool whole) { return cat(factor_name(names_++), "=", size, whole ? "^" : ""); }

  static void put(std::string& side, const std::vector<std::string>& factors) {
    side += factors.empty() ? " *" : factors.size() == 1 ? " " + factors[0] : " (";
    if (factors.size() < 2) return;
    for (size_t k = 0; k < factors.size(); ++k) side += (k ? " " : "") + factors[k];
    side += ")";
  }

  void group(size_t i0, size_t i, size_t j0, size_t j) {
    // The products of trailing dimensions on either side, where they nest, cut the group into factors.
    std::vector<int64_t> cuts = {1};
    int64_t products[2] = {1, 1};
    for (size_t k = i; k-- > i0;) cuts.push_back(products[0] *= from_[k]);
    for (size_t k = j; k-- > j0;) cuts.push_back(products[1] *= to_[k]);
    std::sort(cuts.begin(), cuts.end());
    cuts.erase(std::unique(cuts.begin(), cuts.end()), cuts.end());
    bool nests = products[0] == products[1] && cuts[0] > 0;
    for (size_t k = 0; nests && k + 1 < cuts.size(); ++k) nests = cuts[k + 1] % cuts[k] == 0;
    if (!nests) return unnested(i0, i, j0, j);
    std::vector<std::string> factors(cuts.size() - 1);  // innermost first, named from the outermost
    for (size_t k = factors.size(); k-- > 0;) factors[k] = fresh(cuts[k + 1] / cuts[k], false);
    for (auto [shape, first, last, side] : {std::tuple{&from_, i0, i, &in_}, std::tuple{&to_, j0, j, &out_}}) {
      size_t at = factors.size();
      for (size_t k = first; k < last; ++k) {
        std::vector<std::string> mine;
        for (int64_t left = (*shape)[k]; left > 1; left /= cuts[at + 1] / cuts[at]) mine.push_back(factors[--at]);
        put(*side, mine);
      }
    }
  }

  void unnested(size_t i0, size_t i, size_t j0, size_t j) {
    bool both = i0 < i && j0 < j && elements(Shape(from_.begin() + i0, from_.begin() + i)) > 0;
    int64_t outer = both ? std::gcd(from_[i0], to_[j0]) : 1, inner = both ? std::gcd(from_[i - 1], to_[j - 1]) : 1;
    std::string first = outer > 1 ? fresh(outer, false) : "", last = inner > 1 ? fresh(inner, false) : "";
    for (auto [shape, begin, end, side] : {std::tuple{&from_, i0, i, &in_}, std::tuple{&to_, j0, j, &out_}}) {
      for (size_t k = begin; k < end; ++k) {
        std::vector<std::string> mine;
        int64_t left = (*shape)[k];
        if (k == begin && outer > 1) mine.push_back(first), left /= outer;
        if (k + 1 == end && inner > 1) left /= inner;
        if (left != 1) mine.push_back(fresh(left, true));
        if (k + 1 == end && inner > 1) mine.push_back(last);
        put(*side, mine);
      }
    }
  }

  const Shape &from_, &to_;
  std::string in_, out_;
  int names_ = 0;
};

// A reshape of a reshape is one, and one to the shape at hand is none.
ValueId reshape_simpler(const OpUse& use) {
  const Node* before = use.b.graph().producer(use.inputs[0]);
  ValueId from = before != nullptr && before->op->name == "reshape" ? before->inputs[0] : use.inputs[0];
  const Shape& to = use.attrs.ints("shape");
  return use.b.shape(from) == to || from != use.inputs[0] ? use.b.reshape(from, to) : kNoValue;
}

}  // namespace

// The same elements in row-major order under attribute `shape`.
extern const OpDef kReshape = {
    .name = "reshape",
    .attributes = "ints shape",
    .formula_of = [](const OpView& use) { return ReshapeFormula(use.shape(0), use.attrs.ints("shape")).text(); },
    .infer = reshape_types,
    .gradient = [](const OpUse& use) -> std::vector<ValueId> {
      return {use.b.reshape(use.gradients[0], use.types[0].shape)};
    },
    .simpler = reshape_simpler,
    .view = true,
    .moves = true,
};

}  // namespace partita
