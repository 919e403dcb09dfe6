#include "codegen/prepare/channels_last.h"

#include <algorithm>
#include <array>
#include <numeric>
#include <string>
#include <tuple>
#include <utility>

#include "base/cat.h"
#include "base/status.h"
#include "ir/graph/builder.h"
#include "ir/op/op_def.h"
#include "runtime/program/library_kernels.h"

namespace partita {
namespace {

constexpr size_t kRank = kChannelsLast.size();

// The place of dimension `d` of the graph's.
int64_t place_of(int64_t d) { return std::find(kChannelsLast.begin(), kChannelsLast.end(), d) - kChannelsLast.begin(); }

// With the dimensions that broadcasting puts in front.
Shape lengthened(Shape shape) {
  shape.insert(shape.begin(), kRank - shape.size(), 1);
  return shape;
}

// The code generator's own forms of the library's ops, on operands and results of four dimensions with their channels
// last: no graph outside it has them. Attributes are the op's.
constexpr auto& kKernels = kChannelsLastKernels;

std::vector<TensorType> before(const OpView& use) {
  std::vector<TensorType> types(use.inputs.begin(), use.inputs.end());
  for (TensorType& t : types) t.shape = channels_second(t.shape);
  return types;
}

template <size_t K>
absl::StatusOr<std::vector<TensorType>> turned_types(const OpView& use) {
  PARTITA_ASSIGN_OR_RETURN(std::vector<TensorType> types, find_op(kKernels[K])->infer({use.attrs, before(use)}));
  for (TensorType& t : types) t.shape = channels_last(t.shape);
  return types;
}

template <size_t K>
double turned_flops(const OpView& use) {
  const std::vector<TensorType> types = before(use);
  const OpView own{use.attrs, types};
  return use_flops(*find_op(kKernels[K]), own, bound_formula(*find_op(kKernels[K]), own));
}

template <size_t K>
const OpDef* turned_op() {
  const OpDef& op = *find_op(kKernels[K]);
  static const std::string attributes = cat(op.attributes, ", i channels_last");
  static const OpDef made = {.name = op.name,
                             .min_inputs = op.min_inputs,
                             .max_inputs = op.max_inputs,
                             .attributes = attributes,
                             .infer = turned_types<K>,
                             .work = op.work,
                             .flops = turned_flops<K>,
                             .kernel = true};
  return &made;
}

template <size_t... K>
const OpDef* find_turned(std::string_view name, std::index_sequence<K...>) {
  const OpDef* found = nullptr;
  ((found = name == kKernels[K] ? turned_op<K>() : found), ...);
  return found;
}
const OpDef* find_turned(std::string_view name) {
  return find_turned(name, std::make_index_sequence<kKernels.size()>());
}

class Layout {
 public:
  explicit Layout(const Graph& graph)
      : graph_(graph),
        r_(graph),
        parent_(graph.values.size()),
        wanted_(graph.values.size(), false),
        turns_(graph.nodes.size(), false),
        native_(graph.values.size(), false),
        read_(graph.values.size()),
        turned_(graph.values.size(), kNoValue) {
    std::iota(parent_.begin(), parent_.end(), 0);
  }

  ChannelsLast run() && {
    for (const Node& node : graph_.nodes) join(node);
    for (const Node& node : graph_.nodes) seed(node);
    for (size_t n = 0; n < graph_.nodes.size(); ++n) decide(n);
    for (const GraphOutput& o : graph_.outputs) read(o.value, false);
    for (const State& s : graph_.states) read(s.next, false);
    for (size_t n = 0; n < graph_.nodes.size(); ++n) emit(n);
    ChannelsLast out;
    out.same_as.assign(r_.builder().graph().values.size(), kNoValue);
    out.turned.assign(out.same_as.size(), false);
    for (size_t v = 0; v < graph_.values.size(); ++v) {
      const ValueId old = static_cast<ValueId>(v);
      if (turned_[v] != kNoValue) {
        out.same_as[turned_[v]] = old;
        out.turned[turned_[v]] = !is_in_both_orders(shape(old));
      }
      if (r_.has(old)) out.same_as[r_(old)] = old;
    }
    for (const auto& [now, old, turned] : made_) out.same_as[now] = old, out.turned[now] = turned;
    out.graph = std::move(r_).finish();
    return out;
  }

 private:
  const Shape& shape(ValueId v) const { return graph_.type(v).shape; }
  size_t rank(ValueId v) const { return shape(v).size(); }
  bool has_channels(ValueId v) const { return rank(v) == kRank && elements(shape(v)) > 0; }

