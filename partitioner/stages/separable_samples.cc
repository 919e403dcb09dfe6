// Samples are followed from dimension 0 of the inputs: a value has them in one of its dimensions, or is a sum over
// them, or has nothing to do with them. What no parameter leads to (masks, counts of targets) can be made for all
// samples of a run wherever it is read.
#include "partitioner/stages/separable_samples.h"

#include <algorithm>
#include <cmath>
#include <optional>

#include "partitioner/prepare/split_forms.h"
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
  explicit Samples(const Graph& graph)
      : graph_(graph),
        at_(graph.values.size()),
        trained_(graph.values.size(), false),
        counted_(graph.values.size(), false),
        open_(graph.values.size(), false),
        scales_(graph.values.size()),
        literals_(constant_values(graph)) {
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

  SamplesOfLoss of_loss() {
    if (samples_ <= 1) return {};
    alone_ = true;
    const ValueId loss = graph_.outputs[0].value;
    const std::vector<bool> wanted = reach(loss);
    for (const Node& node : graph_.nodes) {
      const bool counts = std::any_of(node.outputs.begin(), node.outputs.end(), [&](ValueId v) { return wanted[v]; });
      if (!counts || propagate(node)) continue;
      return {meet_ ? LossOverSamples::kTogether : LossOverSamples::kUnknown,
              static_cast<NodeId>(&node - graph_.nodes.data())};
    }
    if (at_[loss].dim == Place::kUnknown) return {LossOverSamples::kUnknown, graph_.values[loss].producer};
    if (counted_[loss]) return {LossOverSamples::kCounted};
    return {open_[loss] ? LossOverSamples::kSummed : LossOverSamples::kMean};
  }

 private:
  // The values that lead to one.
  std::vector<bool> reach(ValueId end) const {
    std::vector<bool> leads(graph_.values.size(), false);
    leads[end] = true;
    for (size_t n = graph_.nodes.size(); n-- > 0;) {
      const Node& node = graph_.nodes[n];
      if (std::none_of(node.outputs.begin(), node.outputs.end(), [&](ValueId v) { return leads[v]; })) continue;
      for (ValueId v : node.inputs) {
        if (v != kNoValue) leads[v] = true;
      }
    }
    return leads;
  }

  bool propagate(const Node& node) {
    bool any = false, trained = false, counted = false;
    for (ValueId v : node.inputs) {
      if (v == kNoValue) continue;
      any = any || at_[v].dim != Place::kNone, trained = trained || trained_[v], counted = counted || counted_[v];
    }
    for (ValueId v : node.outputs) trained_[v] = trained, counted_[v] = counted;
    if (!any) return true;
    meet_ = false;
    const std::optional<std::vector<Place>> places = of_outputs(node);
    if (alone_ && places) follow_sums(node);
    if (!places && trained) return false;
    for (size_t k = 0; k < node.outputs.size(); ++k) {
      Place& at = at_[node.outputs[k]];
      at = places ? (*places)[k] : Place{Place::kUnknown, 1};
      if (trained || (places && at.dim != Place::kSum)) continue;
      counted_[node.outputs[k]] = true;  // of all samples' data, or of who knows how many
      if (at.dim == Place::kSum) at = {};
    }
    return true;
  }

  std::optional<std::vector<Place>> of_outputs(const Node& node) {
    const Formula formula = bound_formula(graph_, node);
    if (alone_ && takes_statistics(node, formula)) return of_statistics(node, formula);
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
        if (!sums_through(node, k)) return met();
        sum = true;
      } else if (at.dim != Place::kNone && !find(formula, operand.dims[static_cast<size_t>(at.dim)], at.outer, outer)) {
        return std::nullopt;
      }
    }
    if (alone_ && has_constant_of_samples(node, formula, outer)) return std::nullopt;
    std::vector<Place> places;
    for (const FormulaOperand& output : formula.outputs) {
      std::optional<Place> at = place(formula, output, outer);
      if (sum && at && at->dim >= 0) return met();
      if (!at || (unknown && at->dim < 0)) return std::nullopt;
      places.push_back(sum ? Place{Place::kSum, 1} : *at);
    }
    return places;
  }

  // Whether results have sums over samples that no factor has divided by their number yet. A mean is a sum times a
  // constant, before it or after: one over the samples, perhaps times how many numbers of a sample were added.
  void follow_sums(const Node& node) {
    const Formula formula = bound_formula(graph_, node);
    Scale scale{1, 1, 1};
    bool open = false, first = true;
    size_t present = 0;
    for (ValueId v : node.inputs) {
      if (v == kNoValue) continue;
      const FormulaOperand& operand = formula.inputs[present++];
      if (at_[v].dim == Place::kNone) continue;
      bool adds = false;  // over samples
      if (at_[v].dim >= 0) {
        std::vector<int64_t> outer(formula.factors.size(), 0);
        find(formula, operand.dims[static_cast<size_t>(at_[v].dim)], at_[v].outer, outer);
        for (size_t f = 0; f < outer.size(); ++f)
          adds = adds || (outer[f] > 0 && formula.factors[f].role == FactorRole::kSum);
      }
      const Scale& of = scales_[v];
      const double numbers = static_cast<double>(elements(graph_.type(v).shape)) / static_cast<double>(samples_);
      open = open || open_[v] || adds;
      scale.numbers = std::max({scale.numbers, of.numbers, at_[v].dim >= 0 ? numbers : 1});
      if (first || node.op->name == "mul") {
        scale.before *= of.before, scale.after *= of.after;
      } else if (of.before != scale.before || of.after != scale.after) {
        scale.before = scale.after = 1;
      }
      first = false;
    }
    const double factor = constant_factor(node);
    (open ? scale.after : scale.before) *= factor;
    if (!is_linear(node)) scale.before = scale.after = 1;
    const bool divided = open && (divides(scale.after, scale) || divides(scale.before, scale) ||
                                  divides(scale.before * scale.after, scale));
    for (ValueId v : node.outputs) scales_[v] = scale, open_[v] = open && !divided;
  }

  static bool is_linear(const Node& node) {
    constexpr std::string_view kLinear[] = {"mul",        "div",     "neg",       "add",  "sub",
                                            "reduce_sum", "reshape", "transpose", "cast", "broadcast"};
    return std::ranges::find(kLinear, node.op->name) != std::end(kLinear);
  }

  // What a product or quotient with a constant multiplies the other operand by; 1 of any other node.
  double constant_factor(const Node& node) const {
    const bool times = node.op->name == "mul", by = node.op->name == "div";
    for (size_t k = 0; k < 2 && (times || by); ++k) {
      const Literal* number = literals_[node.inputs[k]];
      if (number == nullptr || !is_float(number->type.dtype) || (by && k == 0) || !is_uniform(*number)) continue;
      return times ? element_f(*number, 0) : 1 / element_f(*number, 0);
    }
    return 1;
  }

  struct Scale {
    double before = 1, after = 1;  // of the sum over samples: product of the constants
    double numbers = 1;            // of a sample, at most, that were added
  };
  bool divides(double factor, const Scale& scale) const {
    const double by = 1 / std::abs(factor) / static_cast<double>(samples_), of = scale.numbers / std::round(by);
    return by > 0.5 && std::abs(by - std::round(by)) < 1e-5 * by && std::abs(of - std::round(of)) < 1e-9 * of;
  }

  // Whether a constant has other numbers for a run's first sample than for its second (positions, weights by number).
  bool has_constant_of_samples(const Node& node, const Formula& formula, const std::vector<int64_t>& outer) const {
    size_t present = 0;
    for (ValueId v : node.inputs) {
      if (v == kNoValue) continue;
      const FormulaOperand& operand = formula.inputs[present++];
      const Literal* constant = literals_[v];
      if (constant == nullptr || is_uniform(*constant)) continue;
      for (size_t d = 0; d < operand.dims.size(); ++d) {
        int64_t before = 1;
        for (int f : operand.dims[d]) {
          const int64_t samples_before = outer[static_cast<size_t>(f)];
          if (samples_before > 0 && differs_by_sample(*constant, d, before * samples_before)) return true;
          before *= formula.factors[static_cast<size_t>(f)].size;
        }
      }
    }
    return false;
  }

  // Of dimension d, which is (`before` samples …).
  bool differs_by_sample(const Literal& constant, size_t d, int64_t before) const {
    const Shape& shape = constant.type.shape;
    if (shape[d] % (before * samples_) != 0) return false;
    int64_t inner = shape[d] / (before * samples_);
    for (size_t k = d + 1; k < shape.size(); ++k) inner *= shape[k];
    const size_t part = static_cast<size_t>(inner * dtype_size(constant.type.dtype));
    for (size_t at = 0; at < constant.bytes().size(); at += part * static_cast<size_t>(samples_)) {
      for (size_t s = 1; s < static_cast<size_t>(samples_); ++s) {
        if (!std::equal(constant.data + at, constant.data + at + part, constant.data + at + s * part)) return true;
      }
    }
    return false;
  }

  static bool takes_statistics(const Node& node, const Formula& formula) {
    return node.op->attributes.find("i groups?") != std::string_view::npos && whole_samples(node, formula) >= 0;
  }

  // Of an op that takes statistics over the batch: its results have samples where their dimensions do.
  std::optional<std::vector<Place>> of_statistics(const Node& node, const Formula& formula) const {
    const int samples = whole_samples(node, formula);
    std::vector<Place> places;
    for (const FormulaOperand& output : formula.outputs)
      places.push_back(has_factor(output, samples) ? Place{0, 1} : Place{});
    return places;
  }

  std::nullopt_t met() {
    meet_ = true;
    return std::nullopt;
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
  std::optional<Place> place(const Formula& formula, const FormulaOperand& output, const std::vector<int64_t>& outer) {
    std::optional<Place> at;
    for (size_t f = 0; f < outer.size(); ++f) {
      if (outer[f] == 0) continue;
      const FactorRole role = formula.factors[f].role;
      // Kept whole, and there still: places counted over all samples, say.
      if (role == FactorRole::kWhole && has_factor(output, static_cast<int>(f))) return std::nullopt;
      if (role != FactorRole::kParallel && role != FactorRole::kSum) return met();
      Place here{role == FactorRole::kSum ? Place::kSum : Place::kNone, 1};
      for (size_t d = 0; d < output.dims.size(); ++d) {
        int64_t before = outer[f];
        for (int other : output.dims[d]) {
          if (other == static_cast<int>(f)) here = {static_cast<int>(d), before};
          before *= formula.factors[static_cast<size_t>(other)].size;
        }
      }
      if (at && *at != here) return met();
      if (here.dim == Place::kNone) return std::nullopt;
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
  std::vector<bool> counted_;  // made of what all samples' data are summed to
  std::vector<bool> open_;     // has a sum over samples that is no mean
  std::vector<Scale> scales_;
  std::vector<const Literal*> literals_;
  bool alone_ = false;  // batch statistics are taken for a sample's own
  bool meet_ = false;   // why a node was not followed: samples meet in it
  int64_t samples_ = 0;
};

}  // namespace

bool samples_add_up(const Graph& graph) { return Samples(graph).add_up(); }

SamplesOfLoss samples_of_loss(const Graph& forward) { return Samples(forward).of_loss(); }

}  // namespace partita
