#include "tools/verify/layout/serial_values.h"

#include <algorithm>
#include <cstring>

#include "base/cat.h"
#include "base/quote.h"
#include "base/status.h"
#include "ir/graph/builder.h"

namespace partita::verifier {
namespace {

std::string attrs_key(const Attrs& attrs) {
  std::string s;
  for (const auto& [name, value] : attrs.items()) {
    append(s, name, "=");
    std::visit(
        [&](const auto& v) {
          using T = std::decay_t<decltype(v)>;
          if constexpr (std::is_same_v<T, std::vector<int64_t>> || std::is_same_v<T, std::vector<double>>) {
            for (const auto& x : v) append(s, x, ",");
          } else if constexpr (std::is_same_v<T, DType>) {
            s += dtype_name(v);
          } else {
            append(s, v);
          }
        },
        value);
    s += ";";
  }
  return s;
}

std::string operand_key(const IndexMap& layout, const TensorType& type) {
  std::string s = cat("%", layout.root, to_string(type));
  for (const Digit& d : layout.digits) append(s, "(", d.size, ":", d.stride, ")");
  return s;
}

std::string constant_key(const Literal& literal, bool uniform) {
  auto bytes = literal.bytes();
  size_t size = uniform ? static_cast<size_t>(dtype_size(literal.type.dtype)) : bytes.size();
  return cat(dtype_name(literal.type.dtype), ":") + std::string(reinterpret_cast<const char*>(bytes.data()), size);
}

bool is_uniform_constant(const Literal& literal) { return elements(literal.type.shape) > 0 && is_uniform(literal); }

bool expands(const Node& node) {
  const OpDef& op = *node.op;
  return op.expand != nullptr && op.scalar == nullptr && !op.kernel && !op.view && !op.communicates;
}

}  // namespace

Runs runs_of(Segment segment) {
  if (segment == Segment::kEvaluation) return Runs::kEvaluation;
  return segment == Segment::kForward || segment == Segment::kBackward ? Runs::kEach : Runs::kOnce;
}

Movement movement_of(const OpDef& op) {
  if (op.communicates) return Movement::kCollective;
  if (op.view) return Movement::kView;
  if (op.name == "transpose") return Movement::kTranspose;
  if (op.name == "broadcast") return Movement::kBroadcast;
  if (op.name == "shard_slice") return Movement::kSlice;
  return Movement::kNone;
}

absl::StatusOr<IndexMap> moved(const Graph& graph, const Node& node, const IndexMap& operand) {
  const Shape &from = graph.type(node.inputs[0]).shape, &to = graph.type(node.outputs[0]).shape;
  switch (movement_of(*node.op)) {
    case Movement::kTranspose:
      return transposed(operand, from, node.attrs.ints("permutation"));
    case Movement::kBroadcast:
      return broadcasted(operand, from, to);
    default:
      return operand;
  }
}

absl::StatusOr<Graph> expanded(const Graph& graph, std::vector<NodeId>& from, std::vector<ValueId>* values) {
  Graph now = graph;
  if (values != nullptr) values->resize(graph.values.size());
  for (size_t v = 0; values != nullptr && v < values->size(); ++v) (*values)[v] = static_cast<ValueId>(v);
  from.resize(graph.nodes.size());
  for (size_t n = 0; n < from.size(); ++n) from[n] = static_cast<NodeId>(n);
  for (int round = 0; std::any_of(now.nodes.begin(), now.nodes.end(), expands); ++round) {
    if (round == 16) return absl::FailedPreconditionError("expansions of ops without end");
    Rewriter r(now);
    std::vector<NodeId> origin;
    for (size_t n = 0; n < now.nodes.size(); ++n) {
      const Node& node = now.nodes[n];
      if (!expands(node)) {
        r.copy(node);
      } else {
        r.at(node);
        std::vector<TensorType> types = input_types(now, node);
        std::vector<ValueId> inputs;
        for (ValueId v : node.inputs) inputs.push_back(r(v));
        std::vector<ValueId> results = node.op->expand({r.builder(), node.attrs, types, inputs, {}, {}});
        for (size_t k = 0; k < results.size(); ++k) r.replace(node.outputs[k], results[k]);
      }
      origin.resize(r.builder().graph().nodes.size(), from[n]);
    }
    for (size_t v = 0; values != nullptr && v < values->size(); ++v)
      (*values)[v] = r.has((*values)[v]) ? r((*values)[v]) : kNoValue;
    now = std::move(r).finish();
    from = std::move(origin);
  }
  return now;
}

namespace {

// Along what an op looks at as a whole, its results vary even where its operands do not: sums of the elements before,
// or one that something is put to.
Pieces varying(Pieces pieces) {
  for (Piece& p : pieces) {
    if (p.kind == Piece::Kind::kFree && p.local == p.size) p.kind = Piece::Kind::kLocal;
  }
  return pieces;
}

}  // namespace

absl::StatusOr<std::vector<Pieces>> split_factors(const Formula& formula,
                                                  const std::vector<std::vector<Pieces>>& operands) {
  std::vector<std::optional<Pieces>> found(formula.factors.size());
  for (size_t k = 0; k < operands.size(); ++k) {
    for (size_t d = 0; d < operands[k].size(); ++d) {
      const std::vector<int>& dim = formula.inputs[k].dims[d];
      auto pieces = by_factor(formula, dim, operands[k][d]);
      if (!pieces)
        return absl::FailedPreconditionError(cat("operand ", k, ", dimension ", d, ": split inside a factor"));
      for (size_t i = 0; i < dim.size(); ++i) {
        std::optional<Pieces>& f = found[dim[i]];
        f = f ? unified(*f, (*pieces)[i]) : (*pieces)[i];
        if (!f)
          return absl::FailedPreconditionError(
              cat("operand ", k, ", dimension ", d, ": split otherwise than another operand"));
      }
    }
  }
  std::vector<Pieces> factors;
  for (size_t f = 0; f < found.size(); ++f) {
    int64_t size = formula.factors[f].size;
    if (!found[f]) found[f] = size == 1 ? Pieces{} : Pieces{{Piece::Kind::kLocal, size, size, -1, 1}};
    if (formula.factors[f].role == FactorRole::kWhole) *found[f] = varying(*std::move(found[f]));
    factors.push_back(*std::move(found[f]));
  }
  return factors;
}

std::vector<Pieces> under_split(const FormulaOperand& operand, const std::vector<Pieces>& factors) {
  std::vector<Pieces> dims;
  for (const auto& dim : operand.dims) {
    Pieces pieces;
    for (int f : dim) pieces.insert(pieces.end(), factors[f].begin(), factors[f].end());
    dims.push_back(std::move(pieces));
  }
  return dims;
}

int32_t SerialValues::new_root(std::string what, bool per_run) {
  per_run_.push_back(per_run);
  zero_.push_back(false);
  what_.push_back(std::move(what));
  return static_cast<int32_t>(per_run_.size()) - 1;
}

absl::StatusOr<SerialValues> SerialValues::create(const Graph& graph) {
  SerialValues s;
  s.add_split_forms(graph);
  const Graph& g = s.graph_;
  s.layouts_.resize(g.values.size());
  auto outside = [&](ValueId v, std::string what, bool per_run) {
    s.layouts_[v].root = s.new_root(std::move(what), per_run);
    s.layouts_[v].digits = whole(g.type(v).shape);
  };
  for (const GraphInput& in : g.inputs)
    outside(in.value, cat("input ", quote(in.name)), in.kind != InputKind::kCoordinate);
  for (const State& state : g.states) {
    const Node* next = state.next == kNoValue ? nullptr : g.producer(state.next);
    bool per_run = state.kind == StateKind::kAccumulator || (next != nullptr && runs_of(next->segment) == Runs::kEach);
    outside(state.value, cat("state ", quote(state.name)), per_run);
  }
  for (const Constant& c : g.constants) {
    bool uniform = is_uniform_constant(c.literal);
    auto [at, fresh] = s.constants_.try_emplace(constant_key(c.literal, uniform), s.roots());
    if (fresh) {
      s.new_root(cat("a constant of type ", to_string(c.literal.type)), false);
      auto bytes = c.literal.bytes();
      s.zero_.back() = std::all_of(bytes.begin(), bytes.end(), [](std::byte b) { return b == std::byte{0}; });
    }
    s.layouts_[c.value] = s.constant(c.literal);
  }
  for (size_t n = 0; n < g.nodes.size(); ++n) {
    const int32_t first_new = s.roots();
    absl::Status status = s.add_node(static_cast<NodeId>(n));
    if (!status.ok()) return with_context(status, cat("serial program, ", quote(g.origin(g.nodes[n]))));
    for (ValueId v : g.nodes[n].outputs) {
      if (auto at = s.forms_.find(v); at != s.forms_.end()) s.unify(v, at->second, first_new);
    }
  }
  return s;
}

// Puts the form in which an op can be split beside the op.
void SerialValues::add_split_forms(const Graph& graph) {
  Rewriter r(graph);
  for (const Node& node : graph.nodes) {
    std::vector<ValueId> own = r.copy(node);
    if (node.op->split_form == nullptr) continue;
    std::vector<TensorType> types = input_types(graph, node);
    std::vector<ValueId> inputs;
    for (ValueId v : node.inputs) inputs.push_back(r(v));
    std::vector<ValueId> results = node.op->split_form({r.builder(), node.attrs, types, inputs, own, {}});
    for (size_t k = 0; k < results.size() && k < own.size(); ++k) forms_[results[k]] = own[k];
  }
  graph_ = std::move(r).finish();
}

void SerialValues::unify(ValueId form, ValueId value, int32_t first_new) {
  IndexMap &mine = layouts_[form], &known = layouts_[value];
  if (mine.root == known.root || mine.digits != known.digits || mine.root < first_new) return;
  for (auto& [key, outputs] : numbered_) std::replace(outputs.begin(), outputs.end(), mine.root, known.root);
  mine.root = known.root;
}

IndexMap SerialValues::constant(const Literal& literal) const {
  bool uniform = is_uniform_constant(literal);
  auto at = constants_.find(constant_key(literal, uniform));
  IndexMap layout;
  if (at == constants_.end()) return layout;
  layout.root = at->second;
  layout.digits = whole(literal.type.shape);
  if (uniform) {
    for (Digit& d : layout.digits) d.stride = 0;
  }
  return layout;
}

std::string SerialValues::place(const OpDef& op, Runs runs, const std::vector<int32_t>& roots) const {
  bool varies = std::any_of(roots.begin(), roots.end(), [&](int32_t r) { return r >= 0 && per_run_[r]; });
  // What is computed after the last micro-batch from its values is what computing it with each would have left.
  std::string key = cat(op.name, !varies ? "/" : runs == Runs::kEvaluation ? "/evaluation" : "/training");
  for (int32_t r : roots) append(key, ",", r);
  return key;
}

const std::vector<NodeId>& SerialValues::candidates(const OpDef& op, Runs runs,
                                                    const std::vector<int32_t>& roots) const {
  static const std::vector<NodeId> kNone;
  auto at = by_operands_.find(place(op, runs, roots));
  return at == by_operands_.end() ? kNone : at->second;
}

const Formula& SerialValues::formula(NodeId n) const {
  auto at = formulas_.find(n);
  if (at != formulas_.end()) return at->second;
  return formulas_.emplace(n, bound_formula(graph_, graph_.nodes[n])).first->second;
}

absl::Status SerialValues::add_node(NodeId n) {
  const Node& node = graph_.nodes[n];
  switch (movement_of(*node.op)) {
    case Movement::kNone:
      break;
    case Movement::kSlice:
    case Movement::kCollective:
      return absl::FailedPreconditionError("a serial program does not communicate");
    default: {
      PARTITA_ASSIGN_OR_RETURN(IndexMap layout, moved(graph_, node, layouts_[node.inputs[0]]));
      // A view that cuts what was broadcast inside of its repetitions (18 numbers 8 times each, seen as [24, 6]) makes
      // a value of its own, known by the op's formula.
      if (!by_dimension(layout.digits, graph_.type(node.outputs[0]).shape)) break;
      layouts_[node.outputs[0]] = std::move(layout);
      return absl::OkStatus();
    }
  }
  std::vector<int32_t> roots;
  std::vector<std::vector<Pieces>> operands;
  std::string key;
  bool varies = false;
  for (ValueId v : node.inputs) {
    roots.push_back(v == kNoValue ? -2 : layouts_[v].root);
    append(key, "|", v == kNoValue ? "" : operand_key(layouts_[v], graph_.type(v)));
    if (v == kNoValue) continue;
    varies = varies || per_run_[layouts_[v].root];
    const Shape& shape = graph_.type(v).shape;
    PARTITA_ASSIGN_OR_RETURN(auto parts, pieces_of(layouts_[v], shape, layouts_[v], shape));
    operands.push_back(std::move(parts));
  }
  std::string where = place(*node.op, runs_of(node.segment), roots);
  auto [at, fresh] = numbered_.try_emplace(cat(where, key, "{", attrs_key(node.attrs), "}"));
  const Formula& f = formula(n);
  PARTITA_ASSIGN_OR_RETURN(auto factors, split_factors(f, operands));
  for (size_t k = 0; k < node.outputs.size(); ++k) {
    ValueId v = node.outputs[k];
    const std::string& name = graph_.values[v].name;
    if (fresh)
      at->second.push_back(new_root(
          cat(node.op->name, " of ", quote(graph_.origin(node)), name.empty() ? "" : " " + quote(name)), varies));
    layouts_[v].root = at->second[k];
    number(under_split(f.outputs[k], factors), layouts_[v]);
  }
  if (fresh) by_operands_[where].push_back(n);
  return absl::OkStatus();
}

}  // namespace partita::verifier
