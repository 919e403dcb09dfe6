#include "tools/verify/undo/undo_quantization.h"

#include <algorithm>
#include <cmath>
#include <optional>

#include "tools/verify/undo/graph_match.h"

namespace partita::verifier {
namespace {

constexpr double kMostInt8 = 127, kRounding = 1e-6;

class Int8Sums {
 public:
  explicit Int8Sums(const Graph& graph) : g_(graph), reader_(graph) {}

  Uncompressed undo() {
    for (const Node& node : g_.nodes) {
      if (node.op->name == "reduce_sum") match_scatter(node);
    }
    for (const Node& node : g_.nodes) match_gather(node);
    Uncompressed out = substitute(g_, values_, states_);
    out.sums = static_cast<int64_t>(scatters_.size());
    for (const State& s : g_.states) {
      if (std::count(states_.begin(), states_.end(), s.value)) out.kept.push_back({s.name, {}});
    }
    return out;
  }

 private:
  // What ranks sent of their x.
  struct Sent {
    ValueId x;
    const Attrs* group;
  };

  // Added up over the ranks: this rank's part of the sum.
  void match_scatter(const Node& sum) {
    if (sum.attrs.ints("dims") != std::vector<int64_t>{0} || sum.segment < Segment::kBackward) return;
    const std::optional<Sent> sent = sent_by("all_to_all", sum.inputs[0]);
    if (!sent || g_.type(sent->x).shape[0] != sent->group->i("parts")) return;
    const Shape shape = g_.type(sum.outputs[0]).shape;
    scatters_[sum.outputs[0]] = *sent;
    values_[sum.outputs[0]] = {sent->x, [sent, shape](Rewriter& r, ValueId x) {
                                 Builder& b = r.builder();
                                 return b.reshape(b.emit("reduce_scatter", {x}, summing(*sent->group)), shape);
                               }};
  }

  // All parts of the sum: where the parts end, or else at the slice that leaves out what they were filled up with.
  void match_gather(const Node& node) {
    if (node.segment < Segment::kBackward) return;
    ValueId all = node.outputs.empty() ? kNoValue : node.outputs[0];
    if (node.op->name == "slice") {
      if (g_.type(all).rank() != 1 || node.attrs.ints("starts")[0] != 0 || node.attrs.ints("strides")[0] != 1) return;
      all = reader_.behind_views(node.inputs[0]);
    }
    const std::optional<Sent> sent = sent_by("all_gather", all);
    if (!sent) return;
    const GraphReader::Remainder e = reader_.remainder_in(sent->x);
    auto sum = scatters_.find(e.term == kNoValue ? sent->x : e.term);
    if (sum == scatters_.end() || *sum->second.group != *sent->group) return;
    const ValueId value = flat_in_parts(sum->second.x);
    const Shape shape = g_.type(node.outputs[0]).shape;
    if (elements(shape) != elements(g_.type(value).shape)) return;
    values_[node.outputs[0]] = {value, [sent, shape](Rewriter& r, ValueId v) {
                                  Builder& b = r.builder();
                                  return b.reshape(b.emit("all_reduce", {v}, summing(*sent->group)), shape);
                                }};
  }

  static Attrs summing(const Attrs& group) {
    Attrs attrs = group;
    attrs.set("reduce", std::string("sum"));
    return attrs;
  }

  // The value of which x is the elements in order, zeros behind them, a remainder added.
  ValueId flat_in_parts(ValueId x) const {
    const GraphReader::Remainder e = reader_.remainder_in(x);
    const ValueId flat = reader_.behind_views(e.term == kNoValue ? x : e.term);
    const Node* pad = reader_.made_by(flat, "pad");
    if (pad == nullptr || g_.type(flat).rank() != 1 || pad->attrs.ints("low")[0] != 0) return flat;
    const Literal* zero = reader_.literal(pad->inputs[1]);
    return zero != nullptr && element_f(*zero, 0) == 0 ? reader_.behind_views(pad->inputs[0]) : flat;
  }

  // cast(travelled q) * travelled scale, q = cast(round(x / scale)).
  std::optional<Sent> sent_by(std::string_view op, ValueId v) {
    const Node* product = reader_.made_by(v, "mul");
    const Node* widened = product == nullptr ? nullptr : reader_.made_by(product->inputs[0], "cast");
    if (widened == nullptr || g_.type(widened->inputs[0]).dtype != DType::kI8) return std::nullopt;
    const Node* travel = reader_.made_by(widened->inputs[0], op);
    if (travel == nullptr || travel->segment < Segment::kBackward) return std::nullopt;
    const ValueId q = operand(*travel, widened->inputs[0]);
    const Node* narrowed = reader_.made_by(q, "cast");
    const Node* rounded = narrowed == nullptr ? nullptr : reader_.made_by(narrowed->inputs[0], "round");
    const Node* divided = rounded == nullptr ? nullptr : reader_.made_by(rounded->inputs[0], "div");
    if (divided == nullptr) return std::nullopt;
    const ValueId x = divided->inputs[0], scale = divided->inputs[1];
    if (!covers(scale, x) || !came_with(*travel, scale, product->inputs[1], widened->inputs[0])) return std::nullopt;
    keep_remainder(x, q, scale);
    return Sent{x, &travel->attrs};
  }

