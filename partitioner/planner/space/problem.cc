#include "partitioner/planner/space/problem.h"

#include <algorithm>

#include "base/cat.h"
#include "partitioner/layout/batch_plan.h"
#include "partitioner/layout/fixed_parts.h"

namespace partita {

int64_t block_count(const Workload& w) {
  int64_t n = 0;
  for (size_t k = 0; k < w.units.size(); ++k) n += w.unit(k).is_block();
  return std::max<int64_t>(1, n);
}

int64_t micro_batches(const Problem& problem, const Layout& l) {
  int64_t step = l.data * l.expert * l.micro_batch;
  return step > 0 && problem.global_batch % step == 0 ? problem.global_batch / step : 0;
}

namespace {

std::string in_parts(const Problem& problem, int64_t own, int64_t micro) {
  return cat("a rank computes its ", own, " samples of a run at once, not in micro-batches of ", micro, ": ",
             problem.workload->whole_runs);
}

// Why the ranks cannot cut the runs of the model into such micro-batches; empty where they can. A file with a fixed
// batch takes so many samples at a time, any other all of them.
std::string misfit(const Problem& problem, const Layout& l) {
  // In fixed parts the model is made for all samples of a step.
  const int64_t samples = problem.reproducible ? 0 : problem.workload->exported_batch, ranks = l.data * l.expert;
  if (samples != 0 && problem.global_batch % samples != 0)
    return cat("a global batch of ", problem.global_batch, " is not a multiple of the ", samples,
               " samples that the model file takes at a time");
  if (problem.workload->whole_batches) {
    const int64_t run = samples == 0 ? problem.global_batch : samples;
    if (ranks * l.micro_batch == run) return "";
    return cat("batch statistics need a run's ", run, " samples on all ranks at once, found ", ranks,
               " ranks with a micro-batch of ", l.micro_batch);
  }
  if (samples == 0) {
    const int64_t own = problem.global_batch / ranks;
    return problem.workload->whole_runs.empty() || own == l.micro_batch ? "" : in_parts(problem, own, l.micro_batch);
  }
  const int64_t runs = problem.global_batch / samples;
  for (int64_t slices = std::min(ranks, runs); slices >= 1; --slices) {
    auto shares = [&](const Layout::StageAxes& s) {
      return shares_runs(s.data * s.expert, s.expert, slices, runs, samples);
    };
    if (!shares({.data = l.data, .expert = l.expert}) || !std::all_of(l.stages.begin(), l.stages.end(), shares))
      continue;
    const int64_t own = samples / (ranks / slices);
    if (!problem.workload->whole_runs.empty() && own != l.micro_batch) return in_parts(problem, own, l.micro_batch);
    if (own % l.micro_batch == 0) return "";
    return cat("the model file takes ", samples, " samples at a time, ", own, " of them on a rank: not a multiple of ",
               "micro-batch ", l.micro_batch);
  }
  return cat("data ", l.data, " x expert ", l.expert, " cannot divide ", runs, " runs of the model file's ", samples,
             " samples");
}

}  // namespace

std::string invalid(const Problem& problem, const Layout& l) {
  const Workload& w = *problem.workload;
  if (l.ranks() != problem.devices()) return cat("uses ", l.ranks(), " of ", problem.devices(), " devices");
  int64_t m = micro_batches(problem, l);
  if (const int64_t ranks = l.data * l.expert; problem.global_batch % ranks != 0) {
    const int64_t less = problem.global_batch / ranks * ranks;
    return cat("a global batch of ", problem.global_batch, " cannot be shared by ", ranks, " data-parallel ranks; ",
               less > 0 ? cat(less, " and ") : "", less + ranks, " can");
  }
  if (const int64_t ranks = l.data * l.expert; l.zero > 0 && l.zero_group > 0 && ranks % l.zero_group != 0)
    return cat("zero_group ", l.zero_group, " does not divide ", ranks, " data-parallel ranks");
  if (const int64_t ranks = l.data * l.expert; l.hierarchical_group > 0 && ranks % l.hierarchical_group != 0)
    return cat("hierarchical_group ", l.hierarchical_group, " does not divide ", ranks, " data-parallel ranks");
  if (l.hierarchical_group > 0 && problem.compress != Compression::kNone)
    return "hierarchical_group goes without compress";
  if (problem.reproducible) {
    if (std::string why = why_other_sums(*problem.reproducible, l); !why.empty()) return "reproducible: " + why;
  }
  if (m == 0)
    return cat("a global batch of ", problem.global_batch, " is not a multiple of data ", l.data, " x expert ",
               l.expert, " x micro-batch ", l.micro_batch);
  if (problem.accumulation && m != *problem.accumulation)
    return cat("batch.accumulation asks for ", *problem.accumulation, " micro-batches, found ", m);
  for (const ShorterSamples& s : problem.shorter) {
    if (l.micro_batch * problem.length % s.length != 0)
      return cat("a micro-batch of ", l.micro_batch, " of length ", problem.length,
                 " is no whole number of samples of length ", s.length);
  }
  int64_t n = block_count(w);
  if (l.cut_names.empty() && l.pipeline * l.interleave > std::max<int64_t>(n, 1) && l.pipeline > 1)
    return cat("pipeline ", l.pipeline, " x interleave ", l.interleave, " needs as many blocks; the model has ", n);
  for (const Layout::StageAxes& stage : l.stages) {
    if (l.micro_batch * l.data * l.expert % (stage.data * stage.expert) != 0)
      return cat("a micro-batch has ", l.micro_batch * l.data * l.expert, " samples, and a stage has ",
                 stage.data * stage.expert, " ranks that share them");
  }
  if (l.overlapped() > 1 && m < 2) return cat("overlap_micro_batches needs at least 2 micro-batches a rank, found ", m);
  if (l.schedule == PipelineSchedule::kInterleaved && l.interleave > 1 && m % (l.pipeline * l.overlapped()) != 0)
    return cat("interleaving needs micro-batches (", m, ") in a multiple of the stages (", l.pipeline, ")",
               l.overlapped() > 1 ? cat(" and of those that take turns (", l.overlapped(), ")") : "");
  if (l.schedule == PipelineSchedule::kPipedream) {
    if (l.pipeline == 1) return "pipedream needs at least 2 stages";
    if (l.overlapped() > 1) return "pipedream goes without overlap_micro_batches";
    if (problem.clip) return "pipedream goes without clip_grad_norm";
    if (problem.options.precision == Precision::kFp16) return "pipedream goes without fp16's loss scale; use bf16";
    if (problem.skips) return "pipedream goes without run.on_nonfinite: skip";
    if (problem.compress != Compression::kNone) return "pipedream goes without compress";
    if (l.offload != OffloadMode::kNone) return "pipedream goes without offload";
  }
  return misfit(problem, l);
}

}  // namespace partita
