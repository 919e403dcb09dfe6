#include "runtime/program/tree_sums.h"

#include <algorithm>
#include <bit>

#include "runtime/program/params.h"

namespace partita::runtime {

int64_t tree_levels_between(int64_t terms) {
  return std::max<int64_t>(std::bit_width(static_cast<uint64_t>(terms)) - 2, 0);
}

int64_t branch_bytes(const Program& program) {
  int64_t bytes = 0;
  for (const ProgramSegment& segment : program.segments) {
    for (const Step& step : segment.steps) {
      if (step.name != "accumulate_tree" || step.operands.empty()) continue;
      int64_t sum = dtype_size(step.operands[0].dtype);
      for (int64_t n : step.operands[0].shape) sum *= n;
      bytes += sum * tree_levels_between(int_param(step.params, "micro_batches", 1));
    }
  }
  return bytes;
}

bool adds_up_ranks(const Step& step) {
  return step.kind == StepKind::kCollectiveStart && (step.name == "all_reduce" || step.name == "reduce_scatter") &&
         text_param(step.params, "reduce", "sum") == "sum" && !step.operands.empty() &&
         is_float(step.operands[0].dtype);
}

}  // namespace partita::runtime