  ValueId root(ValueId v) {
    while (parent_[v] != v) v = parent_[v] = parent_[parent_[v]];
    return v;
  }
  bool is_wanted(ValueId v) { return has_channels(v) && wanted_[root(v)]; }

  // Only what each micro-batch does.
  static bool is_here(const Node& node) {
    return (node.segment == Segment::kForward || node.segment == Segment::kBackward) &&
           node.device == DeviceKind::kDefault && !node.outputs.empty();
  }
  static bool is_one_of(const Node& node, std::initializer_list<std::string_view> names) {
    return std::find(names.begin(), names.end(), node.op->name) != names.end();
  }
  static bool is_conv(const Node& node) { return is_one_of(node, {"conv", "conv_grad_data", "conv_grad_weight"}); }
  static bool is_pool(const Node& node) {
    return is_one_of(node, {"max_pool", "max_pool_grad", "avg_pool", "avg_pool_grad"});
  }
  static bool is_move(const Node& node) { return is_one_of(node, {"concat", "slice", "pad", "reverse"}); }

  // On tensor cores.
  bool is_turned_conv(const Node& node) const {
    if (!is_here(node) || !is_conv(node) || !has_channels(node.inputs[0]) || !has_channels(node.inputs[1]) ||
        !has_channels(node.outputs[0]))
      return false;
    const DType t = graph_.type(node.outputs[0]).dtype;
    return t == DType::kBF16 || t == DType::kF16 || (t == DType::kF32 && node.attrs.i("tf32", 0) != 0);
  }

  // The same element by element, wherever they lie, of operands that have a place in either order.
  bool is_pointwise(const Node& node) const {
    if (node.op->scalar == nullptr || node.op->view || node.op->kernel || node.op->communicates) return false;
    const std::vector<TensorType> types = input_types(graph_, node);
    const ScalarFunction f = scalar_function(*node.op, {node.attrs, types});
    return std::none_of(f.nodes.begin(), f.nodes.end(), [](const auto& s) { return s.op == ScalarOp::kIndex; });
  }
  bool fits(ValueId v) const {
    return v != kNoValue && (rank(v) == kRank || elements(shape(v)) == 1 ||
                             (rank(v) < kRank && is_in_both_orders(lengthened(shape(v)))));
  }
  bool can_turn(const Node& node) const {
    if (!is_here(node)) return false;
    const bool results = std::all_of(node.outputs.begin(), node.outputs.end(), [&](ValueId v) {
      return has_channels(v) && (is_pool(node) || shape(v) == shape(node.outputs[0]));
    });
    if (!results) return false;
    if (is_pool(node) || is_move(node)) return has_channels(node.inputs[0]);
    return (node.op->name == "broadcast" || is_pointwise(node)) &&
           std::all_of(node.inputs.begin(), node.inputs.end(), [&](ValueId v) { return fits(v); });
  }

  // Values that are in one order: operands of a node that are as large as its results.
  void join(const Node& node) {
    if (!can_turn(node)) return;
    const bool all = is_pool(node) || is_move(node);
    for (const std::vector<ValueId>* values : {&node.inputs, &node.outputs}) {
      for (ValueId v : *values) {
        if (has_channels(v) && (all || shape(v) == shape(node.outputs[0]))) parent_[root(v)] = root(node.outputs[0]);
      }
    }
  }

  // Those that convolutions read and make, but for weights and their gradients.
  void seed(const Node& node) {
    if (!is_turned_conv(node)) return;
    wanted_[root(node.inputs[0])] = true;
    wanted_[root(node.op->name == "conv_grad_weight" ? node.inputs[1] : node.outputs[0])] = true;
  }

  // The dimensions of a sum's result, which must be in the graph's order.
  bool can_sum(const Node& node) {
    if (!is_here(node) || !is_one_of(node, {"reduce_sum", "reduce_max", "reduce_min", "reduce_prod"}) ||
        !is_wanted(node.inputs[0]))
      return false;
    const auto& dims = node.attrs.ints("dims");
    const auto is_left = [&](int64_t d) {
      return std::find(dims.begin(), dims.end(), d) == dims.end() && shape(node.inputs[0])[static_cast<size_t>(d)] > 1;
    };
    return node.attrs.i("keep") != 0 || !is_left(1) || !(is_left(2) || is_left(3));
  }

  void decide(size_t n) {
    const Node& node = graph_.nodes[n];
    const bool sums = can_sum(node);
    turns_[n] = sums || is_turned_conv(node) || (can_turn(node) && is_wanted(node.outputs[0]));
    for (ValueId v : node.inputs) {
      if (v != kNoValue) read(v, turns_[n] && rank(v) == kRank);
    }
    for (ValueId v : node.outputs) native_[v] = turns_[n] && rank(v) == kRank;
  }
  void read(ValueId v, bool turned) {
    if (v != kNoValue) (turned ? read_[v].turned : read_[v].plain) = true;
  }

