#include "ir/graph/builder.h"

#include <bit>

#include "base/cat.h"
#include "base/status.h"

namespace partita {

Builder::Builder(Graph graph) : graph_(std::move(graph)) {
  constant_of_.assign(graph_.values.size(), -1);
  for (size_t k = 0; k < graph_.constants.size(); ++k) {
    const Constant& c = graph_.constants[k];
    constant_of_[c.value] = static_cast<int32_t>(k);
    if (c.literal.type.rank() == 0 && is_float(c.literal.type.dtype)) {
      scalars_.emplace(
          std::pair{static_cast<int>(c.literal.type.dtype), std::bit_cast<uint64_t>(element_f(c.literal, 0))}, c.value);
    }
  }
}

ValueId Builder::new_value(TensorType type, std::string name) {
  graph_.values.push_back({std::move(type), kNoNode, 0, std::move(name)});
  constant_of_.push_back(-1);
  return static_cast<ValueId>(graph_.values.size()) - 1;
}

ValueId Builder::input(std::string name, TensorType type, InputKind kind) {
  ValueId v = new_value(std::move(type), name);
  graph_.inputs.push_back({v, std::move(name), kind});
  return v;
}

ValueId Builder::state(State state, TensorType type) {
  state.value = new_value(std::move(type), state.name);
  graph_.states.push_back(std::move(state));
  return graph_.states.back().value;
}

ValueId Builder::constant(Literal literal, std::string name) {
  ValueId v = new_value(literal.type, std::move(name));
  constant_of_[v] = static_cast<int32_t>(graph_.constants.size());
  graph_.constants.push_back({v, std::move(literal)});
  return v;
}

void Builder::set_next(std::string_view state_name, ValueId next) {
  for (State& s : graph_.states) {
    if (s.name == state_name) {
      s.next = next;
      return;
    }
  }
  PARTITA_CHECK(false, cat("no state '", state_name, "'"));
}

void Builder::set_next(ValueId state, ValueId next) {
  state_of_.resize(graph_.values.size());
  for (; indexed_ < graph_.states.size(); ++indexed_) state_of_[graph_.states[indexed_].value] = indexed_;
  State& s = graph_.states[state_of_[state]];
  PARTITA_CHECK(s.value == state, cat("%", state, " is no state"));
  s.next = next;
}

void Builder::make_running(size_t k, ValueId next) {
  graph_.states[k].kind = StateKind::kRunning;
  graph_.states[k].next = next;
}

void Builder::drop_state(size_t k) {
  graph_.states.erase(graph_.states.begin() + static_cast<std::ptrdiff_t>(k));
  indexed_ = 0;  // those behind it have moved
}

void Builder::take_names(const Graph& from) {
  graph_.name = from.name;
  graph_.origins = from.origins;
}

void Builder::output(std::string name, ValueId value) { graph_.outputs.push_back({std::move(name), value}); }

int32_t Builder::origin(std::string text) {
  graph_.origins.push_back(std::move(text));
  return static_cast<int32_t>(graph_.origins.size()) - 1;
}

absl::StatusOr<std::vector<ValueId>> Builder::try_emit(const OpDef& op, std::vector<ValueId> inputs, Attrs attrs) {
  int count = static_cast<int>(inputs.size());
  if (count < op.min_inputs || (op.max_inputs >= 0 && count > op.max_inputs)) {
    return absl::InvalidArgumentError(cat(op.name, ": expected ", op.min_inputs,
                                          op.max_inputs == op.min_inputs ? "" : " or more", " inputs, found ", count));
  }
  std::vector<TensorType> types;
  for (ValueId v : inputs) types.push_back(v == kNoValue ? TensorType{} : type(v));
  PARTITA_ASSIGN_OR_RETURN(std::vector<TensorType> results, infer_types(op, {attrs, types}));
  Node node{.op = &op,
            .inputs = std::move(inputs),
            .outputs = {},
            .attrs = std::move(attrs),
            .origin = context_.origin,
            .block = context_.block,
            .segment = context_.segment,
            .weight_gradient = context_.weight_gradient,
            .device = context_.device,
            .chunk = context_.chunk,
            .turn = context_.turn};
  for (TensorType& t : results) {
    ValueId v = new_value(std::move(t), {});
    graph_.values[v].producer = static_cast<NodeId>(graph_.nodes.size());
    graph_.values[v].output = static_cast<int>(node.outputs.size());
    node.outputs.push_back(v);
  }
  graph_.nodes.push_back(std::move(node));
  return graph_.nodes.back().outputs;
}

std::vector<ValueId> Builder::emit_all(std::string_view op, std::vector<ValueId> inputs, Attrs attrs) {
  const OpDef* def = find_op(op);
  PARTITA_CHECK(def != nullptr, cat("no op '", op, "'"));
  auto outputs = try_emit(*def, std::move(inputs), std::move(attrs));
  PARTITA_CHECK(outputs.ok(), cat(op, context_.origin >= 0 ? " for " + graph_.origins[context_.origin] : "", ": ",
                                  outputs.status().message()));
  return *std::move(outputs);
}

const Literal* Builder::literal(ValueId v) const {
  return v == kNoValue || constant_of_[v] < 0 ? nullptr : &graph_.constants[constant_of_[v]].literal;
}

ValueId Builder::scalar(DType dtype, double value) {
  auto [at, fresh] = scalars_.try_emplace({static_cast<int>(dtype), std::bit_cast<uint64_t>(value)}, kNoValue);
  if (fresh) at->second = constant(scalar_literal(dtype, value));
  return at->second;
}

ValueId Builder::cast(ValueId a, DType to) { return dtype(a) == to ? a : emit("cast", {a}, {{"to", to}}); }

ValueId Builder::reshape(ValueId a, Shape to) {
  return shape(a) == to ? a : emit("reshape", {a}, {{"shape", std::move(to)}});
}

ValueId Builder::transpose(ValueId a, std::vector<int64_t> permutation) {
  bool identity = true;
  for (size_t k = 0; k < permutation.size(); ++k) identity &= permutation[k] == static_cast<int64_t>(k);
  return identity ? a : emit("transpose", {a}, {{"permutation", std::move(permutation)}});
}

ValueId Builder::broadcast_to(ValueId a, const Shape& to) {
  return shape(a) == to ? a : emit("broadcast", {a}, {{"shape", to}});
}

ValueId Builder::reduce(std::string_view op, ValueId a, std::vector<int64_t> dims, bool keep) {
  if (dims.empty()) return a;
  return emit(op, {a}, {{"dims", std::move(dims)}, {"keep", int64_t{keep}}});
}

ValueId Builder::mean(ValueId a, std::vector<int64_t> dims, bool keep) {
  double n = 1;
  for (int64_t d : dims) n *= static_cast<double>(shape(a)[d]);
  return scale(reduce_sum(a, std::move(dims), keep), 1 / n);
}

ValueId Builder::sum_to(ValueId a, Shape to) {
  const Shape from = shape(a);
  if (from == to) return a;
  int lead = static_cast<int>(from.size() - to.size());
  std::vector<int64_t> dims;
  for (int d = 0; d < static_cast<int>(from.size()); ++d) {
    if (d < lead || (to[d - lead] == 1 && from[d] != 1)) dims.push_back(d);
  }
  return reshape(reduce_sum(a, std::move(dims), false), std::move(to));
}

ValueId Builder::matmul(ValueId a, ValueId b, bool transpose_a, bool transpose_b) {
  return emit("matmul", {a, b}, {{"transpose_a", int64_t{transpose_a}}, {"transpose_b", int64_t{transpose_b}}});
}

Rewriter::Rewriter(const Graph& graph) : old_(graph), map_(graph.values.size(), kNoValue) {
  builder_.take_names(graph);
  for (const GraphInput& in : graph.inputs) map_[in.value] = builder_.input(in.name, graph.type(in.value), in.kind);
  for (const State& s : graph.states) {
    State copy = s;
    copy.next = kNoValue;
    map_[s.value] = builder_.state(std::move(copy), graph.type(s.value));
  }
  for (const Constant& c : graph.constants) map_[c.value] = builder_.constant(c.literal, graph.values[c.value].name);
  builder_ = Builder(std::move(builder_).finish());  // so that scalar constants are shared with the old ones
}

ValueId Rewriter::operator()(ValueId old) const {
  if (old == kNoValue) return kNoValue;
  PARTITA_CHECK(map_[old] != kNoValue, "value used before it was mapped");
  return map_[old];
}

void Rewriter::replace(ValueId old, ValueId now) { map_[old] = now; }

void Rewriter::at(const Node& node) {
  builder_.context() = {node.segment, node.origin, node.block, node.weight_gradient,
                        node.device,  node.chunk,  node.turn};
}

std::vector<ValueId> Rewriter::copy(const Node& node) {
  at(node);
  std::vector<ValueId> inputs;
  inputs.reserve(node.inputs.size());
  for (ValueId v : node.inputs) inputs.push_back((*this)(v));
  auto outputs = builder_.try_emit(*node.op, std::move(inputs), node.attrs);
  PARTITA_CHECK(outputs.ok(), cat(old_.origin(node), ": ", outputs.status().message()));
  for (size_t k = 0; k < node.outputs.size(); ++k) {
    map_[node.outputs[k]] = (*outputs)[k];
    if (!old_.values[node.outputs[k]].name.empty()) builder_.name((*outputs)[k], old_.values[node.outputs[k]].name);
  }
  return *std::move(outputs);
}

Graph Rewriter::finish() && {
  for (const State& s : old_.states) {
    if (s.next != kNoValue) builder_.set_next(map_[s.value], (*this)(s.next));
  }
  for (const GraphOutput& out : old_.outputs) builder_.output(out.name, (*this)(out.value));
  return std::move(builder_).finish();
}

}  // namespace partita
