#include "partitioner/shard/value_pins.h"

#include <algorithm>
#include <set>

#include "base/cat.h"
#include "base/quote.h"

namespace partita {
namespace {

int dimension_named(const Graph& graph, ValueId v, const std::string& factor) {
  int rank = graph.type(v).rank();
  for (int d = 0; d < rank; ++d) {
    if (factor == cat("dim", d)) return d;
  }
  for (const Node& node : graph.nodes) {
    auto at = std::find(node.inputs.begin(), node.inputs.end(), v);
    if (at == node.inputs.end() || node.segment > Segment::kForward) continue;
    if (node.segment == Segment::kPrologue || node.op->name == "round_to_fp8")  // its copy
      return dimension_named(graph, node.outputs[0], factor);
    Formula f = bound_formula(graph, node);
    const FormulaOperand& o = f.inputs[static_cast<size_t>(at - node.inputs.begin())];
    bool product =
        std::any_of(f.factors.begin(), f.factors.end(), [](const Factor& x) { return x.role == FactorRole::kSum; });
    for (int d = 0; product && d < rank; ++d) {
      if (o.dims[d].empty()) continue;
      bool summed = f.factors[o.dims[d][0]].role == FactorRole::kSum;
      if (factor == (summed ? "in" : "out")) return d;
    }
  }
  return -1;
}

std::vector<int> axes_named(const MeshAxes& axes, const std::string& name) {
  return name == kTensorAxis    ? axes.tensor
         : name == kContextAxis ? axes.context
                                : std::vector<int>{axes.mesh.find(name)};
}

}  // namespace

absl::Status check_value_pins(const Graph& graph, const PinRecipe& pin) {
  for (const ValuePin& value : pin.values) {
    bool any = std::any_of(graph.states.begin(), graph.states.end(), [&](const State& s) {
      return s.kind != StateKind::kOptimizer && s.kind != StateKind::kStep && glob_match(value.match, s.name);
    });
    if (!any)
      return absl::InvalidArgumentError(cat("pin ", quote(value.match), ": no parameter has a name that matches"));
  }
  return absl::OkStatus();
}

absl::Status apply_value_pins(const Graph& graph, const State& state, const PinRecipe& pin, const MeshAxes& axes,
                              Sharding& sharding) {
  const ValuePin* pinned = nullptr;
  for (const ValuePin& p : pin.values) {
    if (glob_match(p.match, state.name)) pinned = &p;
  }
  if (pinned == nullptr || state.kind == StateKind::kStep) return absl::OkStatus();
  const Shape& shape = graph.type(state.value).shape;
  Sharding wanted = Sharding::replicated(shape);
  std::set<std::string> used;
  for (const auto& [factor, names] : pinned->factors) {
    int dim = dimension_named(graph, state.value, factor);
    auto refuse = [&](std::string_view why) {
      return absl::InvalidArgumentError(
          cat("pin ", quote(pinned->match), ": ", factor, " of ", quote(state.name), " ", to_string(shape), ": ", why));
    };
    if (dim < 0) return refuse("expected a factor that it has: in or out (of a matrix product), or dim0, dim1, …");
    for (const std::string& name : names) {
      const std::vector<int> named = axes_named(axes, name);
      if (named.empty() || named[0] < 0)
        return refuse(cat("the layout has no axis ", quote(name), "; pin it to a size above 1"));
      if (!used.insert(name).second) return refuse(cat("axis ", quote(name), " is there twice"));
      Piece& piece = wanted.dims[static_cast<size_t>(dim)][0];
      piece.axes.insert(piece.axes.end(), named.begin(), named.end());
      int64_t ways = axes.mesh.ways(piece.axes);
      if (piece.size % ways != 0) return refuse(cat("its size ", piece.size, " does not divide by ", ways));
    }
  }
  sharding = normalized(std::move(wanted));
  return absl::OkStatus();
}

}  // namespace partita
