#include "runtime/device/attention_scratch.h"

#include <algorithm>
#include <vector>

#include "runtime/program/params.h"

namespace partita::runtime {
namespace {

struct Sizes {
  int64_t batch = 0, heads = 0, kv_heads = 0, s = 0, t = 0, d = 0, e = 0;
};

// Of g, q, k, v: by the step's parameters, or dense (AttentionShape::make).
Sizes sizes_of(const Step& step) {
  const std::vector<int64_t> z = ints_param(step.params, "sizes", {});
  if (z.size() == 7) return {z[0], z[1], z[2], z[3], z[4], z[5], z[6]};
  const std::vector<int64_t>&q = step.operands[1].shape, &k = step.operands[2].shape, &v = step.operands[3].shape;
  if (q.size() != 4 || k.size() != 4 || v.size() != 4) return {};
  return {q[0], q[1], k[1], q[2], k[2], q[3], v[3]};
}

// Where cuDNN is asked, and has a gradient (runtime/cuda/cudnn_attention.cc).
bool is_by_cudnn(const Step& step, const Sizes& z) {
  const DType dtype = step.operands[1].dtype;
  const bool masked = step.operands[4].dtype != DType::kInvalid,
             empty_rows = int_param(step.params, "causal", 0) != 0 && z.s > z.t;
  return (dtype == DType::kBF16 || dtype == DType::kF16) && !masked && !empty_rows &&
         text_param(step.params, "kernel", "auto") != "own";
}

bool keeps_scores(const std::string& target) { return target.starts_with("cuda") && !target.starts_with("cuda:sm_1"); }

}  // namespace

int64_t score_parts(int64_t batch, int64_t kv_heads, int64_t bytes, int64_t more_than) {
  for (int64_t n = more_than + 1; n <= batch * kv_heads; ++n) {
    const bool divides = batch % n == 0 || (n % batch == 0 && kv_heads % (n / batch) == 0);
    if (divides && (bytes + n - 1) / n <= kMostScoreBytes) return n;
  }
  return 0;
}

int64_t score_scratch_bytes(const Program& program) {
  int64_t most = 0;
  if (!keeps_scores(program.target)) return most;
  for (const ProgramSegment& segment : program.segments) {
    for (const Step& step : segment.steps) {
      if (step.kind != StepKind::kLibrary || step.name != "attention_grad" || step.operands.size() < 5) continue;
      const Sizes z = sizes_of(step);
      if (!is_by_cudnn(step, z)) continue;
      const int64_t bytes = 2 * z.batch * z.heads * z.s * z.t;
      if (const int64_t parts = score_parts(z.batch, z.kv_heads, bytes); parts > 0)
        most = std::max(most, bytes / parts);
    }
  }
  return most;
}

}  // namespace partita::runtime
