// Memory of one rank of a stage: states under ZeRO, gradients, what is kept for backward, transients, reserve. That of
// published software, as the device's profile describes it, or of a program compiled here (program_memory.h).
#pragma once

#include <array>
#include <string_view>
#include <utility>
#include <vector>

#include "partitioner/planner/rates/kernel_time.h"
#include "partitioner/planner/space/problem.h"

namespace partita {

struct MemoryUse {
  double parameters = 0, gradients = 0, optimizer = 0;
  double activations = 0;  // kept for backward by all micro-batches in flight
  double stash = 0;        // versions of the weights that micro-batches in flight read (pipedream)
  double transient = 0;    // gathered parameters, the loss's logits, one block's recomputed values, copies of a host's
  double reserve = 0;      // assumed: context, some communicators, workspaces, fragmentation
  double communicators = 0;  // assumed: those that the reserve has no room for

  double total() const {
    return parameters + gradients + optimizer + activations + stash + transient + reserve + communicators;
  }
};
inline constexpr std::array<std::pair<std::string_view, double MemoryUse::*>, 8> kMemoryUses = {
    {{"parameters", &MemoryUse::parameters},
     {"gradients", &MemoryUse::gradients},
     {"optimizer", &MemoryUse::optimizer},
     {"activations", &MemoryUse::activations},
     {"stash", &MemoryUse::stash},
     {"transient", &MemoryUse::transient},
     {"reserve_assumed", &MemoryUse::reserve},
     {"communicators_assumed", &MemoryUse::communicators}}};

// A share of the model: how many units of each kind stand on a rank.
struct StageUnits {
  using ByMode = std::array<int, kRecomputeModes>;
  std::vector<int> counts;  // by kind
  int units = 0;
  std::vector<ByMode> recomputed;  // by kind, of its units those with each mode; empty: all as the layout has it
  bool first = false;              // of the pipeline

  // Units of a kind with a mode. Those that are no blocks are kept.
  int with(RecomputeMode mode, size_t kind, const UnitWork& unit, const Layout& layout) const {
    if (!unit.is_block()) return mode == RecomputeMode::kNone ? counts[kind] : 0;
    if (!recomputed.empty()) return recomputed[kind][static_cast<size_t>(mode)];
    const RecomputeMode all = layout.recompute == RecomputeMode::kAuto ? RecomputeMode::kNone : layout.recompute;
    return mode == all ? counts[kind] : 0;
  }
};

// Calls visit(mode, units) for the modes that units of a kind have.
template <typename Visit>
void for_each_mode(const StageUnits& stage, size_t kind, const UnitWork& unit, const Layout& layout, Visit visit) {
  for (size_t m = 0; m < kRecomputeModes; ++m) {
    const RecomputeMode mode = static_cast<RecomputeMode>(m);
    if (const int n = stage.with(mode, kind, unit, layout); n > 0) visit(mode, static_cast<double>(n));
  }
}

// Communicators of a rank: one for each group of ranks that runs collectives, and one for each rank that it sends to or
// receives from.
struct LayoutCommunicators {
  int groups = 0, sends = 0, receives = 0;
};
LayoutCommunicators communicators(const Layout& layout);

// Bytes that one micro-batch keeps for one unit's backward on a rank, under a mode of recomputation, there or on its
// host.
double saved_bytes(const UnitWork& unit, const Problem& problem, const DeviceProfile& device, const Layout& layout,
                   RecomputeMode mode);

// What a mode is counted as: where the device is the host, on_device().
RecomputeMode mode_on(const DeviceProfile& device, RecomputeMode mode);

// Of each micro-batch that takes its turn, blocks whose values are on the device though they wait on the host: one that
// is at work, and one on its way. `held`: blocks whose values there are, of all micro-batches in flight.
double blocks_on_their_way(const Layout& layout, double held);

// Whether a stage keeps more for gradients of weights that a zero-bubble schedule puts off. The first one makes its own
// at once. What those gradients read waits for them whether it was kept or computed again.
bool puts_off(bool first, const Layout& layout);

// Of what one micro-batch keeps for one unit's backward, bytes.
struct KeptBytes {
  double on_device = 0, on_host = 0;
  double for_backward = 0, for_weights = 0;  // of the host's, what comes up for either part; some for both
};
// Under a mode that is mode_on() of the device. Where gradients of weights are put off (`apart`), what they read takes
// the place of what was kept as backward comes through the blocks; a micro-batch's slot is as large as the larger of
// the two.
KeptBytes kept_on_rank(const UnitWork& unit, const Problem& problem, const DeviceProfile& device, const Layout& layout,
                       RecomputeMode mode, bool apart);

// Bytes of one micro-batch's gradients of products' results, for the gradients of weights, where they are put off. That
// of the logits takes the logits' place.
double put_off_bytes(const UnitWork& unit, const Problem& problem, const Layout& layout);

// Bytes of what products with weights read of one micro-batch.
double operand_bytes(const UnitWork& unit, const Problem& problem, const Layout& layout);

// What a rank computes of a micro-batch, its products whole.
Share share_on_rank(const Layout& layout);
// Samples of a micro-batch on a rank: parts of them where their positions are divided.
double local_samples(const Workload& workload, const Layout& layout);

// Micro-batches whose values a stage holds at once: fractions where it holds chunks of them.
double in_flight(const Problem& problem, const Layout& layout, int64_t stage);

// Elements of a stage's parameters on a rank.
class ShardedParameters {
 public:
  // `copied`: those that the stage has of its own beside an earlier stage's (tied_parameters).
  ShardedParameters(const Workload& workload, const StageUnits& stage, const Layout& layout, double copied = 0);
  double all() const { return dense_ + expert_; }
  // Where they are stored in parts from this ZeRO stage on.
  double stored(int from) const { return zero_ >= from ? shard() : all(); }
  double shard() const { return dense_ / group_ + expert_ / expert_group_; }
  double group() const { return group_; }  // ranks that share one sharded copy

 private:
  int zero_;
  double dense_, expert_, group_, expert_group_;
};

// Remainders of compressed sums: of what a rank rounds, and of its part of the sums that are gathered.
double remainder_bytes(const Problem& problem, const Layout& layout, const ShardedParameters& parameters);

// Versions of its weights that a stage keeps beside the current ones, where `in_flight` micro-batches are in flight
// (stash_weights.h).
double stashed_versions(const Layout& layout, double in_flight);

// `in_flight`: micro-batches whose values the stage holds at once (a fraction where it holds chunks of them). Whose
// memory it is, the problem says.
MemoryUse stage_memory(const Problem& problem, const DeviceProfile& device, const Layout& layout,
                       const StageUnits& stage, double in_flight);

// Elements of a unit's frozen weights on one rank before storage sharding.
double local_frozen(const UnitWork& unit, const Layout& layout);
// Parameter elements of a unit on one rank before storage sharding: {dense, expert}.
std::array<double, 2> local_parameters(const UnitWork& unit, const Layout& layout);
// Of all units of a stage.
std::array<double, 2> local_parameters(const Workload& workload, const StageUnits& stage, const Layout& layout);
// Of them, elements that the stage reads and an earlier stage has (a head that is tied to the embedding).
double tied_parameters(const Workload& workload, const StageUnits& stage, const Layout& layout);

}  // namespace partita
