// A dimension stands for a factor of the ops that touch it, and so for dimensions of their other operands: followed to
// all of them, forwards and backwards, it is one class that can only be made longer as a whole. The nodes are then
// emitted anew in order (PaddedEmitter); where one refuses, the classes that it touches are given up and it begins
// again.
#include "partitioner/prepare/pad_dimensions.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>

#include "base/cat.h"
#include "base/status.h"
#include "ir/graph/builder.h"
#include "ir/graph/padding.h"

namespace partita {
namespace {

constexpr int64_t kLeastShare = 32;  // of a dimension that may be padded for its rows: the padding is a 32nd at most

using Dimension = std::pair<ValueId, int>;
using Sizes = std::map<Dimension, int64_t>;  // of dimensions that become longer

Shape longer_shape(const Graph& graph, ValueId v, const Sizes& sizes) {
  Shape shape = graph.type(v).shape;
  for (auto at = sizes.lower_bound({v, 0}); at != sizes.end() && at->first.first == v; ++at)
    shape[static_cast<size_t>(at->first.second)] = at->second;
  return shape;
}

bool is_longer(ValueId v, const Sizes& sizes) {
  auto at = sizes.lower_bound({v, 0});
  return at != sizes.end() && at->first.first == v;
}

class Padder {
 public:
  explicit Padder(const Graph& graph) : graph_(graph), readers_(uses(graph)), constants_(constant_values(graph)) {
    for (const GraphInput& in : graph.inputs) inputs_.insert(in.value);
    for (const State& s : graph.states) {
      if (s.next == kNoValue || s.next == s.value) continue;
      steps_.emplace(s.value, s.next);
      steps_.emplace(s.next, s.value);
    }
  }

  PaddedGraph run(const Padding& padding) {
    std::vector<Sizes> classes;
    std::set<Dimension> seen;
    for (const State& s : graph_.states) {
      const Shape& shape = graph_.type(s.value).shape;
      for (int d = 0; s.kind == StateKind::kParameter && d < static_cast<int>(shape.size()); ++d) {
        const int64_t size = shape[static_cast<size_t>(d)];
        const bool split = size >= padding.parts && padding.is_split && padding.is_split(s, d);
        const int64_t parts = split ? padding.parts : 1;
        if ((size % parts == 0 && padding.row_bytes == 1) || seen.count({s.value, d})) continue;
        Sizes found;
        const bool free = follow({s.value, d}, size, found);
        for (const auto& [dimension, old] : found) seen.insert(dimension);
        const int64_t longer = longer_size(size, parts, padding.row_bytes, found);
        for (auto& [dimension, now] : found) now = longer;
        if (free && longer != size) classes.push_back(std::move(found));
      }
    }
    PaddedGraph out;
    while (!classes.empty()) {
      Sizes all;
      for (const Sizes& c : classes) all.insert(c.begin(), c.end());
      if (std::optional<ValueId> refused = emit(all, out)) {
        std::erase_if(classes, [&](const Sizes& c) { return is_longer(*refused, c); });
        continue;
      }
      for (const State& s : graph_.states) out.logical.push_back(graph_.type(s.value).shape);
      return out;
    }
    out = {graph_, {}, {}};
    for (size_t v = 0; v < graph_.values.size(); ++v) out.now.push_back(static_cast<ValueId>(v));
    return out;
  }

 private:
  // The size of a class that was `size` before.
  int64_t longer_size(int64_t size, int64_t parts, int64_t row_bytes, const Sizes& dimensions) const {
    const int64_t element = row_bytes == 1 ? 0 : least_row_element(dimensions);
    const auto multiple = [&](int64_t of) { return (size + of - 1) / of * of; };
    const int64_t divided = multiple(parts);
    if (element == 0 || divided / parts * element % kAlignedRow == 0) return divided;
    for (int64_t bytes : {row_bytes, kAlignedRow}) {
      const int64_t rows = multiple(parts * bytes / element);
      if ((rows - size) * kLeastShare <= size) return rows;
    }
    return divided;
  }

