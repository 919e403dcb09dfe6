#include "tools/verify/stages/absent_axes.h"

#include <algorithm>
#include <set>

#include "base/status.h"
#include "tools/verify/layout/mismatch.h"
#include "tools/verify/layout/serial_values.h"

namespace partita::verifier {
namespace {

// The operands in which a node is linear jointly, where the others are constants; of a sum over micro-batches, that
// starts from zero, the term.
std::vector<size_t> linear_operands(const JoinedGraph& g, const Node& x) {
  if (x.op->sums_micro_batches) return {x.inputs.size() - 1};
  if (std::count(x.inputs.begin(), x.inputs.end(), kNoValue) > 0) return {};
  const Formula f = bound_formula(g.graph(), x);
  std::vector<size_t> some;
  for (size_t k = 0; k < x.inputs.size(); ++k) {
    if (g.builder().literal(x.inputs[k]) != nullptr) continue;
    if (f.inputs[k].linear < 0 || (!some.empty() && f.inputs[k].linear != f.inputs[some[0]].linear)) return {};
    some.push_back(k);
  }
  for (size_t k = 0; !some.empty() && k < x.inputs.size(); ++k) {
    const bool among = f.inputs[k].linear == f.inputs[some[0]].linear;
    if (among && g.builder().literal(x.inputs[k]) != nullptr && !g.is_zero(x.inputs[k])) return {};
  }
  return some;
}

// The value where the coordinate along the axis is 0, else zero; put as far back as what is made of it is linear.
absl::StatusOr<ValueId> once_along(JoinedGraph& g, ValueId v, int axis) {
  if (g.is_zero(v)) return v;
  const Node* made = g.graph().producer(v);
  if (made != nullptr && made->outputs.size() == 1 && !made->op->communicates) {
    const Node x = *made;
    std::vector<ValueId> inputs = x.inputs;
    const std::vector<size_t> through = linear_operands(g, x);
    for (size_t k : through) {
      PARTITA_ASSIGN_OR_RETURN(inputs[k], once_along(g, inputs[k], axis));
    }
    if (!through.empty()) {
      PARTITA_ASSIGN_OR_RETURN(std::vector<ValueId> results, g.emit(x, std::move(inputs)));
      return results[0];
    }
  }
  return g.first_along(v, axis);
}

// The same value with such conditions, on whichever axis, put as far back.
absl::StatusOr<ValueId> with_conditions_back(JoinedGraph& g, ValueId v) {
  const Node* made = g.graph().producer(v);
  if (made == nullptr || g.is_zero(v) || made->outputs.size() != 1 || made->op->communicates) return v;
  const Node x = *made;
  if (x.op->name == "select" && g.is_zero(x.inputs[2])) {
    for (int a = 0; a < static_cast<int>(g.mesh().axes.size()); ++a) {
      if (!g.is_first_along(x.inputs[0], a)) continue;
      PARTITA_ASSIGN_OR_RETURN(ValueId all, with_conditions_back(g, x.inputs[1]));
      return once_along(g, all, a);
    }
  }
  std::vector<ValueId> inputs = x.inputs;
  for (size_t k : linear_operands(g, x)) {
    PARTITA_ASSIGN_OR_RETURN(inputs[k], with_conditions_back(g, inputs[k]));
  }
  if (inputs == x.inputs) return v;
  PARTITA_ASSIGN_OR_RETURN(std::vector<ValueId> results, g.emit(x, std::move(inputs)));
  return results[0];
}

}  // namespace

absl::StatusOr<ValueId> counted_once(const JoinedGraph& g, ValueId term, size_t stage) {
  std::vector<int> axes;
  for (int a : g.mesh().irregular()) {
    if (g.mesh().has(a, static_cast<int64_t>(stage))) axes.push_back(a);
  }
  while (!axes.empty()) {
    const Node* x = g.graph().producer(term);
    if (x == nullptr || x->op->name != "select" || !g.is_zero(x->inputs[2]))
      return differs("stage ", stage, ": expected its term to count once along axes that other stages lack");
    auto at = std::find_if(axes.begin(), axes.end(), [&](int a) { return g.is_first_along(x->inputs[0], a); });
    if (at == axes.end()) return differs("stage ", stage, ": expected a condition on the axes that other stages lack");
    axes.erase(at);
    term = x->inputs[1];
  }
  return term;
}

absl::StatusOr<std::vector<int>> take_off_own_sums(JoinedGraph& g, std::vector<ValueId>& terms) {
  std::set<int> all;
  std::vector<std::set<int>> own(terms.size());
  for (size_t s = 0; s < terms.size(); ++s) {
    const Node* x = g.graph().producer(terms[s]);
    if (x == nullptr || x->op->name != "all_reduce" || x->attrs.s("reduce", "") != "sum") continue;
    for (int64_t a : x->attrs.ints("axes")) own[s].insert(static_cast<int>(a));
    all.insert(own[s].begin(), own[s].end());
  }
  const std::vector<int> some_lack = g.mesh().irregular();
  if (std::none_of(some_lack.begin(), some_lack.end(), [&](int a) { return all.count(a) > 0; }))
    return std::vector<int>{};
  for (size_t s = 0; s < terms.size(); ++s) {
    if (g.is_zero(terms[s])) continue;
    std::set<int> expected = all;
    std::erase_if(expected, [&](int a) { return !g.mesh().has(a, static_cast<int64_t>(s)); });
    if (own[s] != expected)
      return differs("stage ", s, ": expected its term to be a sum along the axes that others sum along");
    if (!own[s].empty()) terms[s] = g.graph().producer(terms[s])->inputs[0];
    PARTITA_ASSIGN_OR_RETURN(terms[s], with_conditions_back(g, terms[s]));
    for (int a : all) {
      if (g.mesh().has(a, static_cast<int64_t>(s))) continue;
      PARTITA_ASSIGN_OR_RETURN(terms[s], once_along(g, terms[s], a));
    }
  }
  return std::vector<int>(all.begin(), all.end());
}

}  // namespace partita::verifier
