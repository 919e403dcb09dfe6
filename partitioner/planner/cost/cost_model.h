// Time and memory of a step under a layout: units onto stages, each stage's forward and backward with their
// communication, the pipeline's schedule, gradient reduction, optimizer.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "partitioner/planner/cost/communication_lane.h"
#include "partitioner/planner/cost/host_activations.h"
#include "partitioner/planner/cost/memory/memory_model.h"
#include "partitioner/planner/cost/prediction.h"
#include "partitioner/planner/cost/simulate.h"
#include "partitioner/planner/cost/step_times.h"
#include "partitioner/planner/cost/traffic.h"
#include "partitioner/planner/rates/collective_time.h"
#include "partitioner/planner/space/problem.h"

namespace partita {

// Micro-batches that take turns, where that is searched: more hide hardly more, and all of them lie in memory.
inline constexpr int64_t kInTurns = 2;

class CostModel {
 public:
  explicit CostModel(const Problem& problem);
  CostModel(const CostModel&) = delete;
  CostModel& operator=(const CostModel&) = delete;

  // The layout must be valid. With `replay` the pipeline is simulated; without, where it has few passes: where it has
  // many, the closed form is near enough to choose those that are.
  Prediction predict(const Layout& layout, bool replay);
  // Stage times for the simulator: of samples of the largest length, as all that follows but for bounds.
  Simulation simulation(const Layout& layout);
  // What those times, and the step's end as `prediction` has it, are made of.
  StepTimes step_times(const Layout& layout, const Prediction& prediction);
  // The layout with what it leaves open of how our programs exchange gradients and parameters: in how large buckets,
  // and whether in levels, by the links (plan_collectives.cc).
  Layout with_exchanges(Layout layout);
  // Of all exchanges of gradients and parameters, each pass's once, were nothing beside them.
  double exchange_seconds(const Layout& layout);
  // Whether ranks with other samples may exchange in groups of any size.
  bool may_group(const Layout& layout) const;
  // Layouts of which each is faster than those before, and `layout`, as its gathers run further ahead; where they run
  // so is theirs alone. Memory is not looked at.
  std::vector<Layout> prefetching_further(const Layout& layout);
  // The layout with micro-batches that take turns, where that is faster (turns.cc), of one stage. Memory is not looked
  // at.
  std::optional<Layout> taking_turns(const Layout& layout);
  // The layout with products in as many parts of rows as is fastest, where that is faster (row_overlap.cc). Memory is
  // not looked at.
  std::optional<Layout> with_products_in_parts(const Layout& layout);
  // What the ranks send (plan_collectives.cc).
  PlanTraffic traffic(const Layout& layout);
  // No layout with these axes, micro-batch and recompute is faster, wherever it is cut.
  double lower_bound(const Layout& layout);
  // Seconds that all units of the kind that takes most take of a micro-batch on a rank of `group`: compute, and what
  // its tensor, context and expert axes cost.
  double heaviest_seconds(const DeviceGroup& group, const Layout& layout);
  // Units of each stage chunk, in order [chunk 0 of stage 0, chunk 0 of stage 1, …].
  const std::vector<int>& even_cuts(const Layout& layout) const;
  // Cuts that make the slowest chunk as fast as possible (exact, by dynamic programming over the units;
  // balanced_cuts.cc).
  const std::vector<int>& balanced_cuts(const Layout& layout) { return balanced(layout).units; }
  // The same among cuts whose stages fit their devices; empty where none do. Without interleaving. With `again`, a
  // stage that does not fit as it is counts with what it computes again so that so many bytes of its device are left,
  // as with_recompute() chooses it: units move away from such stages as far as that is faster (fitting_cuts.cc).
  std::vector<int> fitting_cuts(const Layout& layout, std::optional<double> again = {});
  // Whether there are cuts whose stages fit, with nothing computed again but what the layout says.
  bool can_fit(const Layout& layout);
  // The layout, which computes nothing again, with the blocks of each stage computed again that let it fit its device
  // with `spare` bytes left, at least cost in time (stage_recompute.cc); nullopt where it fits as it is, or never does.
  std::optional<Layout> with_recompute(Layout layout, double spare);
  // The part of the optimizer's states that has to lie on the host for all stages to fit as they are; infinite where
  // that is not enough (offload_needed.cc).
  double offload_needed(const Layout& layout);
  // What a layout computes again on a stage, by mode: blocks, bytes that they free, seconds of a step.
  std::vector<RecomputedBlocks> recomputed(const Layout& layout, int64_t stage);
  // Seconds of a step at least, where it is cut so.
  double balanced_bound(const Layout& layout);
  double bound(const Layout& layout, const std::vector<int>& cuts);
  // Of all cuts that a search offers: interleaved stages are cut evenly, but where they may begin `anywhere`.
  double cuts_bound(const Layout& layout, bool anywhere);
  // The devices that a stage's ranks are on; where they are of several groups, those groups as one.
  const DeviceGroup& group_of_stage(const Layout& layout, int64_t stage) const;