  // Bytes of an element of the narrowest values that a product takes or makes and whose rows these dimensions are; 0:
  // there are none.
  int64_t least_row_element(const Sizes& dimensions) const {
    int64_t least = 0;
    for (const auto& [dimension, size] : dimensions) {
      const auto [v, d] = dimension;
      const TensorType& type = graph_.type(v);
      if (d + 1 != type.rank() || type.rank() < 2 || dtype_size(type.dtype) >= kAlignedRow || !is_of_product(v))
        continue;
      if (least == 0 || dtype_size(type.dtype) < least) least = dtype_size(type.dtype);
    }
    return least;
  }

  bool is_of_product(ValueId v) const {
    const auto is_product = [](const Node& node) { return node.op->work == WorkKind::kMatrix; };
    const Node* made = graph_.producer(v);
    return (made != nullptr && is_product(*made)) ||
           std::any_of(readers_[v].begin(), readers_[v].end(), [&](NodeId n) { return is_product(graph_.nodes[n]); });
  }

  // All dimensions that are one with `from`; false where one of them cannot be made longer: a data input's, a
  // constant's that is not the same everywhere, one of several factors.
  bool follow(Dimension from, int64_t size, Sizes& found) const {
    std::vector<Dimension> queue;
    auto add = [&](ValueId v, int d) {
      if (found.emplace(Dimension{v, d}, size).second) queue.push_back({v, d});
    };
    add(from.first, from.second);
    while (!queue.empty()) {
      auto [v, d] = queue.back();
      queue.pop_back();
      if (inputs_.count(v) || (constants_[v] != nullptr && !is_uniform(*constants_[v]))) return false;
      for (auto [at, end] = steps_.equal_range(v); at != end; ++at) add(at->second, d);
      std::vector<NodeId> nodes = readers_[v];
      if (graph_.values[v].producer != kNoNode) nodes.push_back(graph_.values[v].producer);
      for (NodeId n : nodes) {
        if (!follow_through(graph_.nodes[n], v, d, add)) return false;
      }
    }
    return true;
  }

  template <typename Add>
  bool follow_through(const Node& node, ValueId v, int d, Add add) const {
    Formula formula = bound_formula(graph_, node);
    std::vector<std::pair<ValueId, const FormulaOperand*>> operands;
    for (ValueId in : node.inputs) {
      if (in != kNoValue) operands.push_back({in, &formula.inputs[operands.size()]});
    }
    for (size_t k = 0; k < node.outputs.size(); ++k) operands.push_back({node.outputs[k], &formula.outputs[k]});
    for (const auto& [mine, operand] : operands) {
      if (mine != v) continue;
      const auto& dim = operand->dims[static_cast<size_t>(d)];
      if (dim.size() != 1) return false;
      for (const auto& [other, o] : operands) {
        for (size_t e = 0; e < o->dims.size(); ++e) {
          if (!std::count(o->dims[e].begin(), o->dims[e].end(), dim[0])) continue;
          if (o->dims[e].size() != 1) return false;
          add(other, static_cast<int>(e));
        }
      }
    }
    return true;
  }

  // The graph with its inputs, states and constants as long as they become.
  Graph with_longer_sources(const Sizes& sizes) const {
    Graph g = graph_;
    for (const State& s : g.states) g.values[s.value].type.shape = longer_shape(graph_, s.value, sizes);
    for (Constant& c : g.constants) {
      if (!is_longer(c.value, sizes)) continue;
      Tensor one = to_tensor(c.literal), all = Tensor::zeros({one.type.dtype, longer_shape(graph_, c.value, sizes)});
      if (!one.f.empty()) std::fill(all.f.begin(), all.f.end(), one.f[0]);
      if (!one.i.empty()) std::fill(all.i.begin(), all.i.end(), one.i[0]);
      c.literal = to_literal(all);
      g.values[c.value].type.shape = all.type.shape;
    }
    return g;
  }

