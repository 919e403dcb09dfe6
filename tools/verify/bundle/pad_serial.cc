// Sizes are made equal to a fixed point: a factor of a node is as long as the longest dimension that it is, and a state
// as long as what it becomes. An op that keeps whole what becomes longer, and does not say how it would be the same,
// is replaced by its form for splits. Then all nodes are emitted anew, by the definitions of ops (ir/graph/padding.h),
// with zeros in the padding of every state.
#include "tools/verify/bundle/pad_serial.h"

#include <algorithm>
#include <map>

#include "base/quote.h"
#include "base/status.h"
#include "ir/graph/builder.h"
#include "ir/graph/padding.h"
#include "tools/verify/layout/mismatch.h"

namespace partita::verifier {
namespace {

template <typename... Args>
absl::Status refuse(const Args&... args) {
  return differs("padding, ", args...);
}

// The shape that a placement refines, padding included: dimensions take refined ones until they are covered.
absl::StatusOr<Shape> refined_shape(const runtime::Placement& p) {
  Shape shape;
  size_t at = 0;
  for (int64_t size : p.logical) {
    int64_t covered = 1;
    while (at < p.shape.size() && (covered < size || p.shape[at] == 1)) covered *= p.shape[at++];
    if (covered < size) return absl::FailedPreconditionError("no refinement");
    shape.push_back(covered);
  }
  return shape;
}

// By state name.
using StateShapes = std::map<std::string, Shape>;

// Calls visit(operand of the formula, value) for the node's operands that are there, results too.
template <typename Visit>
void each_operand(const Node& node, const Formula& formula, Visit visit) {
  size_t k = 0;
  for (ValueId v : node.inputs) {
    if (v != kNoValue) visit(formula.inputs[k++], v);
  }
  for (size_t i = 0; i < node.outputs.size(); ++i) visit(formula.outputs[i], node.outputs[i]);
}

class Lengths {
 public:
  explicit Lengths(const Graph& graph) : g_(graph) {
    for (const Value& v : graph.values) shapes_.push_back(v.type.shape);
  }

  absl::Status settle(const StateShapes& states) {
    for (const State& s : g_.states) {
      if (auto at = states.find(s.name); at != states.end()) shapes_[s.value] = at->second;
    }
    for (bool again = true; again;) {
      again = false;
      for (const Node& node : g_.nodes) {
        if (touches(node) && !equalize(node, again))
          return refuse(g_.origin(node), ": a longer dimension is made of several factors");
      }
      for (const State& s : g_.states) {
        if (s.next == kNoValue || shapes_[s.next] == shapes_[s.value]) continue;
        Shape &a = shapes_[s.value], &b = shapes_[s.next];
        for (size_t d = 0; d < a.size(); ++d) a[d] = b[d] = std::max(a[d], b[d]);
        again = true;
      }
    }
    for (const GraphInput& in : g_.inputs) {
      if (is_longer(in.value)) return refuse("input ", quote(in.name), " would have to be longer");
    }
    return absl::OkStatus();
  }

  const Shape& operator[](ValueId v) const { return shapes_[v]; }
  bool is_longer(ValueId v) const { return shapes_[v] != g_.type(v).shape; }

  bool touches(const Node& node) const {
    auto longer = [&](ValueId v) { return v != kNoValue && is_longer(v); };
    return std::any_of(node.inputs.begin(), node.inputs.end(), longer) ||
           std::any_of(node.outputs.begin(), node.outputs.end(), longer);
  }

  // Whether the node keeps whole a factor that becomes longer.
  bool keeps_whole(const Node& node) const {
    Formula formula = bound_formula(g_, node);
    bool whole = false;
    each_operand(node, formula, [&](const FormulaOperand& o, ValueId v) {
      for (size_t d = 0; d < o.dims.size(); ++d) {
        for (int f : o.dims[d]) {
          whole = whole || (shapes_[v][d] != g_.type(v).shape[d] && formula.factors[f].role == FactorRole::kWhole);
        }
      }
    });
    return whole;
  }

