#include "tools/verify/graph/check_graph.h"

#include <algorithm>
#include <map>
#include <set>

#include "base/cat.h"
#include "base/quote.h"
#include "base/status.h"
#include "tools/verify/graph/match_node.h"
#include "tools/verify/graph/sum_order.h"
#include "tools/verify/layout/affine_index.h"
#include "tools/verify/layout/mismatch.h"
#include "tools/verify/layout/row_parts.h"
#include "tools/verify/layout/slices.h"

namespace partita::verifier {
namespace {

MicroSlices micro_slices_of(const runtime::Program& program) {
  return program.micro_slices > 1 ? MicroSlices{program.micro_slices, static_cast<int>(program.mesh.size())}
                                  : MicroSlices{};
}

// The micro-batches that a run of the graph is cut into are an axis in time, along which nothing is sent.
Mesh mesh_in_time(const runtime::Program& program) {
  Mesh mesh;
  for (const runtime::MeshAxis& a : program.mesh) mesh.axes.push_back({a.name, a.size});
  if (micro_slices_of(program).axis >= 0) mesh.axes.push_back({"time", program.micro_slices});
  return mesh;
}

class GraphChecker {
 public:
  GraphChecker(const SerialValues& serial, const Graph& local, const runtime::Program& program, const FixedSums& fixed,
               const std::function<std::string(NodeId)>& place)
      : serial_(serial),
        local_(local),
        program_(program),
        place_(place),
        mesh_(mesh_in_time(program)),
        rows_(local, mesh_),
        micro_slices_(micro_slices_of(program)),
        order_(serial, mesh_, micro_slices_.axis, fixed),
        index_(local, micro_slices_),
        literals_(constant_values(local)) {
    report_.layouts.resize(local.values.size());
  }

  absl::StatusOr<GraphReport> run() {
    PARTITA_RETURN_IF_ERROR(start());
    for (size_t n = 0; n < local_.nodes.size(); ++n) {
      const Node& node = local_.nodes[n];
      absl::Status status = visit(node);
      if (!status.ok()) return differs(place_(static_cast<NodeId>(n)), ": ", status.message());
      report_.values += static_cast<int64_t>(node.outputs.size());
      report_.collectives += node.op->communicates;
    }
    PARTITA_RETURN_IF_ERROR(check_states());
    PARTITA_RETURN_IF_ERROR(check_outputs());
    return std::move(report_);
  }

 private:
  IndexMap& layout(ValueId v) { return report_.layouts[v]; }

  std::string found(ValueId v) {
    const IndexMap& l = layout(v);
    const std::string& name = local_.values[v].name;
    return cat("%", v, name.empty() ? "" : " " + quote(name), " ", to_string(local_.type(v)), " = ",
               l.root < 0 ? "" : serial_.describe(l.root) + ", ", to_string(l, mesh_));
  }

  absl::Status start() {
    if (local_.inputs.size() != program_.inputs.size() || local_.states.size() != program_.states.size() ||
        local_.outputs.size() != program_.outputs.size())
      return differs("the program's interface is not the graph's");
    PARTITA_ASSIGN_OR_RETURN(slices_, find_slices(serial_.graph(), local_, program_));
    for (const runtime::AxisStride& a : slices_.axes) report_.slice_axes.push_back(a.axis);
    for (size_t k = 0; k < local_.inputs.size(); ++k) {
      absl::Status status = take_input(k);
      if (!status.ok()) return differs("input ", quote(local_.inputs[k].name), ": ", status.message());
    }
    for (size_t k = 0; k < local_.states.size(); ++k) {
      absl::Status status = take_state(k);
      if (!status.ok()) return differs("state ", quote(local_.states[k].name), ": ", status.message());
    }
    for (const Constant& c : local_.constants) {
      layout(c.value) = serial_.constant(c.literal);
      if (c.literal.type == TensorType{DType::kI64, {}}) index_.set(c.value, Affine{element_i(c.literal, 0), 0, 0, {}});
    }
    return absl::OkStatus();
  }

