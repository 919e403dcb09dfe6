#include "partitioner/planner/cost/memory/memory_model.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>

#include "partitioner/planner/cost/memory/program_memory.h"

namespace partita {
namespace {

double whole_share(const UnitWork& u, const Layout& l) {
  return l.sequence_parallel && u.sequence ? 1 / static_cast<double>(l.tensor) : 1;
}

}  // namespace

double local_frozen(const UnitWork& u, const Layout& l) {
  return u.frozen[0] / static_cast<double>(l.tensor) + u.frozen[1];
}

std::array<double, 2> local_parameters(const UnitWork& u, const Layout& l) {
  double t = static_cast<double>(l.tensor);
  double total = u.parameters[0] + u.parameters[1];
  double expert_share = total > 0 ? std::min(1.0, u.expert_parameters / total) : 0;
  double split = u.parameters[0] / t + u.parameters_beyond(t), whole = u.parameters[1];
  double local = split + whole;
  return {local * (1 - expert_share), local * expert_share / static_cast<double>(l.expert)};
}

std::array<double, 2> local_parameters(const Workload& w, const StageUnits& stage, const Layout& l) {
  std::array<double, 2> sum{};
  for (size_t k = 0; k < stage.counts.size(); ++k) {
    auto [dense, expert] = local_parameters(w.kinds[k], l);
    sum[0] += stage.counts[k] * dense, sum[1] += stage.counts[k] * expert;
  }
  return sum;
}

double saved_bytes(const UnitWork& u, const Problem& problem, const DeviceProfile& device, const Layout& l,
                   RecomputeMode mode) {
  const double samples = local_samples(*problem.workload, l);
  double element = problem.options.element_bytes(), whole = whole_share(u, l), t = static_cast<double>(l.tensor);
  if (on_device(mode) == RecomputeMode::kFull) return u.input * element * whole * samples;
  auto here = [&](const TensorParts& p) { return p[0] / t + p[1] * whole; };
  double bytes = here(u.saved) * element + here(u.saved_bytes);
  if (element < 4) bytes += here(u.composed) * device.software.composed_saved_bytes;
  if (!problem.options.flash && mode != RecomputeMode::kSelective) {
    for (const AttentionWork& a : u.attention) {
      bytes += a.count * a.heads / a.ranks(t) * a.queries * a.keys * element * device.software.math_score_bytes;
    }
  }
  return bytes * samples;
}

double in_flight(const Problem& problem, const Layout& whole, int64_t stage) {
  if (const int64_t turns = whole.overlapped(); turns > 1) {  // of groups that take turns
    Layout l = whole;
    l.overlap_micro_batches = 1, l.micro_batch *= turns;
    return static_cast<double>(turns) * std::max(1., in_flight(problem, l, stage));
  }
  const Layout& l = whole;
  if (l.pipeline == 1) return 1;
  double p = static_cast<double>(l.pipeline), v = static_cast<double>(l.interleave),
         all = static_cast<double>(micro_batches(problem, l));
  if (l.schedule == PipelineSchedule::kGpipe) return all;
  if (l.schedule == PipelineSchedule::kZeroBubble) return std::min(all, p);  // until the gradients of weights are there
  if (l.schedule == PipelineSchedule::kInterleaved && l.interleave > 1)
    return std::min(all * v, 2 * (p - static_cast<double>(stage) - 1) + (v - 1) * p + 1) / v;
  return std::min(all, p - static_cast<double>(stage));
}

RecomputeMode mode_on(const DeviceProfile& device, RecomputeMode mode) {
  return device.has_host() ? mode : on_device(mode);
}

KeptBytes kept_on_rank(const UnitWork& u, const Problem& problem, const DeviceProfile& device, const Layout& l,
                       RecomputeMode mode, bool apart) {
  const bool own = problem.own_programs;  // other software keeps what gradients are of beside the rest
  const double kept = own ? kept_bytes(u, problem, l, mode) : saved_bytes(u, problem, device, l, mode),
               operands = apart && own ? operand_bytes(u, problem, l) : 0,
               put_off = apart ? put_off_bytes(u, problem, l) : 0;
  if (!waits_on_host(mode)) return {.on_device = own ? std::max(kept, operands + put_off) : kept + put_off};
  // What is computed again is there for the gradients of weights, too.
  const bool again = on_device(mode) == RecomputeMode::kFull;
  return {.on_device = put_off + (again ? operands : 0),
          .on_host = kept + (again ? 0 : operands),
          .for_backward = kept,
          .for_weights = again ? 0 : operands};
}

double blocks_on_their_way(const Layout& l, double held) {
  return std::min(2.0, held / static_cast<double>(l.overlapped()));
}

bool puts_off(bool first, const Layout& l) {
  return l.schedule == PipelineSchedule::kZeroBubble && l.pipeline > 1 && !first;
}

Share share_on_rank(const Layout& l) {
  return {.samples = static_cast<double>(l.micro_batch),
          .context = static_cast<double>(l.context),
          .tensor = static_cast<double>(l.tensor),
          .expert = static_cast<double>(l.expert),
          .sequence_parallel = l.sequence_parallel};
}

double local_samples(const Workload& w, const Layout& l) {
  const double samples = static_cast<double>(l.micro_batch);
  return w.sequence > 1 ? samples / static_cast<double>(l.context) : samples;
}

double put_off_bytes(const UnitWork& u, const Problem& problem, const Layout& l) {
  double elements = 0;
  for (const MatrixWork& w : u.matrices) {
    const double result = w.weight ? w.batch * w.m * w.n * w.count : 0;
    if (!u.is_block() && result == u.largest) continue;
    elements += w.split == 0 || w.split == 'k' ? result : result / static_cast<double>(l.tensor);
  }
  return elements * local_samples(*problem.workload, l) * problem.options.element_bytes();
}

double operand_bytes(const UnitWork& u, const Problem& problem, const Layout& l) {
  double elements = 0;
  for (const MatrixWork& w : u.matrices) {
    const double operand = w.weight && !w.shares ? w.batch * w.m * w.k * w.count : 0;
    elements += w.split == 'k' ? operand / static_cast<double>(l.tensor) : operand;
  }
  return elements * local_samples(*problem.workload, l) * problem.options.element_bytes();
}

double stashed_versions(const Layout& l, double in_flight) {
  return l.schedule == PipelineSchedule::kPipedream && in_flight > 1 ? in_flight : 0;
}

double tied_parameters(const Workload& w, const StageUnits& stage, const Layout& l) {
  double sum = 0;
  for (size_t k = 0; l.pipeline > 1 && k < stage.counts.size(); ++k) {
    const TensorParts& tied = w.kinds[k].tied;
    sum += stage.counts[k] * (tied[0] / static_cast<double>(l.tensor) + tied[1]);
  }
  return sum;
}

ShardedParameters::ShardedParameters(const Workload& workload, const StageUnits& stage, const Layout& l, double copied)
    : zero_(l.zero) {
  const auto [dense, expert] = local_parameters(workload, stage, l);
  dense_ = dense + copied, expert_ = expert;
  group_ = static_cast<double>(l.data * l.expert * l.context);
  if (l.zero_group > 0) group_ = std::min(group_, static_cast<double>(l.zero_group * l.context));
  expert_group_ = std::max(1.0, group_ / static_cast<double>(l.expert));
}

double remainder_bytes(const Problem& problem, const Layout& l, const ShardedParameters& p) {
  double bytes = problem.compress > Compression::kBf16 ? 4 * p.all() : 0;
  if (problem.compress == Compression::kInt8 && l.zero == 0) bytes += 4 * p.shard();
  return bytes;
}

MemoryUse stage_memory(const Problem& problem, const DeviceProfile& device, const Layout& l, const StageUnits& stage,
                       double in_flight) {
  if (problem.own_programs) return program_memory(problem, device, l, stage, in_flight);
  const Workload& w = *problem.workload;
  const SoftwareProfile& software = device.software;
  MemoryUse m;
  double element = problem.options.element_bytes();
  bool mixed = element < 4;
  double largest_unit = 0, largest_gathered = 0, largest_saved = 0, logits = 0;
  double frozen = 0;                        // elements, held in the compute precision
  double waiting = 0, largest_waiting = 0;  // on the host: blocks, and bytes of one
  for (size_t k = 0; k < stage.counts.size(); ++k) {
    double n = stage.counts[k];
    if (n == 0) continue;
    const UnitWork& u = w.kinds[k];
    auto [d, e] = local_parameters(u, l);
    largest_unit = std::max(largest_unit, d + e);
    const double untrained = local_frozen(u, l);
    frozen += n * untrained;
    const bool whole = l.zero < 3 && l.offload != OffloadMode::kAll;
    largest_gathered = std::max(largest_gathered, d + e + (whole ? 0 : untrained));
    const double put_off = puts_off(stage.first, l) ? put_off_bytes(u, problem, l) : 0;
    for_each_mode(stage, k, u, l, [&](RecomputeMode said, double units) {
      const RecomputeMode mode = mode_on(device, said);
      const double saved = saved_bytes(u, problem, device, l, mode);
      m.activations += units * ((waits_on_host(mode) ? 0 : saved) + put_off) * in_flight;
      if (waits_on_host(mode)) {
        largest_waiting = std::max(largest_waiting, saved), waiting += units * in_flight;
      }
      if (on_device(mode) == RecomputeMode::kFull)
        largest_saved = std::max(largest_saved, saved_bytes(u, problem, device, l, RecomputeMode::kNone));
    });
    const double samples = local_samples(w, l);
    double split = u.largest_split ? static_cast<double>(l.tensor) : 1;
    double each = u.is_block() ? 2 * element / split  // of the largest value and its gradient
                  : split > 1  ? software.gathered_logit_bytes
                               : software.logit_bytes;
    logits = std::max(logits, u.largest * samples * each);
  }
  // Software keeps a copy of tied weights on either stage.
  const ShardedParameters p(w, stage, l, tied_parameters(w, stage, l));
  bool host_states = l.offload != OffloadMode::kNone, host_parameters = l.offload == OffloadMode::kAll;
  m.parameters = host_parameters ? 0 : (p.stored(3) + frozen / (l.zero >= 3 ? p.group() : 1)) * element;
  m.stash = stashed_versions(l, in_flight) * p.stored(3) * element;
  double gradient = mixed ? software.gradient_bytes : 4;
  // Without its states a rank still has the weights in f32, and sums gradients up in f32.
  const bool host_moments = l.offload == OffloadMode::kOptimizer, sums = micro_batches(problem, l) > 1;
  const double on_host = host_states ? l.offload_fraction : 0;
  m.gradients = p.stored(2) * (on_host * (host_moments && sums ? 4 : element) + (1 - on_host) * gradient);
  m.gradients += remainder_bytes(problem, l, p);
  // Sums in a fixed order keep those of branches, one for each level of the tree but the lowest and the last.
  const auto terms = static_cast<uint64_t>(problem.reproducible ? micro_batches(problem, l) : 1);
  if (terms > 2) m.gradients += p.stored(2) * 4 * static_cast<double>(std::bit_width(terms) - 2);
  double states = w.optimizer_bytes + (mixed ? 4 : 0);
  m.optimizer = p.stored(1) * (on_host * (host_moments && mixed ? 4 : 0) + (1 - on_host) * states);
  // Gathered: one unit that is computed with and the next, or all of them for the whole step.
  bool kept = l.zero >= 3 && !l.reshard_after_forward;
  if (l.zero >= 3 || host_parameters) m.transient += (kept ? p.all() + frozen : 2 * largest_gathered) * element;
  if (l.zero >= 2) m.transient += largest_unit * gradient;
  m.transient += logits;
  m.transient += largest_saved + largest_waiting * blocks_on_their_way(l, waiting);
  m.reserve = device.reserve_bytes + software.fragmentation * (m.activations + m.transient);
  const LayoutCommunicators c = communicators(l);
  m.communicators = device.beyond_reserve(c.groups, c.sends, c.receives);
  return m;
}

// Groups along tensor, context and expert, of all ranks with samples (gradients), of those that share an expert's
// weights, and in two levels where a group of them shares a sharded copy. A stage sends to the next and to the one
// before, and receives from both.
LayoutCommunicators communicators(const Layout& l) {
  const unsigned tensor = l.tensor > 1 ? 1 : 0, context = l.context > 1 ? 2 : 0, expert = l.expert > 1 ? 4 : 0,
                 data = l.data > 1 ? 8 : 0;
  unsigned groups = 0;  // a bit for each set of axes
  for (unsigned axes : {tensor, context, expert, context | expert | data, expert ? context | data : 0})
    groups |= axes ? 1u << axes : 0;
  const bool levels = l.zero_group > 1 && l.zero_group < l.sample_ranks();
  const int neighbours = l.pipeline == 1 ? 0 : l.pipeline == 2 && l.interleave == 1 ? 1 : 2;
  return {std::popcount(groups) + levels, neighbours, neighbours};
}

}  // namespace partita
