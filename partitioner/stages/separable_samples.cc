// Samples are followed from dimension 0 of the inputs: a value has them in one of its dimensions, or is a sum over
// them, or has nothing to do with them. What no parameter leads to (masks, counts of targets) can be made for all
// samples of a run wherever it is read.
#include "partitioner/stages/separable_samples.h"

#include <algorithm>
#include <optional>

#include "partitioner/stages/assign_stages.h"

namespace partita {
namespace {

// Dimension `dim` is (`outer` samples …). A value of 12 positions of 8 samples that lie side by side, [96, 64], has
// them in dimension 0 with 12 outside.
struct Place {
  static constexpr int kNone = -1, kSum = -2, kUnknown = -3;
  int dim = kNone;
  int64_t outer = 1;
  bool operator==(const Place&) const = default;
};

class Samples {
 public:
  explicit Samples(const Graph& graph) : graph_(graph), at_(graph.values.size()), trained_(graph.values.size(), false) {
    for (const GraphInput& in : graph.inputs) {
      const Shape& shape = graph.type(in.value).shape;
      if (in.kind != InputKind::kData || shape.empty()) continue;
      at_[in.value] = {0, 1}, samples_ = shape[0];
    }
    for (const State& s : graph.states)
      trained_[s.value] = s.kind == StateKind::kParameter || s.kind == StateKind::kRunning;
  }

  bool add_up() {
    if (samples_ <= 1) return true;
    return std::all_of(graph_.nodes.begin(), graph_.nodes.end(),
                       [&](const Node& node) { return node.segment > Segment::kForward || propagate(node); });
  }

 private:
  bool propagate(const Node& node) {
    bool any = false, trained = false;
    for (ValueId v : node.inputs) {
      if (v == kNoValue) continue;
      any = any || at_[v].dim != Place::kNone, trained = trained || trained_[v];
    }
    for (ValueId v : node.outputs) trained_[v] = trained;
    if (!any) return true;
    const std::optional<std::vector<Place>> places = of_outputs(node);
    if (!places && trained) return false;
    for (size_t k = 0; k < node.outputs.size(); ++k) {
      Place& at = at_[node.outputs[k]];
      at = places ? (*places)[k] : Place{Place::kUnknown, 1};
      if (!trained && at.dim == Place::kSum) at = {};
    }
    return true;
  }

  std::optional<std::vector<Place>> of_outputs(const Node& node) const {
    const Formula formula = bound_formula(graph_, node);
    std::vector<int64_t> outer(formula.factors.size(), 0);  // of the samples in each factor; 0: it has none
    size_t present = 0;
    bool sum = false, unknown = false;
    for (size_t k = 0; k < node.inputs.size(); ++k) {
      if (node.inputs[k] == kNoValue) continue;
      const FormulaOperand& operand = formula.inputs[present++];
      const Place& at = at_[node.inputs[k]];
      if (at.dim == Place::kUnknown) {
        unknown = true;
      } else if (at.dim == Place::kSum) {
        if (!sums_through(node, k)) return std::nullopt;
        sum = true;
      } else if (at.dim != Place::kNone && !find(formula, operand.dims[static_cast<size_t>(at.dim)], at.outer, outer)) {
        return std::nullopt;
      }
    }
    std::vector<Place> places;
    for (const FormulaOperand& output : formula.outputs) {
      std::optional<Place> at = place(formula, output, outer);
      if (!at || (sum && at->dim >= 0) || (unknown && at->dim < 0)) return std::nullopt;
      places.push_back(sum ? Place{Place::kSum, 1} : *at);
    }
    return places;
  }

  // The factor of a dimension that has the samples.
  bool find(const Formula& formula, const std::vector<int>& dim, int64_t before, std::vector<int64_t>& outer) const {
    for (int f : dim) {
      const int64_t size = formula.factors[static_cast<size_t>(f)].size;
      if (size % (before * samples_) == 0) {
        outer[static_cast<size_t>(f)] = before;
        return true;
      }
      if (before % size != 0) return false;
      before /= size;
    }
    return false;
  }

  // Where an output has the samples that factors of the operands have; nothing where that cannot be told, or where they
  // must stay whole.
  static std::optional<Place> place(const Formula& formula, const FormulaOperand& output,
                                    const std::vector<int64_t>& outer) {
    std::optional<Place> at;
    for (size_t f = 0; f < outer.size(); ++f) {
      if (outer[f] == 0) continue;
      const FactorRole role = formula.factors[f].role;
      if (role != FactorRole::kParallel && role != FactorRole::kSum) return std::nullopt;
      Place here{role == FactorRole::kSum ? Place::kSum : Place::kNone, 1};
      for (size_t d = 0; d < output.dims.size(); ++d) {
        int64_t before = outer[f];
        for (int other : output.dims[d]) {
          if (other == static_cast<int>(f)) here = {static_cast<int>(d), before};
          before *= formula.factors[static_cast<size_t>(other)].size;
        }
      }
      if (here.dim == Place::kNone || (at && *at != here)) return std::nullopt;
      at = here;
    }
    return at.value_or(Place{});
  }

  // Whether the sum of the parts' results is the result for the sum, operand k being one.
  bool sums_through(const Node& node, size_t k) const {
    const std::vector<bool> summed = summed_operands(graph_, node, k);
    if (summed.empty()) return false;
    for (size_t i = 0; i < node.inputs.size(); ++i) {
      if (summed[i] != (at_[node.inputs[i]].dim == Place::kSum)) return false;
    }
    return true;
  }

  const Graph& graph_;
  std::vector<Place> at_;  // of each value
  std::vector<bool> trained_;
  int64_t samples_ = 0;
};

}  // namespace

bool samples_add_up(const Graph& graph) { return Samples(graph).add_up(); }

}  // namespace partita