  absl::Status take_input(size_t k) {
    const GraphInput& in = local_.inputs[k];
    if (program_.inputs[k].name != in.name || program_.inputs[k].kind != in.kind)
      return differs("the program has ", enum_name(program_.inputs[k].kind), " ", quote(program_.inputs[k].name),
                     " here");
    if (in.kind == InputKind::kCoordinate) {
      int axis = mesh_.find(in.name);
      if (axis < 0) return differs("no mesh axis of this name");
      index_.set(in.value, Affine{0, 0, 0, {{axis, 1}}});
      return absl::OkStatus();
    }
    const GraphInput* whole = input_named(serial_.graph(), in.name, in.kind);
    if (in.kind == InputKind::kMicroBatch) {
      index_.set(in.value, micro_slices_.axis < 0 ? Affine{0, 0, 1, {}} : Affine{0, 1, 0, {}});
      if (slices_.count == 1 && micro_slices_.axis < 0 && whole != nullptr)
        layout(in.value) = serial_.layout(whole->value);
      return absl::OkStatus();
    }
    if (whole == nullptr) return differs("the serial program has none of this name");
    runtime::Placement placement = program_.inputs[k].placement;
    int64_t step = program_.inputs[k].slice_samples;
    bool sliced = slices_.count > 1 && !placement.logical.empty();
    if (sliced) {
      placement.logical[0] /= slices_.count;
      placement.shape.erase(placement.shape.begin());
      placement.local.erase(placement.local.begin());
      placement.axes.erase(placement.axes.begin());
    }
    if (step != 0 && (micro_slices_.axis < 0 || !add_micro_slice_axis(placement, step, micro_slices_.axis)))
      return differs("expected micro-batches that divide a run evenly, found one every ", step, " samples");
    PARTITA_RETURN_IF_ERROR(take_placed(whole->value, in.value, placement));
    layout(in.value).sliced = sliced;
    if (in.kind != InputKind::kData) return absl::OkStatus();
    return order_.take_input(serial_.graph().type(whole->value).shape, layout(in.value), program_.samples_per_step);
  }

  // A value from outside lies as the program's interface places it.
  absl::Status take_placed(ValueId whole, ValueId here, const runtime::Placement& placement) {
    const TensorType& type = serial_.graph().type(whole);
    if (placement.logical != type.shape)
      return differs("expected a placement of ", to_string(type.shape), ", found ", to_string(placement.logical));
    if (local_.type(here).dtype != type.dtype)
      return differs("expected ", to_string(type), ", found ", to_string(local_.type(here)));
    PARTITA_ASSIGN_OR_RETURN(std::vector<Pieces> dims, placed_pieces(placement, mesh_));
    Shape shape;
    for (const Pieces& pieces : dims) shape.push_back(local_size(pieces));
    if (shape != local_.type(here).shape)
      return differs("expected ", to_string(shape), " on a rank, found ", to_string(local_.type(here)));
    layout(here).root = serial_.layout(whole).root;
    number(dims, layout(here));
    return absl::OkStatus();
  }

  absl::Status take_state(size_t k) {
    const State& s = local_.states[k];
    const runtime::ProgramState& p = program_.states[k];
    const State* whole = nullptr;
    for (const State& x : serial_.graph().states) {
      if (x.name == s.name) whole = &x;
    }
    if (whole == nullptr) return differs("the serial program has none of this name");
    if (whole->kind != s.kind || whole->parameter != s.parameter || p.name != s.name || p.parameter != s.parameter)
      return differs("it is of another kind than in the serial program");
    PARTITA_RETURN_IF_ERROR(take_placed(whole->value, s.value, p.placement));
    serial_state_.push_back(whole);
    state_of_[s.value] = k;
    return absl::OkStatus();
  }

  absl::Status visit(const Node& node) {
    PARTITA_RETURN_IF_ERROR(find_layouts(node));
    return rows_.follow(node, report_.layouts, mesh_);
  }

