#include "tools/verify/stages/merge_terms.h"

#include <algorithm>

#include "base/quote.h"
#include "base/status.h"
#include "tools/verify/layout/mismatch.h"
#include "tools/verify/layout/serial_values.h"

namespace partita::verifier {

bool TermMerger::adds_terms(const Node& x, const std::vector<ValueId>& inputs) const {
  if (x.op->name != "add" || runs_of(x.segment) != Runs::kOnce) return false;
  const Node* term = g_.graph().producer(inputs[1]);
  return term != nullptr && runs_of(term->segment) == Runs::kEach;
}

std::optional<ValueId> TermMerger::merged(std::vector<ValueId> terms) {
  const ValueId any = terms.front();
  for (size_t k = 0; k < terms.size(); ++k) {
    const Node* x = g_.graph().producer(terms[k]);
    while (x != nullptr && adds_terms(*x, x->inputs)) {
      terms.push_back(x->inputs[1]);
      terms[k] = x->inputs[0];
      x = g_.graph().producer(terms[k]);
    }
  }
  std::erase_if(terms, [&](ValueId v) { return g_.is_zero(v); });
  if (terms.empty()) return any;
  if (terms.size() == 1) return terms[0];
  std::sort(terms.begin(), terms.end());
  auto known = merged_.find(terms);
  if (known != merged_.end()) return known->second;
  std::optional<ValueId> sum = merged_accumulators(terms);
  if (!sum) sum = merged_results(terms);
  return merged_[std::move(terms)] = sum;
}

// All accumulators of one sum, each of which starts from zero, are that of the serial program.
std::optional<ValueId> TermMerger::merged_accumulators(std::vector<ValueId> terms) {
  std::sort(terms.begin(), terms.end());
  for (const auto& [name, states] : accumulators_) {
    std::vector<ValueId> values;
    for (size_t k : states) values.push_back(g_.graph().states[k].value);
    std::sort(values.begin(), values.end());
    if (values != terms) continue;
    auto [at, fresh] = whole_.try_emplace(name, g_.program.states.size());
    if (fresh) {
      State whole = g_.graph().states[states.front()];
      whole.name = name;
      whole.next = kNoValue;
      g_.program.states.push_back(g_.program.states[states.front()]);
      g_.program.states.back().name = name;
      g_.builder().state(std::move(whole), g_.builder().type(terms[0]));
    }
    return g_.graph().states[at->second].value;
  }
  return std::nullopt;
}

std::optional<ValueId> TermMerger::merged_results(const std::vector<ValueId>& terms) {
  std::vector<Node> makers;
  for (ValueId v : terms) {
    const Node* x = g_.graph().producer(v);
    if (x == nullptr || x->outputs.size() != 1) return std::nullopt;
    makers.push_back(*x);
  }
  const Node& first = makers.front();
  auto alike = [&](const Node& x) {
    return x.op == first.op && x.attrs == first.attrs && x.inputs.size() == first.inputs.size() &&
           runs_of(x.segment) == runs_of(first.segment) && std::count(x.inputs.begin(), x.inputs.end(), kNoValue) == 0;
  };
  if (!std::all_of(makers.begin(), makers.end(), alike)) return std::nullopt;
  if (first.op->communicates && first.attrs.s("reduce", "sum") != "sum") return std::nullopt;
  const Formula f = bound_formula(g_.graph(), first);
  std::set<int> groups;
  for (const FormulaOperand& o : f.inputs) groups.insert(o.linear);
  groups.erase(-1);
  for (int linear : groups) {
    if (auto inputs = merged_operands(makers, f, linear)) {
      auto results = g_.emit(first, *std::move(inputs));
      if (results.ok()) return results->front();
    }
  }
  return std::nullopt;
}

// The operands of one linearity group summed, the others as all have them.
std::optional<std::vector<ValueId>> TermMerger::merged_operands(const std::vector<Node>& makers, const Formula& f,
                                                                int linear) {
  std::vector<ValueId> inputs = makers.front().inputs;
  for (size_t k = 0; k < inputs.size(); ++k) {
    bool one = std::all_of(makers.begin(), makers.end(), [&](const Node& x) { return x.inputs[k] == inputs[k]; });
    if (f.inputs[k].linear != linear && !one) return std::nullopt;
  }
  for (size_t k = 0; k < inputs.size(); ++k) {
    if (f.inputs[k].linear != linear) continue;
    std::vector<ValueId> terms;
    for (const Node& x : makers) terms.push_back(x.inputs[k]);
    std::optional<ValueId> sum = merged(std::move(terms));
    if (!sum) return std::nullopt;
    inputs[k] = *sum;
  }
  return inputs;
}

absl::StatusOr<std::set<ValueId>> TermMerger::join_accumulators() {
  std::set<size_t> gone;
  std::set<ValueId> values_gone;
  for (const auto& [name, states] : accumulators_) {
    if (states.size() == 1) continue;
    std::vector<ValueId> values, next;
    for (size_t k : states) {
      gone.insert(k);
      values.push_back(g_.graph().states[k].value);
      next.push_back(g_.graph().states[k].next);
    }
    const bool changed = std::count(next.begin(), next.end(), kNoValue) == 0;
    std::optional<ValueId> sum = changed ? merged(std::move(next)) : std::nullopt;
    if (!sum) return differs("state ", quote(name), ": what it gets on the stages are not the terms of one sum");
    merged_accumulators(values);  // is there now, read or not
    g_.builder().set_next_of(whole_.at(name), *sum);
  }
  for (auto k = gone.rbegin(); k != gone.rend(); ++k) {
    values_gone.insert(g_.graph().states[*k].value);
    g_.builder().drop_state(*k);
    g_.program.states.erase(g_.program.states.begin() + static_cast<std::ptrdiff_t>(*k));
  }
  return values_gone;
}

}  // namespace partita::verifier