 private:
  // False where a longer dimension is of several factors.
  bool equalize(const Node& node, bool& changed) {
    Formula formula = bound_formula(g_, node);
    std::map<int, int64_t> longest;
    bool simple = true;
    each_operand(node, formula, [&](const FormulaOperand& o, ValueId v) {
      for (size_t d = 0; d < o.dims.size(); ++d) {
        if (shapes_[v][d] == g_.type(v).shape[d]) continue;
        simple = simple && o.dims[d].size() == 1;
        if (simple) longest[o.dims[d][0]] = std::max(longest[o.dims[d][0]], shapes_[v][d]);
      }
    });
    each_operand(node, formula, [&](const FormulaOperand& o, ValueId v) {
      for (size_t d = 0; simple && d < o.dims.size(); ++d) {
        auto at = std::find_if(o.dims[d].begin(), o.dims[d].end(), [&](int f) { return longest.count(f) > 0; });
        if (at == o.dims[d].end()) continue;
        simple = o.dims[d].size() == 1;
        if (!simple || shapes_[v][d] == longest[*at]) continue;
        shapes_[v][d] = longest[*at];
        changed = true;
      }
    });
    return simple;
  }

  const Graph& g_;
  std::vector<Shape> shapes_;
};

// Ops that keep whole what becomes longer, in the form that can be split where that alone can be longer.
Graph with_split_forms(const Graph& graph, const Lengths& lengths) {
  Rewriter r(graph);
  for (const Node& node : graph.nodes) {
    std::vector<ValueId> results;
    if (node.op->split_form != nullptr && node.op->lengthened == nullptr && lengths.touches(node) &&
        lengths.keeps_whole(node)) {
      r.at(node);
      std::vector<TensorType> types = input_types(graph, node);
      std::vector<ValueId> inputs;
      for (ValueId v : node.inputs) inputs.push_back(v == kNoValue ? kNoValue : r(v));
      results = node.op->split_form({r.builder(), node.attrs, types, inputs, {}, {}});
    }
    if (results.empty()) {
      r.copy(node);
    } else {
      for (size_t k = 0; k < results.size(); ++k) r.replace(node.outputs[k], results[k]);
    }
  }
  return std::move(r).finish();
}

class PaddedCopy {
 public:
  PaddedCopy(const Graph& graph, const Lengths& lengths) : g_(graph), lengths_(lengths), sources_(graph) {}

  absl::StatusOr<Graph> make() {
    PARTITA_RETURN_IF_ERROR(take_sources());
    Rewriter r(sources_);
    PaddedEmitter emitter(r.builder());
    for (const Node& node : g_.nodes) {
      if (!lengths_.touches(node)) {
        r.copy(node);
        continue;
      }
      r.at(node);
      std::vector<PaddedValue> inputs;
      std::vector<Shape> shapes;
      for (ValueId v : node.inputs) inputs.push_back(v == kNoValue ? PaddedValue{} : PaddedValue{r(v), holds_[v]});
      for (ValueId v : node.outputs) shapes.push_back(lengths_[v]);
      auto results = emitter.emit(*node.op, node.attrs, input_types(g_, node), inputs, shapes);
      if (!results.ok()) return refuse(g_.origin(node), " (", node.op->name, "): ", results.status().message());
      for (size_t k = 0; k < results->size(); ++k) {
        holds_[node.outputs[k]] = (*results)[k].holds;
        r.replace(node.outputs[k], (*results)[k].value);
      }
    }
    Builder b(std::move(r).finish());
    end_step(b);
    return std::move(b).finish();
  }