  absl::Status find_layouts(const Node& node) {
    for (ValueId v : node.inputs) {
      if (v == kNoValue) continue;
      if ((layout(v).sliced || layout(v).summed || in_time(v)) && runs_of(node.segment) == Runs::kOnce)
        return differs("expected a value that all ranks have of one micro-batch, found ", found(v));
      auto state = state_of_.find(v);
      if (state != state_of_.end() && !node.op->sums_micro_batches) read_.insert(state->second);
    }
    switch (movement_of(*node.op)) {
      case Movement::kNone:
        return compute(node);
      case Movement::kSlice:
        return slice(node);
      case Movement::kCollective:
        return communicate(node);
      default: {
        const IndexMap& x = layout(node.inputs[0]);
        auto result = moved(local_, node, x);
        if (!result.ok()) {
          if (auto seen = seen_through(x, views_of(x))) result = moved(local_, node, *seen);
        }
        if (!result.ok()) return differs(found(node.inputs[0]), ": ", result.status().message());
        // A view that cuts what was broadcast may be a value of the serial program's own, or be undone further on.
        const bool fits = by_dimension(result->digits, local_.type(node.outputs[0]).shape).has_value();
        if ((!fits || !result->through.empty()) && compute(node).ok()) return absl::OkStatus();
        layout(node.outputs[0]) = *std::move(result);
        if (index_.at(node.inputs[0]) && local_.type(node.outputs[0]).rank() == 0)
          index_.set(node.outputs[0], *index_.at(node.inputs[0]));
        return absl::OkStatus();
      }
    }
  }

  // Whether digits are those of some serial value that is a view of this one's root.
  IsView views_of(const IndexMap& x) {
    return [this, root = x.root](const std::vector<Digit>& digits) {
      const auto values = static_cast<ValueId>(serial_.graph().values.size());
      for (ValueId v = 0; v < values; ++v) {
        if (serial_.layout(v).root == root && serial_.layout(v).digits == digits) return true;
      }
      return false;
    };
  }

  absl::Status slice(const Node& node) {
    const std::optional<Affine>& at = index_.at(node.inputs[1]);
    int64_t parts = node.attrs.i("parts");
    int axis = at ? at->axis() : -1;
    if (axis < 0 || mesh_.axes[axis].size != parts)
      return differs("expected a slice by the coordinate along an axis of ", parts, " ranks, found another index");
    if (layout(node.inputs[0]).sliced && is_slice_axis(axis))
      return differs("expected one micro-batch on all ranks, found ", found(node.inputs[0]));
    auto result = sliced_by(layout(node.inputs[0]), local_.type(node.inputs[0]).shape,
                            static_cast<int>(node.attrs.i("dim")), axis, mesh_, views_of(layout(node.inputs[0])));
    if (!result.ok()) return differs(found(node.inputs[0]), ": ", result.status().message());
    layout(node.outputs[0]) = *std::move(result);
    return absl::OkStatus();
  }

  // Whether it is another part of its value, or of a sum, with each micro-batch of a run.
  bool in_time(ValueId v) {
    return micro_slices_.axis >= 0 &&
           (layout(v).depends_on(micro_slices_.axis) || layout(v).is_partial(micro_slices_.axis));
  }

  bool is_slice_axis(int axis) const {
    return std::find(report_.slice_axes.begin(), report_.slice_axes.end(), axis) != report_.slice_axes.end();
  }

