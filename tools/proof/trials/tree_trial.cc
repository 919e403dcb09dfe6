#include "tools/proof/trials/tree_trial.h"

#include <utility>

#include "ir/op/op_def.h"
#include "ir/type/literal.h"
#include "runtime/program/params.h"
#include "runtime/program/program_check.h"

namespace partita {
namespace {

// As the type holds it. The sum of two numbers of 32 bits or fewer is rounded twice, which changes nothing.
double rounded(DType type, double x) { return element_f(scalar_literal(type, x), 0); }

}  // namespace

TreeTrial::TreeTrial(const runtime::Step& step, std::vector<int64_t> elements)
    : result_(step.operands.back()),
      terms_(runtime::int_param(step.params, "micro_batches", 1)),
      elements_(std::move(elements)) {}

bool TreeTrial::is_tree(const runtime::Step& step) {
  const OpDef* op = find_op(step.name);
  return op != nullptr && op->sums_micro_batches;
}

void TreeTrial::begin(TrialMemory& memory) {
  if (!left_.empty()) memory.put(0, left_);
  const Literal term{{result_.dtype, result_.shape}, nullptr, memory.before()[1]};
  std::vector<double>& leaf = leaves_.emplace_back();
  for (int64_t k : elements_) leaf.push_back(element_f(term, k));
}

void TreeTrial::end(const TrialMemory& memory) {
  const std::byte* result = memory.now().back();
  left_.assign(result, result + runtime::operand_bytes(result_));
}

std::vector<double> TreeTrial::sums() const {
  std::vector<std::vector<double>> level = leaves_;
  for (; level.size() > 1; level.resize(level.size() / 2)) {
    for (size_t n = 0; n < level.size() / 2; ++n) {
      for (size_t k = 0; k < elements_.size(); ++k)
        level[n][k] = rounded(result_.dtype, level[2 * n][k] + level[2 * n + 1][k]);
    }
  }
  return level[0];
}

}  // namespace partita
