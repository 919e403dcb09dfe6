#include "partitioner/planner/cost/memory/program_memory.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "base/cat.h"

namespace partita {
namespace {

constexpr double kF32 = 4;  // bytes

double here(const TensorParts& parts, const UnitWork& u, const Layout& l) {
  const double tensor = static_cast<double>(l.tensor);
  return parts[0] / tensor + parts[1] * (l.sequence_parallel && u.sequence ? 1 / tensor : 1);
}

// What blocks make again of their values, one block at a time, and what comes for them from the host and goes there.
class ComputedAgain {
 public:
  // Units of all micro-batches in flight with a mode, what each keeps for backward, and what one of them makes again.
  void add(const UnitWork& unit, RecomputeMode mode, double units, const KeptBytes& kept, double again) {
    Blocks& to = modes_[static_cast<size_t>(mode)];
    if (mode > RecomputeMode::kSelective) to.again = std::max(to.again, again);
    if (unit.is_block()) to.count += units, all_ += units;
    to.of_one = std::max(to.of_one, kept.for_backward);
    to.kept += units * kept.on_device, kept_of_blocks_ += unit.is_block() ? units * kept.on_device : 0;
  }

  // Bytes beyond the `kept` ones of the whole stage. A stage computes its first blocks again, as far as it does, those
  // that wait on the host and those in full before others (stage_recompute.cc): what later blocks kept is free by then.
  // In a pipeline it is not, as slots are for nothing else.
  double beyond(double kept, const Layout& l) const {
    return most(kept, l, [&](const Blocks& b) { return b.again + moving(b, l); });
  }
  // Of them, what is on its way beside the loss, which keeps its own: where the last blocks wait on the host, as much
  // still goes down there as comes up already (programs that were allocated have it so; in pipelines once).
  double moving(const Layout& l) const {
    const double once = most(kept_of_blocks_, l, [&](const Blocks& b) { return moving(b, l); });
    if (l.pipeline > 1) return once;
    double of_one = 0;
    for (const Blocks& b : modes_) of_one = std::max(of_one, b.of_one);
    const double all = (of_one * all_ - kept_of_blocks_) / static_cast<double>(l.overlapped());
    return std::min(2 * once, std::max(once, all));
  }

 private:
  struct Blocks {
    double count = 0, kept = 0, again = 0;
    double of_one = 0;  // where they wait on the host
  };

  // While the first comes up, the block behind it, which may be kept, is at work. In a pipeline that has a slot.
  double moving(const Blocks& b, const Layout& l) const {
    return b.of_one * blocks_on_their_way(l, l.pipeline > 1 ? b.count : all_);
  }

  template <typename Needed>
  double most(double kept, const Layout& l, Needed needed) const {
    double most = 0, so_far = 0;
    for (size_t mode = kRecomputeModes; mode-- > 0;) {
      so_far += modes_[mode].kept;
      const double bytes = needed(modes_[mode]);
      if (bytes > 0) most = std::max(most, l.pipeline > 1 ? bytes : so_far + bytes - kept);
    }
    return most;
  }