  absl::Status communicate(const Node& node) {
    std::vector<int> axes;
    int64_t parts = 1;
    for (int64_t a : node.attrs.ints("axes")) {
      if (a < 0 || a >= static_cast<int64_t>(program_.mesh.size()) ||
          std::find(axes.begin(), axes.end(), static_cast<int>(a)) != axes.end())
        return differs("expected different axes of the mesh, found axis ", a);
      axes.push_back(static_cast<int>(a));
      parts *= mesh_.axes[static_cast<size_t>(a)].size;
    }
    if (parts != node.attrs.i("parts"))
      return differs("expected a group of ", parts, " ranks, found ", node.attrs.i("parts"));
    std::string reduce = node.attrs.s("reduce", "sum");
    if (reduce != "sum" && reduce != "max" && reduce != "min") return differs("unknown reduction ", quote(reduce));
    PartialKind kind = reduce == "sum" ? PartialKind::kSum : reduce == "max" ? PartialKind::kMax : PartialKind::kMin;
    for (size_t k = 0; k < node.inputs.size(); ++k) {
      IndexMap x = layout(node.inputs[k]);
      if (x.root < 0) return differs("expected a value of the serial program, found ", found(node.inputs[k]));
      bool sums = kind == PartialKind::kSum && (node.op->name == "all_reduce" || node.op->name == "reduce_scatter");
      if (x.sliced && sums && std::any_of(axes.begin(), axes.end(), [&](int a) { return is_slice_axis(a); }))
        add_runs(x);
      for (int a : axes) {
        if (x.sliced && is_slice_axis(a))
          return differs("expected one micro-batch on all ranks of ", mesh_.axes[a].name, ", found ",
                         found(node.inputs[k]));
      }
      if (sums) PARTITA_RETURN_IF_ERROR(check_order(node.inputs[k], x, axes));
      auto result = node.op->name == "all_reduce"       ? reduced(x, axes, kind)
                    : node.op->name == "reduce_scatter" ? scattered(x, axes, kind, mesh_, views_of(x))
                    : node.op->name == "all_gather"     ? gathered(x, axes, mesh_)
                    : node.op->name == "all_to_all"
                        ? exchanged(x, axes, mesh_)
                        : absl::StatusOr<IndexMap>(absl::UnimplementedError("a collective that the verifier lacks"));
      if (!result.ok()) return differs(found(node.inputs[k]), ": ", result.status().message());
      layout(node.outputs[k]) = *std::move(result);
    }
    return absl::OkStatus();
  }

  absl::Status check_order(ValueId v, const IndexMap& x, const std::vector<int>& axes) {
    absl::Status status = order_.check_sum(x, axes, local_.type(v).dtype);
    return status.ok() ? status : differs(status.message(), " for ", found(v));
  }

  absl::Status compute(const Node& node) {
    std::vector<int32_t> roots;
    std::vector<IndexMap> operands;
    bool known = true;
    for (ValueId v : node.inputs) {
      operands.push_back(v == kNoValue ? IndexMap{} : layout(v));
      roots.push_back(v == kNoValue ? -2 : layout(v).root);
      known = known && roots.back() != -1;
    }
    if (node.op->sums_micro_batches) {
      if (micro_slices_.axis >= 0 &&
          (!operands.back().is_partial(micro_slices_.axis) || operands.back().kind != PartialKind::kSum))
        return differs("expected a part of a sum over the micro-batches of a run, found ", found(node.inputs.back()));
      PARTITA_RETURN_IF_ERROR(order_.check_node(node, local_, operands, {}));
      sum_over_runs(node, operands);
    }
    bool sliced = std::any_of(operands.begin(), operands.end(), [](const IndexMap& x) { return x.sliced; });
    for (size_t k = 0; k < operands.size(); ++k) {
      if (operands[k].summed)
        return differs("expected a value of one micro-batch, found a sum over several: ", found(node.inputs[k]));
      for (int a : report_.slice_axes) {
        if (sliced && (operands[k].depends_on(a) || operands[k].is_partial(a)))
          return differs("expected an operand that is whole on all ranks of ", mesh_.axes[a].name,
                         ", which run different micro-batches, found ", found(node.inputs[k]));
      }
    }
    std::string why = "no serial node does this to these values";
    if (known) {
      for (NodeId s : serial_.candidates(*node.op, runs_of(node.segment), roots)) {
        auto results = match_node(serial_, s, local_, node, operands, mesh_);
        if (results.ok()) {
          if (!node.op->sums_micro_batches)
            PARTITA_RETURN_IF_ERROR(order_.check_node(node, local_, operands, *results));
          PARTITA_RETURN_IF_ERROR(order_.check_blocks(s, node, local_, operands, *results));
          for (size_t k = 0; k < node.outputs.size(); ++k) layout(node.outputs[k]) = std::move((*results)[k]);
          return absl::OkStatus();
        }
        why = std::string(results.status().message());
      }
    }
    if (compute_index(node)) return absl::OkStatus();
    if (known && rows_.visit(node, report_.layouts, mesh_, views_of(operands[0]))) return absl::OkStatus();
    std::string operands_text;
    for (ValueId v : node.inputs) {
      if (v != kNoValue) append(operands_text, operands_text.empty() ? "" : "; ", found(v));
    }
    return differs("value %", node.outputs.empty() ? -1 : node.outputs[0], " = ", node.op->name, ": expected ", why,
                   "; found operands ", operands_text);
  }