  const Problem& problem() const { return problem_; }

 private:
  // The mean over the lengths that samples have, of what each one's model says of the layout (cost_of_lengths.cc).
  template <typename Cost>
  double mean_of_lengths(const Layout& layout, Cost cost);
  Layout layout_of(const Layout& layout, const CostModel& shorter) const;
  Prediction predict_largest(const Layout& layout, bool replay);
  double lower_bound_of_largest(const Layout& layout);
  double heaviest_of_largest(const DeviceGroup& group, const Layout& layout);
  // Per kind of unit, on one rank and micro-batch.
  struct UnitCost {
    // What backward repeats of forward: seconds of compute, and shares of what each axis sends; and what waits on the
    // host.
    struct Again {
      double compute = 0, tensor = 0, context = 0, expert = 0;
      HostCopies copies = {}, copies_apart = {};  // these where gradients of weights are put off
    };
    double forward = 0, input_gradient = 0, weight_gradient = 0;
    std::array<Again, kRecomputeModes> again;
    double tensor_forward = 0, tensor_backward = 0, context_forward = 0, context_backward = 0, expert = 0;
    double hidden_forward = 0, hidden_backward = 0;  // of the tensor axis, beside products in parts of rows
    double gather_bytes = 0, frozen_bytes = 0;       // of trained parameters, of frozen weights
    std::vector<CollectiveUse> forward_collectives, backward_collectives;  // of which those times are
  };
  using Key = std::tuple<const DeviceGroup*, int64_t, int64_t, int64_t, int64_t, int64_t, bool, RecomputeMode>;

