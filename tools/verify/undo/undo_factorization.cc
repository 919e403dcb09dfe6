#include "tools/verify/undo/undo_factorization.h"

#include <algorithm>
#include <set>

#include "tools/verify/layout/serial_values.h"
#include "tools/verify/undo/graph_match.h"
#include "tools/verify/undo/orthonormal.h"

namespace partita::verifier {
namespace {

class FactoredSums {
 public:
  explicit FactoredSums(const Graph& graph) : g_(graph), reader_(graph) {}

  Uncompressed undo() {
    for (const Node& node : g_.nodes) match(node);
    // The first factors of the next step are read by the products that are gone.
    for (const State& s : g_.states) {
      if (starts_.count(s.value)) states_.push_back(s.value);
    }
    Uncompressed out = substitute(g_, values_, states_);
    out.sums = sums_;
    for (const State& s : g_.states) {
      if (!std::count(states_.begin(), states_.end(), s.value)) continue;
      auto start = starts_.find(s.value);
      if (start == starts_.end()) {
        out.kept.push_back({s.name, {}});
        continue;
      }
      const auto [axes, product] = start->second;
      const auto last = std::ranges::find(out.from.rbegin(), out.from.rend(), product);  // of what it has become
      const auto at = static_cast<size_t>(out.from.rend() - last) - 1;
      out.kept.push_back({s.name, axes, last == out.from.rend() ? kNoValue : out.graph.nodes[at].outputs[0]});
    }
    return out;
  }

 private:
  bool transposes(const Node& product, int64_t a, int64_t b) const {
    return product.attrs.i("transpose_a") == a && product.attrs.i("transpose_b") == b;
  }

  // The part of a sum over ranks that `v` is, behind a slice of several that were laid end to end: its term here.
  const Node* sum_of(ValueId v, ValueId& term) const {
    v = reader_.behind_views(v);
    int64_t at = 0;
    const int64_t size = elements(g_.type(v).shape);
    if (const Node* part = reader_.made_by(v, "slice"); part != nullptr) {
      if (g_.type(part->inputs[0]).rank() != 1 || part->attrs.ints("strides")[0] != 1) return nullptr;
      at = part->attrs.ints("starts")[0];
      v = part->inputs[0];
    }
    const Node* sum = reader_.sum_over_ranks(v, term);
    if (sum == nullptr || sum->op->name != "all_reduce") return nullptr;
    if (const Node* all = reader_.made_by(term, "concat"); all != nullptr) {
      for (ValueId in : all->inputs) {
        const int64_t length = elements(g_.type(in).shape);
        if (at == 0 && length == size) {
          term = reader_.behind_views(in);
          return sum;
        }
        at -= length;
      }
      return nullptr;
    }
    term = reader_.behind_views(term);
    return at == 0 && elements(g_.type(term).shape) == size ? sum : nullptr;
  }

  // The state Q from which P is made: an orthonormal basis of the columns of the sum over `group` of M Q. nullptr where
  // it is anything else, or where Q does not become one of M^T P's, which is `right`.
  const State* start_of(ValueId p, ValueId m, ValueId right, const Attrs& group) const {
    std::vector<ValueId> front = {p};
    std::set<ValueId> seen;
    while (!front.empty()) {
      const ValueId v = front.back();
      front.pop_back();
      if (!seen.insert(v).second) continue;
      ValueId own = kNoValue;
      const Node* sum = sum_of(v, own);
      const Node* first = sum == nullptr || sum->attrs != group ? nullptr : reader_.made_by(own, "matmul");
      if (first != nullptr && first->inputs[0] == m && transposes(*first, 0, 0) && is_basis(g_, p, v)) {
        const ValueId q = first->inputs[1];
        for (const State& s : g_.states) {
          if (s.value == reader_.behind_views(q) && s.kind == StateKind::kOptimizer && s.parameter.empty() &&
              s.next != kNoValue && is_basis(g_, reader_.behind_views(s.next), right, q))
            return &s;
        }
        return nullptr;
      }
      const Node* node = reader_.maker(v);
      if (node == nullptr || node->op->communicates) continue;
      for (ValueId in : node->inputs) {
        if (in != kNoValue) front.push_back(in);
      }
    }
    return nullptr;
  }

  // P (sum over ranks of M^T P)^T.
  void match(const Node& product) {
    if (product.op->name != "matmul" || product.segment <= Segment::kBackward || !transposes(product, 0, 1)) return;
    const Node* slice = reader_.made_by(product.inputs[0], "shard_slice");  // this rank's rows
    if (slice != nullptr && slice->attrs.i("dim") != 0) return;
    const ValueId p = slice == nullptr ? product.inputs[0] : slice->inputs[0];
    ValueId own = kNoValue;
    const Node* sum = sum_of(product.inputs[1], own);
    const Node* right = sum == nullptr ? nullptr : reader_.made_by(own, "matmul");
    if (right == nullptr || !transposes(*right, 1, 0) || right->inputs[1] != p) return;
    const ValueId m = right->inputs[0], x = reader_.behind_views(m);
    const State* start = start_of(p, m, product.inputs[1], sum->attrs);
    if (start == nullptr) return;
    starts_[start->value] = {sum->attrs.ints("axes"), g_.values[product.outputs[0]].producer};
    values_[product.outputs[0]] = {
        m, [sum, slice](Rewriter& r, ValueId term) {
          ValueId whole = r.builder().emit("all_reduce", {term}, sum->attrs);
          return slice == nullptr ? whole : r.builder().emit("shard_slice", {whole, r(slice->inputs[1])}, slice->attrs);
        }};
    ++sums_;
    GraphReader::Remainder e = reader_.remainder_in(x);
    const Node* left = reader_.made_by(e.left, "sub");
    const Node* spanned = left == nullptr ? nullptr : reader_.made_by(left->inputs[1], "matmul");
    if (spanned == nullptr || left->inputs[0] != m || !transposes(*spanned, 0, 1) || spanned->inputs[0] != p ||
        reader_.behind_views(spanned->inputs[1]) != own)
      return;
    values_[x] = {e.term, [](Rewriter&, ValueId term) { return term; }};
    states_.push_back(e.state);
  }

  const Graph& g_;
  const GraphReader reader_;
  std::map<ValueId, Substitute> values_;
  std::vector<ValueId> states_;
  // With the axes along which ranks share them, and the product that is the gradient.
  std::map<ValueId, std::pair<std::vector<int64_t>, NodeId>> starts_;
  int64_t sums_ = 0;
};

}  // namespace

Uncompressed undo_factorization(const Graph& ranks) { return FactoredSums(ranks).undo(); }

}  // namespace partita::verifier