  // From the value of one micro-batch a rank to a part of the sum over them.
  void add_runs(IndexMap& x) {
    for (int a : report_.slice_axes) {
      if (!x.is_partial(a)) x.partial.push_back(a);
    }
    std::sort(x.partial.begin(), x.partial.end());
    x.sliced = false;
    x.summed = true;
  }

  // A sum over micro-batches starts from zero, so its state is partial over the same axes as its terms, and over those
  // along which ranks run different micro-batches.
  void sum_over_runs(const Node& node, std::vector<IndexMap>& operands) {
    IndexMap& term = operands.back();
    std::erase(term.partial, micro_slices_.axis);
    if (slices_.count > 1 && !term.summed) add_runs(term);
    term.summed = false;
    auto at = state_of_.find(node.inputs[0]);
    if (at == state_of_.end() || local_.states[at->second].kind != StateKind::kAccumulator) return;
    operands[0].partial = term.partial;
    operands[0].kind = term.kind;
    partial_[at->second] = {term.partial, term.kind};
  }

  // Scalar arithmetic on coordinates and the micro-batch's index, which no serial node does.
  bool compute_index(const Node& node) {
    if (node.op->name == "select") return count_once(node);
    if (!index_.visit(node)) return false;
    ValueId out = node.outputs[0];
    std::optional<Affine> result = index_.at(out);
    bool run = result && result->constant == 0 && result->micro == 0 && result->run == slices_.count &&
               result->axes.size() == slices_.axes.size();
    for (const runtime::AxisStride& s : slices_.axes) run = run && result->axes[s.axis] == s.stride;
    for (const GraphInput& in : serial_.graph().inputs) {
      if (!run || in.kind != InputKind::kMicroBatch) continue;
      layout(out) = serial_.layout(in.value);
      layout(out).sliced = slices_.count > 1;
    }
    return true;
  }

  // coordinate == 0 ? x : 0 is x as a sum over the axis.
  bool count_once(const Node& node) {
    int axis = index_.first_along(node.inputs[0]);
    if (axis < 0 || local_.type(node.inputs[1]) != local_.type(node.outputs[0])) return false;
    const IndexMap& x = layout(node.inputs[1]);
    const Literal* otherwise = literals_[node.inputs[2]];
    if (x.root < 0 || otherwise == nullptr) return false;
    for (std::byte bits : otherwise->bytes()) {
      if (bits != std::byte{0}) return false;
    }
    if (x.depends_on(axis) || x.is_partial(axis) || x.kind != PartialKind::kSum) return false;
    if (!order_.counts_once(axis, local_.type(node.outputs[0]).dtype)) return false;
    if (x.sliced && is_slice_axis(axis)) return false;
    IndexMap first = x;
    first.partial.push_back(axis);
    std::sort(first.partial.begin(), first.partial.end());
    layout(node.outputs[0]) = std::move(first);
    return true;
  }

  // A value that leaves the step must be the serial one, placed as the interface says.
  absl::Status check_placed(ValueId whole, ValueId here, const runtime::Placement& placement) {
    const Graph& g = serial_.graph();
    if (local_.type(here).dtype != g.type(whole).dtype || placement.logical != g.type(whole).shape)
      return differs("expected ", to_string(g.type(whole)), ", found a placement of ", to_string(placement.logical),
                     " for ", found(here));
    if (layout(here).root < 0 || layout(here).root != serial_.layout(whole).root)
      return differs("expected ", serial_.describe(serial_.layout(whole).root), ", found ", found(here));
    if (layout(here).sliced) return differs("expected a value of all micro-batches, found ", found(here));
    absl::Status status =
        same_part(serial_.layout(whole), g.type(whole).shape, layout(here), local_.type(here).shape, placement, mesh_);
    return status.ok() ? status : differs(status.message(), " for ", found(here));
  }