  std::array<Blocks, kRecomputeModes> modes_{};
  double all_ = 0, kept_of_blocks_ = 0;  // blocks, and bytes
};

// Of a sample's largest attention on a rank, 2 bytes a score.
double score_bytes(const UnitWork& u, const Layout& l) {
  double most = 0;
  for (const AttentionWork& a : u.attention) {
    most = std::max(most, 2 * a.heads / a.ranks(static_cast<double>(l.tensor)) * a.queries * a.keys);
  }
  return most;
}

// Elements of a sample's keys and values that other ranks of the context axis have sent and backward reads, beside the
// rank's own: kept where what reads them is not computed again.
double others_keys(const UnitWork& u, const Layout& l, RecomputeMode mode) {
  if (l.context == 1) return 0;
  const Share share = share_on_rank(l);
  double elements = 0;
  for (const AttentionWork& a : u.attention) {
    if (((a.again | a.operands_again) & mode_bit(mode)) != 0) continue;
    elements += 2 * a.key_heads / a.ranks(share.tensor) * a.keys * a.head_size * a.count * (keys_on_rank(a, share) - 1);
  }
  return elements;
}

}  // namespace

double kept_bytes(const UnitWork& u, const Problem& problem, const Layout& l, RecomputeMode mode) {
  const Workload& w = *problem.workload;
  const double samples = local_samples(w, l);
  if (on_device(mode) == RecomputeMode::kFull) return here({0, u.input_bytes}, u, l) * samples;
  const size_t known = static_cast<size_t>((w.recomputes & mode_bit(mode)) != 0 ? mode : RecomputeMode::kNone);
  TensorParts parts = u.kept[known];
  const TensorParts& rows = u.rows_kept[known];
  for (size_t k = 0; k < parts.size(); ++k) parts[k] += rows[k] * static_cast<double>(l.expert - 1);
  return (here(parts, u, l) + u.heads_bytes * u.share_beyond(static_cast<double>(l.tensor)) +
          others_keys(u, l, mode) * problem.options.element_bytes()) *
         samples;
}

absl::Status take_kept(Workload& w, const Workload& program, RecomputeMode mode) {
  if (w.units.size() != program.units.size())
    return absl::InternalError(
        cat("the model as it is compiled has ", program.units.size(), " units, expected ", w.units.size()));
  for (size_t k = 0; k < w.units.size(); ++k) {
    UnitWork& to = w.kinds[static_cast<size_t>(w.units[k])];
    const UnitWork& from = program.unit(k);
    constexpr size_t kAsIs = static_cast<size_t>(RecomputeMode::kNone);
    to.kept[static_cast<size_t>(mode)] = from.kept[kAsIs],
    to.rows_kept[static_cast<size_t>(mode)] = from.rows_kept[kAsIs];
    if (mode != RecomputeMode::kNone) continue;
    to.heads_bytes = from.heads_bytes, to.input_bytes = from.input_bytes, to.read_as_stored = from.read_as_stored;
    // Bytes of the program, divided as in the plain graph: what composites become has factors that do not divide.
    const double bytes = from.frozen_bytes[0] + from.frozen_bytes[1], elements = to.frozen[0] + to.frozen[1];
    for (size_t part : {0, 1}) to.frozen_bytes[part] = elements > 0 ? to.frozen[part] * bytes / elements : 0;
  }
  if (mode == RecomputeMode::kNone) w.crossing = program.crossing;
  if (mode != RecomputeMode::kNone) w.recomputes |= mode_bit(mode);
  return absl::OkStatus();
}

// The peak of a step is at the end of a micro-batch's forward part or in its backward part; where no gradients are
// summed up over micro-batches, or they are scaled before the host has them, perhaps in the update, with all of them
// there.
MemoryUse program_memory(const Problem& problem, const DeviceProfile& device, const Layout& l, const StageUnits& stage,
                         double in_flight) {
  const Workload& w = *problem.workload;
  const double element = problem.options.element_bytes(), tensor = static_cast<double>(l.tensor);
  const bool mixed = kF32 > element;
  const bool sums = micro_batches(problem, l) > 1 && l.schedule != PipelineSchedule::kPipedream;  // which updates each
  const double samples = local_samples(w, l);
  MemoryUse m;
  double frozen_bytes = 0, read_as_stored = 0, largest_unit = 0, largest_gathered = 0, gathered = 0, working = 0,
         in_block = 0, message = 0, scores = 0;
  ComputedAgain again;
  for (size_t k = 0; k < stage.counts.size(); ++k) {
    const double n = stage.counts[k];
    if (n == 0) continue;
    const UnitWork& u = w.kinds[k];
    auto [dense, expert] = local_parameters(u, l);
    largest_unit = std::max(largest_unit, dense + expert);
    read_as_stored += n * (u.read_as_stored[0] / tensor + u.read_as_stored[1]);
    const double frozen = local_frozen(u, l);
    const double whole = dense + expert + (l.zero >= 3 ? frozen : 0);
    largest_gathered = std::max(largest_gathered, whole), gathered += n * whole;
    frozen_bytes += n * (u.frozen_bytes[0] / tensor + u.frozen_bytes[1]);
    const double all = kept_bytes(u, problem, l, RecomputeMode::kNone);
    for_each_mode(stage, k, u, l, [&](RecomputeMode said, double units) {
      const RecomputeMode mode = mode_on(device, said);
      const KeptBytes kept = kept_on_rank(u, problem, device, l, mode, puts_off(stage.first, l));
      m.activations += units * in_flight * kept.on_device;
      again.add(u, mode, units * in_flight, kept,
                on_device(mode) == RecomputeMode::kFull ? all : all - kept_bytes(u, problem, l, mode));
    });
    if (l.pipeline > 1) message = std::max(message, here({0, u.input_bytes}, u, l) * samples);
    // A value and its gradient, which takes the logits' place; in a block beside what is computed again.
    const double largest = u.largest * samples * element / (u.largest_split ? tensor : 1) *
                           static_cast<double>(u.largest_rows ? l.expert : 1);
    if (mixed && problem.options.flash) scores = std::max(scores, score_bytes(u, l) * samples);
    double& most = u.is_block() ? in_block : working;
    most = std::max(most, (u.is_block() ? 2 : 1) * largest);
  }
  working = std::max(working + again.moving(l), in_block + again.beyond(m.activations, l));
  const double tied = tied_parameters(w, stage, l);
  const ShardedParameters p(w, stage, l);
  const bool host_parameters = l.offload == OffloadMode::kAll;
  const double on_host = l.offload == OffloadMode::kNone ? 0 : l.offload_fraction;
  const bool gathers = l.zero >= 1 || host_parameters, each_pass = l.zero >= 3 && l.reshard_after_forward;
  m.parameters = host_parameters ? 0 : kF32 * p.stored(1) + frozen_bytes / (l.zero >= 3 ? p.group() : 1);
  const double copies = mixed ? element * (each_pass ? p.stored(3) : p.all()) : 0;
  m.parameters += copies;
  if (gathers && !each_pass) m.parameters += mixed ? kF32 * read_as_stored : kF32 * p.all();
  if (l.zero >= 3 && !each_pass && p.group() > 1) m.parameters += frozen_bytes;  // gathered for the whole step
  m.stash = stashed_versions(l, in_flight) * p.stored(3) * element;
  m.gradients = (sums ? kF32 * (p.stored(2) + tied) : 0) + remainder_bytes(problem, l, p);
  m.optimizer = (1 - on_host) * w.optimizer_bytes * p.stored(1);
  m.transient = working + largest_unit * element + std::min(scores, device.attention_scratch_bytes);
  // What lives from one turn to the next, of all that take turns.
  m.transient += static_cast<double>(l.overlapped() - 1) * working;
  // What is computed with, and what waits for its turn.
  if (each_pass)
    m.transient += std::min(static_cast<double>(1 + l.prefetched()) * largest_gathered, gathered) * element *
                   static_cast<double>(l.overlapped());
  // Parts that are gathered for the whole step lie beside what they are gathered to as it begins, with room for the
  // values of all micro-batches; a message waits in a place of its own, one each way.
  if (l.zero >= 1 && p.group() > 1 && !each_pass && mixed)
    m.transient = std::max(m.transient, element * p.stored(1) - (l.pipeline > 1 ? 0 : m.activations));
  // What an earlier stage has of tied weights comes as it is stored; their gradient goes back there.
  m.transient += 2 * message + tied * (kF32 + (mixed ? element : 0));
  // Gradients that are scattered in backward wait for their bucket to be full.
  if (l.zero >= 2 && p.group() > 1) {
    const double bucket = static_cast<double>(l.buckets.bytes(std::llround(p.group())));
    m.transient += std::max(0., std::min(bucket, element * p.all()) - largest_unit * element);
  }
  // In the update copies of the weights are gone.
  const double scaled = !sums ? 1 : problem.clip ? on_host : 0;  // on their way to the host
  if (scaled > 0) m.transient = std::max(m.transient, scaled * kF32 * p.stored(2) - m.activations - copies);
  m.reserve = device.reserve_bytes;
  // Beside groups along its axes, a program has one of all its stage's ranks (for the norm of all gradients) where more
  // than one axis divides them, and one of a rank from each stage; the last stage tells the others the loss.
  LayoutCommunicators c = communicators(l);
  const bool tensor_and_others = l.tensor > 1 && l.data * l.context * l.expert > 1;
  c.groups += (tensor_and_others && (l.zero >= 1 || l.sequence_parallel) ? 1 : 0) + (l.pipeline > 1 ? 1 : 0);
  c.receives += l.pipeline > 2 ? 1 : 0;
  m.communicators = device.beyond_reserve(c.groups, c.sends, c.receives);
  return m;
}

}  // namespace partita
