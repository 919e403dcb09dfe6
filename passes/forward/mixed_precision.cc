// One walk over the forward nodes. Contractions take 16-bit operands and leave 16-bit results; what follows stays at 16
// bits until it meets an f32 value (the residual stream, which starts at an f32 embedding) or an op that asks for f32.
// A bias, a norm's scale or a number must not widen what they meet: with them an elementwise op computes in f32, and
// its result is rounded back,
//
//   y: bf16 = matmul(x: bf16, w: bf16)        y: bf16 = matmul(x: bf16, w: bf16)
//   z = add(y, bias: f32)                 ->  z: bf16 = cast(add(cast(y to f32), bias))
//
// which costs nothing where the three become one loop, and neither rounds the bias nor its gradient.
#include "passes/forward/mixed_precision.h"

#include <algorithm>
#include <map>
#include <utility>

#include "base/cat.h"
#include "base/status.h"
#include "ir/graph/builder.h"

namespace partita {
namespace {

class Narrower {
 public:
  Narrower(const Graph& graph, DType narrow)
      : graph_(graph), narrow_(narrow), r_(graph), b_(r_.builder()), is_weight_(graph.values.size(), false) {
    for (const State& s : graph.states) is_weight_[s.value] = true;
    for (const Constant& c : graph.constants) is_weight_[c.value] = true;
  }

  absl::StatusOr<Graph> run() {
    for (const Node& node : graph_.nodes) PARTITA_RETURN_IF_ERROR(convert(node));
    for (const State& s : graph_.states) keep_type(s.next);
    for (const GraphOutput& o : graph_.outputs) keep_type(o.value);
    return std::move(r_).finish();
  }

 private:
  absl::Status convert(const Node& node) {
    r_.at(node);
    std::vector<ValueId> inputs;
    bool weight = !node.inputs.empty();
    for (ValueId v : node.inputs) {
      inputs.push_back(r_(v));
      weight = weight && (v == kNoValue || is_weight_[v]);
    }
    DType result = DType::kInvalid;  // what a float result is rounded to
    switch (node.op->precision) {
      case OperandPrecision::kAsIs:
        break;
      case OperandPrecision::kNarrow:
        for (int k = 0; k < node.op->min_inputs; ++k) inputs[k] = as(inputs[k], narrow_);
        break;
      case OperandPrecision::kWide:
        for (ValueId& v : inputs) v = as(v, DType::kF32);
        break;
      case OperandPrecision::kWidest:
        if (!is_mixed(inputs)) break;
        if (node.op->scalar != nullptr && !widens(node)) result = narrow_;
        for (ValueId& v : inputs) v = as(v, DType::kF32);
        break;
    }
    auto outputs = b_.try_emit(*node.op, std::move(inputs), node.attrs);
    if (!outputs.ok()) return with_context(outputs.status(), graph_.origin(node));
    for (size_t k = 0; k < node.outputs.size(); ++k) {
      ValueId now = result == DType::kInvalid ? (*outputs)[k] : as((*outputs)[k], result);
      r_.replace(node.outputs[k], now);
      const std::string& name = graph_.values[node.outputs[k]].name;
      if (!name.empty()) b_.name(now, name);
      is_weight_[node.outputs[k]] = weight;
    }
    return absl::OkStatus();
  }

  static bool converts(DType t) { return t == DType::kF32 || t == DType::kF16 || t == DType::kBF16; }

  // Whether f32 and 16-bit operands meet.
  bool is_mixed(const std::vector<ValueId>& inputs) const {
    bool wide = false, narrow = false;
    for (ValueId v : inputs) {
      if (v == kNoValue || !converts(b_.dtype(v))) continue;
      (b_.dtype(v) == DType::kF32 ? wide : narrow) = true;
    }
    return wide && narrow;
  }

  // Whether an f32 operand makes the result f32: any but a vector of weights or numbers.
  bool widens(const Node& node) const {
    for (ValueId v : node.inputs) {
      if (v == kNoValue || b_.dtype(r_(v)) != DType::kF32) continue;
      const Shape& shape = graph_.type(v).shape;
      int64_t longest = 1;
      for (int64_t n : shape) longest = std::max(longest, n);
      if (!is_weight_[v] || elements(shape) != longest) return true;
    }
    return false;
  }

  // `v` in the type `to`; itself where it is no f32 or 16-bit value.
  ValueId as(ValueId v, DType to) {
    if (v == kNoValue || !converts(b_.dtype(v)) || b_.dtype(v) == to) return v;
    auto [at, fresh] = casts_.try_emplace({v, to}, kNoValue);
    if (!fresh) return at->second;
    ValueId now = cast(v, to);
    casts_[{v, to}] = now;
    if (to == DType::kF32) casts_[{now, b_.dtype(v)}] = v;  // back again is the value itself
    return now;
  }

  ValueId cast(ValueId v, DType to) {
    NodeContext here = b_.context();
    const Node* producer = b_.graph().producer(v);
    // What only moves the elements of a weight moves its narrow copy. So does what sees a value in another shape: the
    // gradient is widened in the value's own, in which a sum of it can be scattered as the value is divided.
    if (to == narrow_ && producer != nullptr && moves(*producer) &&
        (producer->op->view || is_weight(producer->inputs[0]))) {
      const Node node = *producer;
      ValueId source = as(node.inputs[0], to);
      b_.context() = here;
      return b_.emit_all(node.op->name, {source}, node.attrs)[0];
    }
    if (to == narrow_ && producer == nullptr && is_weight(v)) b_.context().segment = Segment::kPrologue;
    ValueId now = b_.cast(v, to);
    b_.context() = here;
    return now;
  }

  static bool moves(const Node& node) {
    return node.inputs.size() == 1 && node.op->scalar == nullptr && node.op->flops_per_point == 0 &&
           node.op->precision == OperandPrecision::kWidest;
  }

  // Of values of the new graph: a state, a constant or what only moves one.
  bool is_weight(ValueId v) const {
    const Node* producer = b_.graph().producer(v);
    while (producer != nullptr && moves(*producer)) {
      v = producer->inputs[0];
      producer = b_.graph().producer(v);
    }
    if (producer != nullptr) return false;
    for (const GraphInput& in : b_.graph().inputs) {
      if (in.value == v) return false;
    }
    return true;
  }

  void keep_type(ValueId old) {
    if (old == kNoValue || b_.dtype(r_(old)) == graph_.type(old).dtype) return;
    if (const Node* node = graph_.producer(old)) r_.at(*node);
    r_.replace(old, b_.cast(r_(old), graph_.type(old).dtype));
  }

  const Graph& graph_;
  const DType narrow_;
  Rewriter r_;
  Builder& b_;
  std::vector<bool> is_weight_;  // per old value: made of states and constants alone
  std::map<std::pair<ValueId, DType>, ValueId> casts_;
};

}  // namespace

absl::StatusOr<Graph> mixed_precision(const Graph& graph, const PassContext& context) {
  switch (context.recipe.precision) {
    case Precision::kBf16:
    case Precision::kFp8:  // before choose_fp8
      return Narrower(graph, DType::kBF16).run();
    case Precision::kFp16:
      return Narrower(graph, DType::kF16).run();
    default:
      return graph;
  }
}

}  // namespace partita
