#include "tools/verify/undo_quantization.h"

#include <algorithm>
#include <cmath>

#include "tools/verify/substitute.h"

namespace partita::verifier {
namespace {

constexpr double kMostInt8 = 127, kRounding = 1e-6;

class Int8Sums {
 public:
  explicit Int8Sums(const Graph& graph) : g_(graph), reader_(graph) {}

  Uncompressed undo() {
    for (const Node& node : g_.nodes) match(node);
    Uncompressed out = substitute(g_, values_, states_);
    out.sums = sums_;
    for (const State& s : g_.states) {
      if (std::count(states_.begin(), states_.end(), s.value)) out.remainders.push_back(s.name);
    }
    return out;
  }

 private:
  // scale * cast(sum over ranks of q), q = cast(round(x / scale)).
  void match(const Node& product) {
    if (product.op->name != "mul" || product.segment <= Segment::kBackward) return;
    const Node* widened = reader_.made_by(product.inputs[0], "cast");
    if (widened == nullptr || g_.type(widened->inputs[0]).dtype != DType::kI8) return;
    ValueId q = widened->inputs[0];
    const ValueId scale = product.inputs[1];
    std::vector<const Node*> sums;  // the last first
    std::vector<int64_t> axes;
    int64_t parts = 1;
    while (const Node* sum = reader_.sum_over_ranks(q, q)) {
      sums.push_back(sum);
      const std::vector<int64_t>& over = sum->attrs.ints("axes");
      axes.insert(axes.end(), over.begin(), over.end());
      parts *= sum->attrs.i("parts");
    }
    const Node* narrowed = sums.empty() ? nullptr : reader_.made_by(q, "cast");
    const Node* rounded = narrowed == nullptr ? nullptr : reader_.made_by(narrowed->inputs[0], "round");
    const Node* divided = rounded == nullptr ? nullptr : reader_.made_by(rounded->inputs[0], "div");
    if (divided == nullptr || divided->inputs[1] != scale) return;
    const ValueId x = divided->inputs[0];
    std::sort(axes.begin(), axes.end());
    if (!covers(scale, x, axes, parts)) return;
    values_[product.outputs[0]] = {x, [sums](Rewriter& r, ValueId sum) {
                                     for (size_t k = sums.size(); k-- > 0;)
                                       sum = r.builder().emit(sums[k]->op->name, {sum}, sums[k]->attrs);
                                     return sum;
                                   }};
    sums_ += static_cast<int64_t>(sums.size());
    GraphReader::Remainder e = reader_.remainder_in(x);
    const Node* left = reader_.made_by(e.left, "sub");
    const Node* taken = left == nullptr ? nullptr : reader_.made_by(left->inputs[1], "mul");
    const Node* own = taken == nullptr ? nullptr : reader_.made_by(taken->inputs[0], "cast");
    if (own == nullptr || left->inputs[0] != x || own->inputs[0] != q || taken->inputs[1] != scale) return;
    values_[x] = {e.term, [](Rewriter&, ValueId term) { return term; }};
    states_.push_back(e.state);
  }

  // Whether `scale` is a constant times the largest |x| over all ranks of the axes, such that a sum of `parts` terms
  // stays within int8.
  bool covers(ValueId scale, ValueId x, const std::vector<int64_t>& axes, int64_t parts) const {
    const Node* scaled = reader_.made_by(scale, "mul");
    const Literal* factor = scaled == nullptr ? nullptr : reader_.literal(scaled->inputs[1]);
    const double levels = std::floor(kMostInt8 / static_cast<double>(parts));
    if (factor == nullptr || !factor->type.shape.empty() || element_f(*factor, 0) * levels < 1 - kRounding)
      return false;
    ValueId largest = reader_.behind_views(scaled->inputs[0]);
    int64_t at = 0;
    if (const Node* one = reader_.made_by(largest, "slice"); one != nullptr) {
      if (g_.type(largest).shape != Shape{1}) return false;
      at = one->attrs.ints("starts")[0];
      largest = one->inputs[0];
    }
    const Node* most = reader_.made_by(largest, "all_reduce");
    if (most == nullptr || most->attrs.s("reduce") != "max" || most->attrs.ints("axes") != axes) return false;
    ValueId own = most->inputs[static_cast<size_t>(g_.values[largest].output)];
    if (const Node* all = reader_.made_by(own, "concat"); all != nullptr) {
      bool singles =
          std::all_of(all->inputs.begin(), all->inputs.end(), [&](ValueId v) { return g_.type(v).shape == Shape{1}; });
      if (!singles || at >= static_cast<int64_t>(all->inputs.size())) return false;
      own = all->inputs[static_cast<size_t>(at)];
    } else if (at != 0) {
      return false;
    }
    const Node* reduced = reader_.made_by(reader_.behind_views(own), "reduce_max");
    if (reduced == nullptr || elements(g_.type(reduced->outputs[0]).shape) != 1) return false;
    const Node* number = reader_.made_by(reduced->inputs[0], "select");  // what is none counts as infinite
    const Node* same = number == nullptr ? nullptr : reader_.made_by(number->inputs[0], "eq");
    if (same == nullptr || same->inputs[0] != x || same->inputs[1] != x) return false;
    const Literal* infinite = reader_.literal(number->inputs[2]);
    if (infinite == nullptr || !infinite->type.shape.empty() || element_f(*infinite, 0) != INFINITY) return false;
    const Node* absolute = reader_.made_by(number->inputs[1], "abs");
    return absolute != nullptr && absolute->inputs[0] == x;
  }

  const Graph& g_;
  const GraphReader reader_;
  std::map<ValueId, Substitute> values_;
  std::vector<ValueId> states_;
  int64_t sums_ = 0;
};

}  // namespace

Uncompressed undo_quantization(const Graph& ranks) { return Int8Sums(ranks).undo(); }

}  // namespace partita::verifier