  static const UnitCost::Again& again(const UnitCost& cost, RecomputeMode mode) {
    return cost.again[static_cast<size_t>(mode)];
  }
  UnitCost::Again repeated(const UnitWork& unit, const UnitTime& time, const Share& share,
                           const SoftwareProfile& software, RecomputeMode mode) const;
  // Adds what copies of the modes that wait on the host take (stage_recompute.cc).
  void add_copies(const UnitWork& unit, const DeviceProfile& device, const Layout& layout, UnitCost& cost) const;
  // Seconds that a mode adds to a unit and micro-batch; `apart`: whether gradients of weights are put off.
  static double again_seconds(const UnitCost& cost, RecomputeMode mode, bool apart);
  // Of a kind's units on a stage, together; `copies` as they are there.
  UnitCost::Again again_on(const StageUnits& units, size_t kind, const UnitCost& cost, const Layout& layout) const;
  static Key time_key(const DeviceGroup& group, const Layout& layout);
  // Of a unit and micro-batch: compute, and what its tensor, context and expert axes cost.
  static double seconds(const UnitCost& cost, const Layout& layout);
  // Their sums over the first 0, 1, … units, for each run of stages that are alike; and the run of each stage.
  struct UnitSums {
    std::vector<std::vector<double>> sums;
    std::vector<size_t> run;
    double between(size_t stage, size_t first, size_t end) const {
      return sums[run[stage]][end] - sums[run[stage]][first];
    }
  };
  UnitSums seconds_before(const Layout& layout);
  struct Cuts {
    std::vector<int> units;       // of each chunk
    double slowest = 0, sum = 0;  // seconds of the stages for one micro-batch
  };
  Cuts weigh(const Layout& layout, std::vector<int> units);
  const Cuts& balanced(const Layout& layout);
  double bound(const Layout& layout, const Cuts& cuts);
  std::vector<int> cut_by_time(const Layout& layout);
  std::vector<int> cut_evenly(const Layout& layout) const;
  class StageRoom;
  class StageRun;
  const std::vector<UnitCost>& unit_costs(const DeviceGroup& group, const Layout& layout);
  UnitCost unit_cost(const UnitWork& unit, const DeviceGroup& group, const Layout& layout) const;
  // Of a unit and one micro-batch: collectives of forward (recomputing repeats them) and of backward.
  std::pair<std::vector<CollectiveUse>, std::vector<CollectiveUse>> unit_collectives(const UnitWork& unit,
                                                                                     const Layout& layout) const;
  static std::vector<CollectiveUse> in_levels(const CollectiveUse& use, const Layout& layout);
  template <typename Visit>
  void visit_exchanges(const Layout& layout, Visit visit);  // visit(devices, stage's layout, use)
  BucketSizes bucket_sizes(const Layout& layout);
  static RankAxis shard_ranks(const Layout& layout);  // that share one copy of what is sharded
  // Of a layout that shards parameters: gathers of a unit's in one pass, and the scattering of its gradients. What
  // stage 1 gathers of published software stands at the step's end, among the update's collectives.
  bool gathers_parameters(const Layout& layout) const;
  static bool gathers_each_pass(const Layout& layout);  // else once a step, and kept
  static bool scatters_each_pass(const Layout& layout);
  struct GatherCollectives {
    std::vector<CollectiveUse> gather, scatter;
  };
  GatherCollectives gather_collectives(const UnitCost& unit, const Layout& layout) const;
  struct UnitExchange {
    double gather = 0, scatter = 0;  // seconds
  };
  UnitExchange unit_exchange(const UnitCost& unit, const DeviceGroup& group, const Layout& layout) const;
  // Of each of a chunk's units, the share of its parameters that backward finds gathered (keep_gathered.h).
  std::vector<double> kept_shares(const Layout& layout, const std::vector<UnitCost>& costs, size_t first,
                                  size_t units) const;
  // Adds them to a chunk's passes, whose compute and sums are there; it begins with unit `first` (exchange_times.cc);
  // `received`: received_bytes().
  void add_exchanges(const Layout& layout, const DeviceGroup& group, const std::vector<UnitCost>& costs,
                     const StageUnits& units, size_t first, const std::vector<double>& received,
                     ChunkTimes& times) const;
  void add_published_waits(const Layout& layout, const DeviceGroup& group, const std::vector<UnitCost>& costs,
                           const StageUnits& units, ChunkTimes& times) const;
  void add_lane_waits(const Layout& layout, const DeviceGroup& group, const std::vector<UnitCost>& costs,
                      const StageUnits& units, size_t first, const std::vector<double>& received,
                      ChunkTimes& times) const;
  // Micro-batches of our programs that take turns, and the least that their passes take of what they would take one
  // after the other, with as many as are open.
  int64_t overlapped(const Layout& layout) const;
  // Parts of rows that our programs cut products beside collectives of the tensor axis into (row_overlap.cc).
  int64_t row_parts(const Layout& layout) const;
  // What a unit waits for of the tensor axis, and what travels beside its products.
  void hide_beside_products(const DeviceGroup& group, const Layout& layout, const UnitTime& time, UnitCost& cost) const;
  double least_in_turns(const Layout& layout);
  static double sums_within(const PassTimes& pass);  // seconds that units wait for at once
  // The share of the time in which something travels beside compute that compute takes longer.
  double slowdown(const DeviceGroup& group) const;
  void hide_sums(PassTimes& pass, const DeviceGroup& group, double share) const;
  // Seconds that compute takes longer with `beside` seconds of what travels beside it, over the links that join so many
  // ranks (1: over the innermost), where it waits for `waited` more.
  double slowed(const DeviceGroup& group, double beside, double waited, int64_t ranks) const;
  // `edge`: of what is waited for, what comes before all compute.
  void add_wait(PassTimes& pass, const DeviceGroup& group, double moved, double waited, double slowing, double edge,
                int64_t ranks) const;
  // In forward and backward, without what is gathered and scattered.
  std::pair<LaneUnit, LaneUnit> lane_units(const UnitCost& cost, const UnitWork& work, RecomputeMode mode,
                                           const DeviceGroup& group, const Layout& layout) const;
  struct SumSeconds {
    double all = 0, last = 0;  // of the last bucket
  };
  SumSeconds sum_seconds(const DeviceGroup& group, const Layout& layout, const std::vector<CollectiveUse>& sums,
                         double message) const;
  // How much of what travels takes no time of what computes, and what of a pass's compute can hide our programs'
  // collectives.
  static double share_beside(const DeviceGroup& group);
  static double hiding_share(const DeviceGroup& group, const PassTimes& pass);
  // Seconds that sums of gradients leave to wait for after a stage's backward passes.
  double waited_sums(const Layout& layout, const DeviceGroup& group, const std::vector<CollectiveUse>& sums,
                     const std::vector<ChunkTimes>& chunks) const;
  // Parameters that a unit is the first of its stage to read, where another stage has them (shared_parameters.cc). None
  // of published software.
  struct SharedUse {
    int64_t owner, reader;
    size_t unit;
    TensorParts elements;
    double elements_on(const Layout& l) const { return elements[0] / static_cast<double>(l.tensor) + elements[1]; }
  };
  std::vector<SharedUse> shared_uses(const Layout& layout) const;
  // Of each unit, bytes in the compute precision that a rank has of them, whole.
  std::vector<double> received_bytes(const Layout& layout) const;
  // What stages send each other of them in a step, and the seconds that it adds to the step whose passes `passes` has.
  std::vector<PlanTraffic::Shared> shared_parameters(const Layout& layout) const;
  double shared_seconds(const Layout& layout, const Simulation& passes) const;
  // Of a sample, by chunk: bytes that it sends, of what it makes to each later chunk of another stage that reads it.
  std::vector<double> crossing_bytes(const Layout& layout) const;
  // Of so many bytes of each sample of a micro-batch from a stage to the next one (from the last to the first).
  double send_seconds(const Layout& layout, int64_t stage, double bytes) const;
  // Of each stage, of the chunk that sends most. `crossing`: the layout's crossing_bytes().
  std::vector<double> sends(const Layout& layout, const std::vector<double>& crossing) const;
  // Of software's sums of gradients and ZeRO-1's gathers: bytes of one message; 0: all at once.
  static double sum_message(const SoftwareProfile& software, const Layout& layout);
  // Our programs send it in the layout's buckets, other software in messages of `message` bytes (0: at once).
  double message_seconds(const DeviceGroup& group, const CollectiveUse& use, const Layout& layout,
                         double message) const;
  CollectiveUse relayout_gather(const Layout& from, const Layout& to, double bytes) const;
  const DeviceGroup& group_of_ranks(int64_t first, int64_t last) const;
  // Whether stages take different times by what their ranks are.
  bool differ(const Layout& layout) const { return !layout.stages.empty() || problem_.cluster->groups.size() > 1; }
  std::vector<StageUnits> chunk_units(const Layout& layout) const;
  // Micro-batches whose values a stage holds at once, as its chunks take slots (in_flight() where they are alike).
  double held(const Layout& layout, const std::vector<StageUnits>& chunks, int64_t stage) const;
  static StageUnits units_of_stage(const Layout& layout, const std::vector<StageUnits>& chunks, int64_t stage);
  // Bytes that a stage needs beyond what its device has; negative: that are left.
  double missing(const Layout& layout, const std::vector<StageUnits>& chunks, int64_t stage) const;