  ValueId plain(ValueId v) const { return r_(v); }
  ValueId turned(ValueId v) {
    if (turned_[v] == kNoValue) turned_[v] = turn(v);  // an input, a state, a constant: where it is read first
    return turned_[v];
  }
  ValueId turn(ValueId v) {
    Builder& b = r_.builder();
    if (is_in_both_orders(shape(v))) return b.reshape(plain(v), channels_last(shape(v)));
    return b.transpose(plain(v), {kChannelsLast.begin(), kChannelsLast.end()});
  }
  ValueId turn_back(ValueId v) {
    Builder& b = r_.builder();
    if (is_in_both_orders(shape(v))) return b.reshape(turned_[v], shape(v));
    return b.transpose(turned_[v], {place_of(0), place_of(1), place_of(2), place_of(3)});
  }

  ValueId operand(const Node& node, ValueId v) {
    if (rank(v) == kRank && node.op->casts && graph_.producer(v) == nullptr) {
      // In the sweep that casts it: nothing else is to read it so.
      const ValueId now = turn(v);
      if (!is_in_both_orders(shape(v))) made_.emplace_back(now, v, true);
      return now;
    }
    if (rank(v) == kRank) return turned(v);
    if (elements(shape(v)) == 1) return plain(v);
    return r_.builder().reshape(plain(v), channels_last(lengthened(shape(v))));
  }

  Attrs attrs_of(const Node& node) const {
    Attrs attrs = node.attrs;
    for (const char* name : {"starts", "limits", "strides", "low", "high"}) {
      if (is_move(node) && attrs.has(name)) attrs.set(name, channels_last(node.attrs.ints(name)));
    }
    if (node.op->name == "broadcast") attrs.set("shape", channels_last(node.attrs.ints("shape")));
    if (node.op->name == "concat") attrs.set("dim", place_of(node.attrs.i("dim")));
    if (attrs.has("dims")) {
      std::vector<int64_t> dims = node.attrs.ints("dims");
      for (int64_t& d : dims) d = place_of(d);
      std::sort(dims.begin(), dims.end());
      attrs.set("dims", std::move(dims));
    }
    if (is_conv(node) || is_pool(node)) attrs.set("channels_last", int64_t{1});
    return attrs;
  }

  void emit(size_t n) {
    const Node& node = graph_.nodes[n];
    if (turns_[n]) {
      emit_turned(node);
    } else {
      r_.copy(node);
    }
    for (ValueId v : node.outputs) {
      if (!native_[v] && read_[v].turned) turned_[v] = turn(v);
      if (native_[v] && read_[v].plain) r_.replace(v, turn_back(v));
    }
  }

  void emit_turned(const Node& node) {
    r_.at(node);
    std::vector<ValueId> inputs;
    for (ValueId v : node.inputs) inputs.push_back(operand(node, v));
    const OpDef* op = is_conv(node) || is_pool(node) ? find_turned(node.op->name) : node.op;
    auto outputs = r_.builder().try_emit(*op, std::move(inputs), attrs_of(node));
    PARTITA_CHECK(outputs.ok(), cat(graph_.origin(node), ": ", outputs.status().message()));
    for (size_t k = 0; k < node.outputs.size(); ++k) {
      const ValueId old = node.outputs[k], now = (*outputs)[k];
      if (!graph_.values[old].name.empty()) r_.builder().name(now, graph_.values[old].name);
      if (native_[old]) {
        turned_[old] = now;
      } else {
        made_.emplace_back(now, old, false);
        r_.replace(old, r_.builder().reshape(now, shape(old)));
      }
    }
  }

  const Graph& graph_;
  Rewriter r_;
  std::vector<ValueId> parent_;  // per value: towards the one that stands for all that are in its order
  std::vector<bool> wanted_;     // per such one: with channels last
  std::vector<bool> turns_;      // per node: on values with their channels last
  std::vector<bool> native_;     // per value: its node makes it so
  struct Read {
    bool plain = false, turned = false;
  };
  std::vector<Read> read_;       // per value: in which orders
  std::vector<ValueId> turned_;  // per value: of the new graph, with its channels last
  // Values of the new graph: what they are, and whether with their channels last.
  std::vector<std::tuple<ValueId, ValueId, bool>> made_;
};

}  // namespace
ChannelsLast lay_channels_last(const Graph& graph) { return Layout(graph).run(); }

}  // namespace partita