  ValueId operand(const Node& travel, ValueId result) const {
    return travel.inputs[static_cast<size_t>(g_.values[result].output)];
  }

  // Whether `theirs` are the scales that travelled as `travel` did, one for each block along the first dimension of q.
  bool came_with(const Node& travel, ValueId scale, ValueId theirs, ValueId q) const {
    Shape one_a_block(g_.type(q).shape.size(), 1);
    one_a_block[0] = g_.type(q).shape[0];
    if (g_.type(theirs).shape != one_a_block) return false;
    ValueId joint = reader_.behind_views(theirs);
    int64_t at = 0;
    if (const Node* own = reader_.made_by(joint, "slice"); own != nullptr) {
      const std::vector<int64_t>& starts = own->attrs.ints("starts");
      Shape column = g_.type(own->inputs[0]).shape;
      column.back() = 1;
      if (g_.type(joint).shape != column) return false;
      at = starts.back();
      joint = own->inputs[0];
    }
    const Node* other = reader_.made_by(joint, travel.op->name);
    if (other == nullptr || other->attrs != travel.attrs) return false;
    ValueId own = operand(*other, joint);
    if (const Node* all = reader_.made_by(own, "concat"); all != nullptr) {
      const bool columns = std::all_of(all->inputs.begin(), all->inputs.end(),
                                       [&](ValueId v) { return g_.type(v).rank() == 2 && g_.type(v).shape[1] == 1; });
      if (!columns || all->attrs.i("dim") != 1 || at >= static_cast<int64_t>(all->inputs.size())) return false;
      own = all->inputs[static_cast<size_t>(at)];
    } else if (at != 0 || g_.type(own).rank() != 2 || g_.type(own).shape[1] != 1) {
      return false;
    }
    return reader_.behind_views(own) == scale;
  }

  // Whether `scale` is the largest |x| for each index of the first dimension, times a constant for which no quotient
  // leaves int8.
  bool covers(ValueId scale, ValueId x) const {
    const Node* scaled = reader_.made_by(scale, "mul");
    const Literal* factor = scaled == nullptr ? nullptr : reader_.literal(scaled->inputs[1]);
    if (factor == nullptr || !factor->type.shape.empty() || element_f(*factor, 0) * kMostInt8 < 1 - kRounding)
      return false;
    const Node* reduced = reader_.made_by(scaled->inputs[0], "reduce_max");
    if (reduced == nullptr) return false;
    Shape one_a_block(g_.type(x).shape.size(), 1);
    one_a_block[0] = g_.type(x).shape[0];
    if (g_.type(scale).shape != one_a_block) return false;
    const Node* number = reader_.made_by(reduced->inputs[0], "select");  // what is none counts as infinite
    const Node* same = number == nullptr ? nullptr : reader_.made_by(number->inputs[0], "eq");
    if (same == nullptr || same->inputs[0] != x || same->inputs[1] != x) return false;
    const Literal* infinite = reader_.literal(number->inputs[2]);
    if (infinite == nullptr || !infinite->type.shape.empty() || element_f(*infinite, 0) != INFINITY) return false;
    const Node* absolute = reader_.made_by(number->inputs[1], "abs");
    return absolute != nullptr && absolute->inputs[0] == x;
  }

  void keep_remainder(ValueId x, ValueId q, ValueId scale) {
    const GraphReader::Remainder e = reader_.remainder_in(x);
    const Node* left = reader_.made_by(e.left, "sub");
    const Node* taken = left == nullptr ? nullptr : reader_.made_by(left->inputs[1], "mul");
    const Node* own = taken == nullptr ? nullptr : reader_.made_by(taken->inputs[0], "cast");
    if (own == nullptr || left->inputs[0] != x || own->inputs[0] != q || taken->inputs[1] != scale) return;
    if (values_.count(x)) return;
    values_[x] = {e.term, [](Rewriter&, ValueId term) { return term; }};
    states_.push_back(e.state);
  }

  const Graph& g_;
  const GraphReader reader_;
  std::map<ValueId, Substitute> values_;
  std::map<ValueId, Sent> scatters_;
  std::vector<ValueId> states_;
};

}  // namespace

Uncompressed undo_quantization(const Graph& ranks) { return Int8Sums(ranks).undo(); }

}  // namespace partita::verifier