  std::vector<std::vector<ChunkTimes>> stage_costs(const Layout& layout);
  Simulation timeline(const Layout& layout, const std::vector<std::vector<ChunkTimes>>& costs) const;
  // Sums of gradients, gathers of what was updated, and what products of matrices in the update need.
  struct UpdateCollectives {
    std::vector<CollectiveUse> reduce, gather, products;
  };
  UpdateCollectives update_collectives(const Layout& layout, const StageUnits& units) const;
  // Of a stage's parameters, once, with its chunks' backward passes beside the sums.
  struct UpdateCost {
    PassTimes times;
    std::string algorithm;  // that sums the gradients
  };
  UpdateCost update_cost(const Layout& layout, const DeviceGroup& group, const StageUnits& units,
                         const std::vector<ChunkTimes>& chunks) const;
  double product_seconds(const Layout& layout, const DeviceGroup& group, const StageUnits& units) const;
  // With pipedream each backward pass ends with an update, and each forward pass begins with a copy of the weights.
  void add_updates(const Layout& layout, const std::vector<StageUnits>& chunks,
                   std::vector<std::vector<ChunkTimes>>& stages) const;

  Problem problem_;
  std::vector<int64_t> block_numbers_;                       // of each unit, its number among the blocks; -1: none
  std::vector<std::unique_ptr<CostModel>> shorter_;          // of problem_.shorter
  std::map<std::pair<size_t, size_t>, DeviceGroup> joined_;  // groups, first to last, as one
  std::map<Key, std::vector<UnitCost>> cache_;
  mutable std::map<std::pair<int64_t, int64_t>, std::vector<int>> even_cuts_;  // by pipeline and interleaving
  // Balanced, by pipeline, interleaving and stages that differ too.
  std::map<std::tuple<Key, int64_t, int64_t, std::vector<Layout::StageAxes>>, Cuts> cuts_;
};

}  // namespace partita