  absl::Status check_states() {
    for (size_t k = 0; k < local_.states.size(); ++k) {
      const State& s = local_.states[k];
      absl::Status status = check_state(k, s, *serial_state_[k]);
      if (!status.ok()) return differs("state ", quote(s.name), " after the step: ", status.message());
      ++report_.states;
    }
    std::set<std::string> names;
    for (const State& s : local_.states) names.insert(s.name);
    for (const State& s : serial_.graph().states) {
      if (!names.count(s.name)) return differs("state ", quote(s.name), ": expected it in the program, found none");
    }
    return absl::OkStatus();
  }

  absl::Status check_state(size_t k, const State& s, const State& whole) {
    if ((s.next == kNoValue || s.next == s.value) && (whole.next == kNoValue || whole.next == whole.value))
      return absl::OkStatus();
    if (s.next == kNoValue || whole.next == kNoValue)
      return differs("expected it ", whole.next == kNoValue ? "unchanged" : "changed");
    const Node *now = local_.producer(s.next), *then = serial_.graph().producer(whole.next);
    if (now != nullptr && then != nullptr && runs_of(now->segment) != runs_of(then->segment))
      return differs("expected it to change ",
                     runs_of(then->segment) == Runs::kEach ? "with each micro-batch" : "once");
    bool divided = slices_.count > 1 || micro_slices_.axis >= 0;
    if (divided && now != nullptr && runs_of(now->segment) == Runs::kEach && !now->op->sums_micro_batches)
      return differs("expected a sum over micro-batches, found ", found(s.next), ", which depends on their order");
    auto partial = partial_.find(k);
    IndexMap expected;
    if (partial != partial_.end()) expected.partial = partial->second.first, expected.kind = partial->second.second;
    if (layout(s.next).partial != expected.partial || layout(s.next).kind != expected.kind)
      return differs("expected ", expected.partial.empty() ? "a complete value" : "it partial as its terms are",
                     ", found ", found(s.next));
    if (!expected.partial.empty() && read_.count(k))
      return differs("expected no reader of a sum that is still partial");
    return check_placed(whole.next, s.next, program_.states[k].placement);
  }

  absl::Status check_outputs() {
    std::map<std::string, ValueId> wanted;
    for (const GraphOutput& o : serial_.graph().outputs) wanted[o.name] = o.value;
    for (size_t k = 0; k < local_.outputs.size(); ++k) {
      const GraphOutput& o = local_.outputs[k];
      auto at = wanted.find(o.name);
      if (at == wanted.end() || program_.outputs[k].name != o.name)
        return differs("output ", quote(o.name), ": the serial program has none of this name, or it is there twice");
      absl::Status status = check_placed(at->second, o.value, program_.outputs[k].placement);
      if (status.ok() && !layout(o.value).partial.empty())
        status = differs("expected a complete value, found ", found(o.value));
      if (!status.ok()) return differs("output ", quote(o.name), ": ", status.message());
      wanted.erase(at);
      ++report_.outputs;
    }
    if (!wanted.empty()) return differs("output ", quote(wanted.begin()->first), ": expected it, found none");
    return absl::OkStatus();
  }

  const SerialValues& serial_;
  const Graph& local_;
  const runtime::Program& program_;
  const std::function<std::string(NodeId)>& place_;
  Mesh mesh_;
  RowParts rows_;
  Slices slices_;
  MicroSlices micro_slices_;
  SumOrder order_;
  IndexValues index_;
  std::vector<const Literal*> literals_;
  std::vector<const State*> serial_state_;                              // per local state
  std::map<ValueId, size_t> state_of_;                                  // local value -> state
  std::map<size_t, std::pair<std::vector<int>, PartialKind>> partial_;  // per accumulator
  std::set<size_t> read_;                                               // states read other than by their sum
  GraphReport report_;
};

}  // namespace

absl::StatusOr<GraphReport> check_graph(const SerialValues& serial, const Graph& local, const runtime::Program& program,
                                        const FixedSums& fixed, const std::function<std::string(NodeId)>& place) {
  return GraphChecker(serial, local, program, fixed, place).run();
}

}  // namespace partita::verifier