 private:
  absl::Status take_sources() {
    holds_.assign(g_.values.size(), PadValue::inside());
    for (const State& s : g_.states) {
      sources_.values[s.value].type.shape = lengths_[s.value];
      // Of an accumulator, what the micro-batches before have left.
      if (lengths_.is_longer(s.value))
        holds_[s.value] = s.kind == StateKind::kAccumulator ? PadValue{} : PadValue::zero();
    }
    for (Constant& c : sources_.constants) {
      const Shape& shape = lengths_[c.value];
      bool uniform = elements(c.literal.type.shape) > 0 && is_uniform(c.literal);
      if (uniform) holds_[c.value] = PadValue::of(c.literal);
      if (!lengths_.is_longer(c.value)) continue;
      if (!uniform) return refuse("a constant of ", to_string(c.literal.type), " would have to be longer");
      Tensor t = Tensor::zeros({c.literal.type.dtype, shape});
      std::fill(t.f.begin(), t.f.end(), holds_[c.value].value.f);
      std::fill(t.i.begin(), t.i.end(), holds_[c.value].value.i);
      c.literal = to_literal(t);
      sources_.values[c.value].type.shape = shape;
    }
    return absl::OkStatus();
  }

  // States get zeros into their padding, outputs lose it.
  void end_step(Builder& b) const {
    PaddedEmitter emitter(b);
    for (size_t k = 0; k < g_.states.size(); ++k) {
      ValueId old = g_.states[k].next, next = b.graph().states[k].next;
      if (old == kNoValue || !lengths_.is_longer(old) || g_.states[k].kind == StateKind::kAccumulator) continue;
      const Node* producer = b.graph().producer(next);
      b.context().segment = producer != nullptr ? producer->segment : Segment::kUpdate;
      b.set_next_of(k, emitter.with_padding({next, holds_[old]}, g_.type(old).shape, 0).value);
    }
    b.context().segment = Segment::kUpdate;
    for (size_t k = 0; k < g_.outputs.size(); ++k) {
      const Shape& shape = g_.type(g_.outputs[k].value).shape;
      ValueId v = b.graph().outputs[k].value;
      if (b.shape(v) == shape) continue;
      Attrs first = {{"starts", std::vector<int64_t>(shape.size(), 0)},
                     {"limits", shape},
                     {"strides", std::vector<int64_t>(shape.size(), 1)}};
      b.set_output(k, b.emit("slice", {v}, std::move(first)));
    }
  }

  const Graph& g_;
  const Lengths& lengths_;
  Graph sources_;
  std::vector<PadValue> holds_;
};

}  // namespace

absl::StatusOr<PaddedSerial> pad_serial(const Graph& serial, const runtime::Program& program) {
  PaddedSerial out{serial, program};
  StateShapes longer;
  for (runtime::ProgramState& state : out.program.states) {
    for (const State& s : serial.states) {
      auto shape = refined_shape(state.placement);
      const Shape& whole = serial.type(s.value).shape;
      // What does not refine the state at all is found by who checks placements.
      if (s.name != state.name || state.placement.logical != whole || !shape.ok() || *shape == whole) continue;
      longer[s.name] = state.placement.logical = *shape;
    }
  }
  if (longer.empty()) return out;
  // What becomes longer with others is to be as long as the model has it in files, too.
  for (const runtime::ProgramState& state : program.states) {
    for (const State& s : serial.states) {
      const Shape& whole = serial.type(s.value).shape;
      if (s.name == state.name && state.placement.logical != whole)
        return differs("state ", quote(s.name), ": expected a placement of ", to_string(whole), ", found ",
                       to_string(state.placement.logical));
    }
  }
  Lengths first(serial);
  PARTITA_RETURN_IF_ERROR(first.settle(longer));
  Graph split = with_split_forms(serial, first);
  Lengths second(split);
  PARTITA_RETURN_IF_ERROR(second.settle(longer));
  PARTITA_ASSIGN_OR_RETURN(out.graph, PaddedCopy(split, second).make());
  return out;
}

}  // namespace partita::verifier
