// Which values share memory.
#include <algorithm>
#include <set>

#include "codegen/nest/nest_schedule.h"
#include "codegen/steps/arena.h"
#include "codegen/steps/step_planner.h"

namespace partita {

using runtime::StepKind;

// Products that are added to a state (gradients over micro-batches) add to its memory themselves.
void StepPlanner::join_accumulations() {
  for (const State& s : graph_.states) {
    if (s.next == kNoValue || !is_computed(code_.storage(s.next))) continue;
    ValueId next = code_.storage(s.next);
    int sum = value_spans_[next].birth;
    ValueId term = added_term(s, next, sum);
    if (term == kNoValue) continue;
    Draft& product = drafts_[value_spans_[term].birth];
    const bool multiplies = product.step.name == "matmul" || product.step.name == "multiply_fp8";
    if (!multiplies || product.uses[static_cast<size_t>(product.step.inputs)].id != term ||
        product.step.segment != drafts_[sum].step.segment || product.step.phase != drafts_[sum].step.phase)
      continue;
    // The product's output is the next value now, and the sum's step is gone.
    product.uses[static_cast<size_t>(product.step.inputs)].id = next;
    product.step.epilogue = "accumulate";
    drafts_[sum].uses.clear();
    drafts_[sum].step.nest = nullptr;
    drafts_[sum].item = -1;
  }
  remove_gone();
}

// The value that step `sum` adds to a state to make its next value, where nothing else reads either; or kNoValue.
ValueId StepPlanner::added_term(const State& s, ValueId next, int sum) const {
  if (sum == INT_MAX || drafts_[sum].item < 0) return kNoValue;
  const FusedItem& item = plan_.items[drafts_[sum].item];
  if (!item.fused || item.nodes.size() != 1) return kNoValue;
  const Node& node = graph_.nodes[item.nodes[0]];
  bool binary =
      code_.roles[item.nodes[0]] == NodeRole::kElementwise && node.inputs.size() == 2 && node.outputs.size() == 1;
  if (!binary) return kNoValue;
  auto types = input_types(graph_, node);
  ScalarFunction f = scalar_function(*node.op, {node.attrs, types});
  if (f.nodes.size() != 3 || f.nodes[2].op != ScalarOp::kAdd || types[0] != types[1]) return kNoValue;
  for (int k = 0; k < 2; ++k) {
    ValueId term = code_.storage(node.inputs[1 - k]);
    if (code_.storage(node.inputs[k]) != s.value || !is_computed(term) || types[0] != graph_.type(term)) continue;
    const std::vector<int> here{sum};
    bool alone = value_spans_[s.value].readers == here && value_spans_[term].readers == here;
    if (alone && !is_output_[term] && !is_output_[s.value] && next_of_[term] == 0 && next_of_[next] == 1) return term;
  }
  return kNoValue;
}

// An all-reduce of several operands works on one buffer. An operand that nothing else reads afterwards is computed
// right there; the others are copied. (Other collectives of several operands take each where it lies.)
void StepPlanner::choose_bundles() {
  for (size_t k = 0; k < drafts_.size(); ++k) {
    const Draft& d = drafts_[k];
    if (d.step.kind != StepKind::kCollectiveStart || d.step.name != "all_reduce" || d.step.inputs < 2) continue;
    Bundle bundle;
    bundle.step = static_cast<int>(k);
    int index = static_cast<int>(bundles_.size());
    for (int j = 0; j < d.step.inputs; ++j) {
      ValueId v = d.uses[j].id;
      bool free = is_computed(v) && bundle_[v].buffer < 0 && !is_output_[v] && next_of_[v] == 0 &&
                  value_spans_[v].readers.back() == bundle.step && value_spans_[v].held == value_spans_[v].death;
      bundle_[d.uses[d.step.inputs + j].id] = {index, bundle.bytes};
      if (free) bundle_[v] = {index, bundle.bytes};
      bundle.copied.push_back(!free);
      bundle.bytes += aligned(byte_size(d.uses[j].type));
    }
    bundles_.push_back(std::move(bundle));
  }
}

void StepPlanner::choose_states() {
  for (const State& s : graph_.states) {
    ValueId next = s.next == kNoValue ? s.value : code_.storage(s.next);
    if (next == s.value) continue;
    if (can_update_in_place(s, next)) {
      slot_of_[next] = slot_of_[s.value];
    } else {
      copies_.push_back({next, s.value});
      copied_from_[next] = true;
    }
  }
}

// What an all-reduce makes of sums over micro-batches takes their place: the next step begins them at zero. The sums of
// a merged one lie side by side, as its operands do.
void StepPlanner::reduce_sums_in_place() {
  std::vector<int> sum_in(graph_.values.size(), -1);  // per storage value: the accumulator that it is the end of
  for (size_t k = 0; k < graph_.states.size(); ++k) {
    const State& s = graph_.states[k];
    if (s.kind != StateKind::kAccumulator || s.next == kNoValue) continue;
    const ValueId sum = code_.storage(s.next);
    const int buffer = slot_of_[s.value].buffer;
    const bool here = sum != s.value && slot_of_[sum].buffer == buffer && next_of_[sum] == 1 && !is_output_[sum];
    if (here && plan_.buffers[buffer].region == runtime::Region::kState) sum_in[sum] = static_cast<int>(k);
  }
  for (size_t k = 0; k < drafts_.size(); ++k) {
    const Draft& d = drafts_[k];
    const bool reduces = d.step.kind == StepKind::kCollectiveStart && d.step.name == "all_reduce" &&
                         d.step.segment == Segment::kReduce && !options_.updates_each;
    if (!reduces) continue;
    const size_t inputs = static_cast<size_t>(d.step.inputs);
    std::vector<int> sums;
    for (size_t j = 0; j < inputs; ++j) {
      const int sum = d.uses[j].id, total = d.uses[inputs + j].id;
      const Span& span = value_spans_[sum];
      const bool last = span.readers.back() == static_cast<int>(k) && span.held == span.death;
      if (sum_in[sum] >= 0 && last && !is_output_[total] && next_of_[total] == 0) sums.push_back(sum_in[sum]);
    }
    if (sums.size() != inputs) continue;
    for (size_t j = 0; j < inputs; ++j) {
      bundle_[d.uses[inputs + j].id] = {};
      slot_of_[d.uses[inputs + j].id] = slot_of_[d.uses[j].id];
    }
    for (Bundle& b : bundles_) {
      if (b.step != static_cast<int>(k)) continue;
      b.copied.assign(inputs, false);
      b.states = std::move(sums);
    }
  }
}

// Whether everybody who needs the old value has it by the time the new one is written over it.
bool StepPlanner::can_update_in_place(const State& s, ValueId next) const {
  if (!is_computed(next) || slot_of_[next].buffer >= 0 || bundle_[next].buffer >= 0) return false;
  if (is_output_[s.value] || next_of_[s.value] > 0) return false;
  if (byte_size(graph_.type(next)) != byte_size(graph_.type(s.value))) return false;
  int at = value_spans_[next].birth;
  const bool held = value_spans_[s.value].held >= at;  // perhaps by the very collective that writes it
  if (held && (drafts_[at].step.kind != StepKind::kCollectiveStart || is_held_by_another(s.value, at))) return false;
  for (int r : value_spans_[s.value].readers) {
    if (r < at) continue;
    bool same_group = drafts_[at].item >= 0 && drafts_[r].item == drafts_[at].item;
    if (!same_group || !may_overwrite(at, next, s.value)) return false;
  }
  return true;
}

// Whether a collective that has begun before this one still reads the value when it begins.
bool StepPlanner::is_held_by_another(ValueId v, int collective) const {
  const std::vector<int>& readers = value_spans_[v].readers;
  return std::any_of(drafts_.begin() + collective + 1, drafts_.end(), [&](const Draft& d) {
    return d.step.kind == StepKind::kCollectiveWait && d.step.waits_for < collective &&
           std::find(readers.begin(), readers.end(), d.step.waits_for) != readers.end();
  });
}

// Results take over the buffers of operands that die with their step.
void StepPlanner::share_in_place() {
  std::set<int> taken;  // for good: another nest of the group may still read the value, but its buffer is given once
  for (size_t k = 0; k < drafts_.size(); ++k) {
    const Draft& d = drafts_[k];
    for (size_t o = static_cast<size_t>(d.step.inputs); o < d.uses.size(); ++o) {
      int out = d.uses[o].id;
      if (d.uses[o].absent || out < 0 || !in_arena(out) || value_spans_[out].birth != static_cast<int>(k)) continue;
      for (int i = 0; i < d.step.inputs; ++i) {
        int in = d.uses[i].id;
        if (in < 0 || d.uses[i].absent || taken.count(in) || !may_take(static_cast<int>(k), out, in)) continue;
        same_[out] = in;
        taken.insert(in);
        break;
      }
    }
  }
}

bool StepPlanner::may_take(int step, int out, int in) const {
  int64_t bytes = byte_size(graph_.type(in));
  if (!in_arena(in) || bytes == 0 || bytes != byte_size(graph_.type(out))) return false;
  if (!dies_with(in, step) || !may_overwrite(step, out, in)) return false;
  // Another operand in the same buffer would be overwritten too.
  const Draft& d = drafts_[step];
  return std::none_of(d.uses.begin(), d.uses.begin() + d.step.inputs,
                      [&](const Use& u) { return !u.absent && u.id >= 0 && u.id != in && root(u.id) == root(in); });
}

// Whether a step (with the other nests of its group) writes `written` in the very places where it reads `old` last.
bool StepPlanner::may_overwrite(int step, int written, int old) const {
  const Draft& d = drafts_[step];
  if (d.step.kind == StepKind::kCollectiveStart) return d.uses.size() == 2 && d.step.name == "all_reduce";
  if (d.step.kind == StepKind::kLibrary) {
    const bool adds_rows = d.step.name == "gather_grad" && d.step.inputs == 3;
    return (d.step.name == "accumulate_tree" && d.uses[0].id == old) || (adds_rows && d.uses[2].id == old);
  }
  if (d.step.nest == nullptr) return false;
  // No nest may read `old` after another wrote over it, unless it writes there itself.
  bool wrote = false;
  for (int k : drafts_of_item_[d.item]) {
    const Draft& nest = drafts_[k];
    int in = -1, out = -1;
    for (int u = 0; u < static_cast<int>(nest.uses.size()); ++u) {
      if (nest.uses[u].id == old && u < nest.step.inputs) in = u;
      if (nest.uses[u].id == written && u >= nest.step.inputs) out = u;
    }
    if (in >= 0 && out >= 0 && !may_share(*nest.step.nest, in, out)) return false;
    if (in >= 0 && out < 0 && wrote) return false;
    wrote = wrote || out >= 0;
  }
  return true;
}

// No step after the group of `step` uses the value, nor a copy at the end.
bool StepPlanner::dies_with(ValueId v, int step) const {
  if (is_output_[v] || copied_from_[v]) return false;
  int death = value_spans_[v].death;
  if (death == step) return true;
  // Others may read an operand between a collective's start and its wait, other collectives that have started among
  // them.
  if (drafts_[step].step.kind == StepKind::kCollectiveStart) {
    const std::vector<int>& readers = value_spans_[v].readers;
    const bool alone = std::none_of(drafts_.begin() + step, drafts_.begin() + death + 1, [&](const Draft& d) {
      const int begun = d.step.kind == StepKind::kCollectiveWait ? d.step.waits_for : step;
      return begun != step && std::find(readers.begin(), readers.end(), begun) != readers.end();
    });
    return alone && drafts_[death].step.waits_for == step && readers.back() == step;
  }
  return drafts_[step].item >= 0 && drafts_[death].item == drafts_[step].item;
}

ValueId StepPlanner::root(ValueId v) const {
  while (same_[v] != kNoValue) v = same_[v];
  return v;
}

}  // namespace partita
