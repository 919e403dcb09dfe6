#include "partitioner/stages/stage_cutter.h"

#include <algorithm>

#include "base/cat.h"
#include "base/status.h"

namespace partita {

// The terms of a partial sum which its stages here have: with each micro-batch every stage's own, afterwards
// one.
void StageCutter::copy_terms(const Node& node) {
  std::set<int> mine;
  for (int stage : stages_.terms[node.outputs[0]]) {
    if (is_here(stage)) mine.insert(stage);
  }
  if (!with_each_micro_batch(node.segment)) return mine.empty() ? void() : copy_term(node, mine);
  for (int stage : mine) copy_term(node, {stage});
}

// The term of `stages`: operands of other stages count as zero in it.
void StageCutter::copy_term(const Node& node, const std::set<int>& stages) {
  const std::set<int>& terms = stages_.terms[node.outputs[0]];
  chunk_ = term_chunk(node.outputs[0], *stages.begin());
  size_t partial = 0;
  while (value_stage_[node.inputs[partial]] == kAnywhere) ++partial;
  std::vector<bool> summed = summed_operands(graph_, node, partial);
  std::vector<ValueId> inputs;
  for (size_t k = 0; k < node.inputs.size(); ++k) {
    ValueId v = node.inputs[k];
    bool own = node.op->sums_micro_batches || stages.count(value_stage_[v]) > 0 ||
               (value_stage_[v] == kPartial && !own_stages(v, stages).empty()) ||
               (value_stage_[v] == kAnywhere && (!summed[k] || stages.count(*terms.begin()) > 0));
    at(node);
    inputs.push_back(own ? term_of(v, stages) : b_.full(graph_.type(v).dtype, graph_.type(v).shape, 0));
  }
  emit(node, std::move(inputs));
  own_terms_[{node.outputs[0], chunk_}] = here(node.outputs[0]);
  here(node.outputs[0]) = kNoValue;  // as long as it is not complete
}

std::set<int> StageCutter::own_stages(ValueId v, const std::set<int>& stages) const {
  std::set<int> own;
  for (int stage : stages_.terms[v]) {
    if (stages.count(stage) > 0) own.insert(stage);
  }
  return own;
}

// A value as a term of `stages` has it: of a sum, their own terms.
ValueId StageCutter::term_of(ValueId v, const std::set<int>& stages) {
  return value_stage_[v] == kPartial ? own_sum(v, own_stages(v, stages)) : value_of(v);
}

// The sum of the terms that the pipeline's stage has here, of some of its stages of the assignment.
ValueId StageCutter::own_sum(ValueId v, const std::set<int>& stages) {
  ValueId sum = kNoValue;
  std::set<int> chunks;
  for (int stage : stages) {
    if (!is_here(stage) || !chunks.insert(term_chunk(v, stage)).second) continue;
    ValueId term = own_terms_.at({v, term_chunk(v, stage)});
    sum = sum == kNoValue ? term : b_.add(sum, term);
  }
  return sum;
}

// Sums become whole where they are first read for what they are: scalars on every stage, by all of them together.
void StageCutter::complete_inputs(const Node& node) {
  for (ValueId v : node.inputs) {
    if (v != kNoValue && value_stage_[v] == kPartial) complete(v, node.segment);
  }
}

void StageCutter::complete(ValueId v, Segment segment) {
  int home = stages_.home[v];
  if (!completed_.insert(v).second || (home >= 0 && !is_here(home))) return;
  at(v, segment);
  ValueId sum = own_sum(v, stages_.terms[v]);
  if (home < 0) {
    const std::vector<int> along = whole_.mesh.irregular();
    Attrs attrs = group(along);
    attrs.set("reduce", std::string("sum"));
    if (sum == kNoValue) sum = b_.full(graph_.type(v).dtype, graph_.type(v).shape, 0);
    PARTITA_CHECK(along.empty() || elements(b_.shape(sum)) == 1, "a sum over stages that may lie in parts");
    for (int a : along) {  // one of those that have the same counts
      if (!has_axis(a)) continue;
      ValueId first = b_.emit("eq", {coordinate(a), b_.scalar(DType::kI64, 0)});
      sum = b_.select(first, sum, b_.scalar(b_.dtype(sum), 0));
    }
    sum = b_.emit("all_reduce", {sum}, std::move(attrs));
  } else {
    for (ValueId term : received_[v]) sum = sum == kNoValue ? term : b_.add(sum, term);
  }
  here(v) = sum;
}

}  // namespace partita
