#include "passes/forward/initialize.h"

#include <cmath>

#include "base/cat.h"
#include "base/quote.h"
#include "base/status.h"

namespace partita {
namespace {

// Fans as in torch.nn.init: of a weight [out, in, receptive field…].
absl::StatusOr<std::pair<double, double>> fans(const State& s, const Shape& shape) {
  if (shape.size() < 2)
    return absl::InvalidArgumentError(cat("init: ", quote(s.name), " has shape ", to_string(shape),
                                          "; kaiming and xavier need two dimensions or more"));
  double field = 1;
  for (size_t d = 2; d < shape.size(); ++d) field *= static_cast<double>(shape[d]);
  return std::pair{static_cast<double>(shape[1]) * field, static_cast<double>(shape[0]) * field};
}

absl::StatusOr<InitialRule> initial_of(const InitRule& rule, const State& s, const Shape& shape) {
  switch (rule.kind) {
    case InitKind::kConstant:
      return InitialRule{.a = rule.value};
    case InitKind::kNormal:
      return InitialRule{InitialRuleKind::kNormal, rule.mean, rule.std};
    case InitKind::kUniform:
      return InitialRule{InitialRuleKind::kUniform, rule.low, rule.high};
    case InitKind::kKaiming:
    case InitKind::kXavier:
      break;
  }
  PARTITA_ASSIGN_OR_RETURN(auto fan, fans(s, shape));
  double n = rule.kind == InitKind::kXavier ? (fan.first + fan.second) / 2
             : rule.fan == FanMode::kFanIn  ? fan.first
                                            : fan.second;
  double deviation = rule.gain / std::sqrt(n);
  if (rule.distribution == InitDistribution::kNormal) return InitialRule{InitialRuleKind::kNormal, 0, deviation};
  return InitialRule{InitialRuleKind::kUniform, -std::sqrt(3.0) * deviation, std::sqrt(3.0) * deviation};
}

}  // namespace

absl::StatusOr<Graph> initialize(const Graph& graph, const PassContext& context) {
  Graph out = graph;
  for (State& s : out.states) {
    if (s.kind != StateKind::kParameter) continue;
    bool ruled = false;
    for (const InitRule& rule : context.recipe.init) {
      if (!glob_match(rule.match, s.name)) continue;
      PARTITA_ASSIGN_OR_RETURN(s.initial, initial_of(rule, s, out.type(s.value).shape));
      ruled = true;
      break;
    }
    if (!ruled && std::holds_alternative<std::monostate>(s.initial)) {
      return absl::InvalidArgumentError(
          cat("parameter ", quote(s.name), " has no initial value in the model; add an `init` rule to train.yaml"));
    }
  }
  return out;
}

}  // namespace partita