  // Makes the longer graph; a longer value at which it cannot go on, where there is one.
  std::optional<ValueId> emit(const Sizes& sizes, PaddedGraph& out) const {
    Graph sources = with_longer_sources(sizes);
    Rewriter r(sources);
    PaddedEmitter padded(r.builder());
    std::vector<PadValue> holds(graph_.values.size(), PadValue::inside());
    for (const State& s : graph_.states) {
      // A sum over micro-batches begins anew with each step; what it ends with there is left to its readers.
      if (is_longer(s.value, sizes)) holds[s.value] = s.kind == StateKind::kAccumulator ? PadValue{} : PadValue::zero();
    }
    for (const Constant& c : graph_.constants) {
      if (elements(c.literal.type.shape) > 0 && is_uniform(c.literal)) holds[c.value] = PadValue::of(c.literal);
    }
    for (const Node& node : graph_.nodes) {
      ValueId longer = kNoValue;
      for (const auto* side : {&node.inputs, &node.outputs}) {
        for (ValueId v : *side) longer = v != kNoValue && is_longer(v, sizes) ? v : longer;
      }
      if (longer == kNoValue) {
        r.copy(node);
        continue;
      }
      r.at(node);
      std::vector<PaddedValue> inputs;
      std::vector<Shape> shapes;
      for (ValueId v : node.inputs) inputs.push_back(v == kNoValue ? PaddedValue{} : PaddedValue{r(v), holds[v]});
      for (ValueId v : node.outputs) shapes.push_back(longer_shape(graph_, v, sizes));
      auto results = padded.emit(*node.op, node.attrs, input_types(graph_, node), inputs, shapes);
      if (!results.ok()) return longer;
      for (size_t k = 0; k < node.outputs.size(); ++k) {
        auto [value, there] = (*results)[k];
        holds[node.outputs[k]] = there;
        r.replace(node.outputs[k], value);
        const std::string& name = graph_.values[node.outputs[k]].name;
        if (!name.empty()) r.builder().name(value, name);
      }
    }
    out.now.clear();
    for (size_t v = 0; v < graph_.values.size(); ++v)
      out.now.push_back(r.has(static_cast<ValueId>(v)) ? r(static_cast<ValueId>(v)) : kNoValue);
    Builder b(std::move(r).finish());
    finish(b, sizes, holds);
    out.graph = std::move(b).finish();
    return std::nullopt;
  }

  // States become zero in their padding again, and outputs are cut to what they were.
  void finish(Builder& b, const Sizes& sizes, const std::vector<PadValue>& holds) const {
    PaddedEmitter padded(b);
    auto at = [&](ValueId v) {
      const Node* producer = b.graph().producer(v);
      b.context() = {.segment = producer ? producer->segment : Segment::kUpdate,
                     .origin = producer ? producer->origin : -1};
    };
    for (size_t k = 0; k < graph_.states.size(); ++k) {
      ValueId old = graph_.states[k].next, next = b.graph().states[k].next;
      bool kept = graph_.states[k].kind != StateKind::kAccumulator;
      if (old == kNoValue || !is_longer(old, sizes) || !kept) continue;
      at(next);
      b.set_next_of(k, padded.with_padding({next, holds[old]}, graph_.type(old).shape, 0).value);
    }
    for (size_t k = 0; k < graph_.outputs.size(); ++k) {
      const Shape& shape = graph_.type(graph_.outputs[k].value).shape;
      ValueId v = b.graph().outputs[k].value;
      if (b.shape(v) == shape) continue;
      at(v);
      b.context().segment = Segment::kUpdate;
      Attrs first = {{"starts", std::vector<int64_t>(shape.size(), 0)},
                     {"limits", shape},
                     {"strides", std::vector<int64_t>(shape.size(), 1)}};
      b.set_output(k, b.emit("slice", {v}, std::move(first)));
    }
  }

  const Graph& graph_;
  std::vector<std::vector<NodeId>> readers_;
  std::vector<const Literal*> constants_;
  std::set<ValueId> inputs_;
  std::multimap<ValueId, ValueId> steps_;  // a state and what it becomes, either way
};

}  // namespace

PaddedGraph pad_dimensions(const Graph& graph, const Padding& padding) { return Padder(graph).run(padding); }

}  // namespace partita
