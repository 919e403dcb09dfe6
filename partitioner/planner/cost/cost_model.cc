#include "partitioner/planner/cost/cost_model.h"

#include <algorithm>
#include <cmath>
#include <tuple>

namespace partita {
namespace {

constexpr double kMostReplayed[] = {64, 3e5};  // passes of a pipeline that are simulated, without and with `replay`
constexpr double kUpdateKernels = 20;          // of an optimizer that updates many parameters in one

// Of all groups of devices: the step is over when the slowest is done.
double most_of(const Cluster& cluster, double SoftwareProfile::*constant) {
  double most = 0;
  for (const DeviceGroup& g : cluster.groups) most = std::max(most, g.device.software.*constant);
  return most;
}

}  // namespace

void Breakdown::add(const PassTimes& p, double times) {
  using enum TimeKind;
  compute += times * p[kCompute], recompute += times * p[kRecompute], tensor += times * p[kTensor];
  context += times * p[kContext], expert += times * p[kExpert], gathers += times * p[kGathers];
  tied += times * p[kTied], statistics += times * p[kStatistics], send += times * (p[kSend] + p[kRelayout]),
      host += times * p[kHost];
  gradients += times * (p[kReduce] + p[kUpdated]), optimizer += times * (p[kOptimizer] + p[kStash]);
  overlap += times * p[kSlowed], offload += times * (p[kToHost] + p[kFromHost]), stragglers += times * p[kStragglers];
}

CostModel::CostModel(const Problem& problem) : problem_(problem) {
  const Workload& w = *problem_.workload;
  int64_t blocks = 0;
  for (size_t u = 0; u < w.units.size(); ++u) block_numbers_.push_back(w.unit(u).is_block() ? blocks++ : -1);
  const Cluster& c = *problem_.cluster;
  for (size_t first = 0; first < c.groups.size(); ++first) {
    for (size_t last = first + 1; last < c.groups.size(); ++last)
      joined_.try_emplace({first, last}, c.joined(first, last, problem_.options.precision));
  }
  for (const ShorterSamples& s : problem_.shorter) {
    Problem own = problem_;
    own.workload = s.workload, own.length = s.length, own.shorter.clear();
    own.global_batch = problem_.global_batch * problem_.length / s.length;
    shorter_.push_back(std::make_unique<CostModel>(own));
  }
}

double CostModel::message_seconds(const DeviceGroup& group, const CollectiveUse& use, const Layout& l,
                                  double message) const {
  auto seconds = [&](double bytes) { return collective_time(group, use.collective, use.axis, bytes).seconds; };
  const bool buckets = problem_.own_programs || !l.buckets.sizes.empty();
  const double most = buckets ? static_cast<double>(l.buckets.bytes(use.axis.size)) : message;
  return most > 0 && use.bytes > most ? use.bytes / most * seconds(most) : seconds(use.bytes);
}

double CostModel::sum_message(const SoftwareProfile& software, const Layout& l) {
  if (l.zero >= 2) return 0;
  if (l.pipeline == 1) return software.bucket_bytes;
  return l.zero == 1 ? software.shard_message_bytes : 0;
}

const DeviceGroup& CostModel::group_of_ranks(int64_t first, int64_t last) const {
  const Cluster& c = *problem_.cluster;
  if (c.groups.size() == 1) return c.groups[0];
  const size_t from = c.index_of_group(first), to = c.index_of_group(last);
  return from == to ? c.groups[from] : joined_.at({from, to});
}

const DeviceGroup& CostModel::group_of_stage(const Layout& l, int64_t stage) const {
  const int64_t first = l.first_rank(stage);
  return group_of_ranks(first, first + l.ranks_of_stage(stage) - 1);
}

CostModel::UnitCost CostModel::unit_cost(const UnitWork& u, const DeviceGroup& group, const Layout& l) const {
  const DeviceProfile& device = group.device;
  Share share = share_on_rank(l);
  share.row_parts = static_cast<double>(row_parts(l));
  UnitTime t = unit_time(u, *problem_.workload, device, problem_.options, share);
  UnitCost c;
  c.forward = t.forward, c.input_gradient = t.input_gradient, c.weight_gradient = t.weight_gradient;
  for (size_t mode = 0; mode < kRecomputeModes; ++mode)
    c.again[mode] = repeated(u, t, share, device.software, static_cast<RecomputeMode>(mode));
  std::tie(c.forward_collectives, c.backward_collectives) = unit_collectives(u, l);
  if (row_parts(l) > 1) {
    hide_beside_products(group, l, t, c);
  } else {
    c.tensor_forward = collective_seconds(group, c.forward_collectives, TrafficKind::kTensor);
    c.tensor_backward = collective_seconds(group, c.backward_collectives, TrafficKind::kTensor);
  }
  c.context_forward = collective_seconds(group, c.forward_collectives, TrafficKind::kContext);
  c.context_backward = collective_seconds(group, c.backward_collectives, TrafficKind::kContext);
  c.expert = collective_seconds(group, c.forward_collectives, TrafficKind::kExpert);
  auto [dense, expert] = local_parameters(u, l);
  c.gather_bytes = (dense + expert) * problem_.options.element_bytes();
  c.frozen_bytes = local_frozen(u, l) * problem_.options.element_bytes();
  if (u.is_block() && device.has_host()) add_copies(u, device, l, c);
  return c;
}

CostModel::Key CostModel::time_key(const DeviceGroup& group, const Layout& l) {
  return {&group, l.tensor, l.context, l.expert, l.micro_batch, l.row_parts(), l.sequence_parallel, l.recompute};
}

const std::vector<CostModel::UnitCost>& CostModel::unit_costs(const DeviceGroup& group, const Layout& l) {
  auto [at, fresh] = cache_.try_emplace(time_key(group, l));
  if (fresh) {
    for (const UnitWork& u : problem_.workload->kinds) at->second.push_back(unit_cost(u, group, l));
  }
  return at->second;
}

std::vector<std::vector<ChunkTimes>> CostModel::stage_costs(const Layout& whole) {
  using enum TimeKind;
  std::vector<StageUnits> chunks = chunk_units(whole);
  std::vector<std::vector<ChunkTimes>> out(static_cast<size_t>(whole.pipeline),
                                           std::vector<ChunkTimes>(static_cast<size_t>(whole.interleave)));
  const StageLayouts layouts(whole);
  int64_t m = micro_batches(problem_, whole);
  const std::vector<double> crossing = crossing_bytes(whole), sends = this->sends(whole, crossing);
  const std::vector<double> received = received_bytes(whole);
  for (size_t p = 0, unit = 0; p < chunks.size(); unit += static_cast<size_t>(chunks[p++].units)) {
    size_t stages = static_cast<size_t>(whole.pipeline), stage = p % stages, chunk = p / stages;
    const Layout& l = layouts[stage];
    const RankAxis samples{l.data * l.expert, l.tensor * l.context};
    const DeviceGroup& group = group_of_stage(whole, static_cast<int64_t>(stage));
    const SoftwareProfile& software = group.device.software;
    const auto& costs = unit_costs(group, l);
    ChunkTimes& times = out[stage][chunk];
    auto& [forward, backward, weight] = times;
    for (size_t k = 0; k < costs.size(); ++k) {
      double n = chunks[p].counts[k];
      if (n == 0) continue;
      const UnitCost& c = costs[k];
      const UnitCost::Again again = again_on(chunks[p], k, c, l);
      forward[kCompute] += n * c.forward;
      backward[kCompute] += n * c.input_gradient, weight[kCompute] += n * c.weight_gradient;
      backward[kRecompute] += again.compute;
      again.copies.add_to(times);
      for (double e : problem_.workload->kinds[k].batch_reduces) {
        const double each = collective_time(group, CollectiveKind::kAllReduce, samples, e * sizeof(float)).seconds;
        forward[kStatistics] += n * each, backward[kStatistics] += n * each;
      }
      forward[kTensor] += n * c.tensor_forward;
      backward[kTensor] += n * c.tensor_backward + again.tensor * c.tensor_forward;
      forward.hidden_sums += n * c.hidden_forward, backward.hidden_sums += n * c.hidden_backward;
      forward[kSlowed] += slowed(group, n * c.hidden_forward, 0, 1);
      backward[kSlowed] += slowed(group, n * c.hidden_backward, 0, 1);
      forward[kContext] += n * c.context_forward;
      backward[kContext] += n * c.context_backward + again.context * c.context_forward;
      forward[kExpert] += n * c.expert, backward[kExpert] += (n + again.expert) * c.expert;
    }
    add_exchanges(l, group, costs, chunks[p], unit, received, times);
    if (m > 1 && l.schedule != PipelineSchedule::kPipedream) {  // each adds its gradients to those of the ones before
      auto [dense, expert] = local_parameters(*problem_.workload, chunks[p], l);
      double parameters = dense + expert;
      if (l.zero >= 2) parameters /= static_cast<double>(shard_ranks(l).size);
      // In a fixed order the term is written first, and then added to what waits: once, on the average.
      const double in_order = problem_.reproducible ? 4 * sizeof(float) : 0;
      weight[kCompute] += memory_time(group.device, parameters * (software.accumulate_bytes + in_order), 0);
    }
    const double host = software.micro_batch_seconds / static_cast<double>(l.interleave);
    forward[kHost] += host / 3, backward[kHost] += host * 2 / 3;
    const double shown = 1 - software.overlap_send;  // to the next stage, and gradients to the one before
    forward[kSend] += sends[stage] * shown, backward[kSend] += sends[stage > 0 ? stage - 1 : 0] * shown;
    if (!whole.stages.empty()) {
      auto relayout = [&](size_t from) {
        const CollectiveUse use = relayout_gather(layouts[from % stages], l, crossing[std::min(p, from)]);
        return collective_time(group, use.collective, use.axis, use.bytes).seconds;
      };
      if (p > 0) forward[kRelayout] += relayout(p - 1);
      if (p + 1 < chunks.size()) backward[kRelayout] += relayout(p + 1);
    }
    if (l.schedule != PipelineSchedule::kZeroBubble || l.pipeline == 1) backward += weight, weight = {};
  }
  if (whole.schedule == PipelineSchedule::kPipedream) add_updates(whole, chunks, out);
  return out;
}

// All chunks of a stage.
StageUnits CostModel::units_of_stage(const Layout& l, const std::vector<StageUnits>& chunks, int64_t stage) {
  StageUnits units = chunks[static_cast<size_t>(stage)];
  for (size_t p = static_cast<size_t>(stage + l.pipeline); p < chunks.size(); p += static_cast<size_t>(l.pipeline)) {
    for (size_t k = 0; k < units.counts.size(); ++k) units.counts[k] += chunks[p].counts[k];
    for (size_t k = 0; k < units.recomputed.size(); ++k) {
      for (size_t mode = 0; mode < kRecomputeModes; ++mode) units.recomputed[k][mode] += chunks[p].recomputed[k][mode];
    }
  }
  return units;
}

void CostModel::add_updates(const Layout& l, const std::vector<StageUnits>& chunks,
                            std::vector<std::vector<ChunkTimes>>& stages) const {
  using enum TimeKind;
  for (int64_t stage = 0; stage < l.pipeline; ++stage) {
    ChunkTimes& c = stages[static_cast<size_t>(stage)][0];
    const StageUnits units = units_of_stage(l, chunks, stage);
    const Layout own = l.of_stage(stage);
    const UpdateCost update = update_cost(own, group_of_stage(l, stage), units, stages[static_cast<size_t>(stage)]);
    double stash = 0;
    if (stashed_versions(l, in_flight(problem_, l, stage)) > 0) {
      auto [dense, expert] = local_parameters(*problem_.workload, units, own);
      const double bytes = 2 * (dense + expert) * problem_.options.element_bytes();
      stash = memory_time(group_of_stage(l, stage).device, bytes, 1);
    }
    c.forward[kStash] += stash, c.backward += update.times;
  }
}

Simulation CostModel::timeline(const Layout& l, const std::vector<std::vector<ChunkTimes>>& costs) const {
  Simulation s;
  s.micro_batches = micro_batches(problem_, l), s.overlapped = overlapped(l);
  s.schedule = l.schedule;
  for (const auto& stage : costs) {
    s.chunks.emplace_back();
    for (const ChunkTimes& c : stage)
      s.chunks.back().push_back({c.forward.total(), c.backward.total(), c.weight.total()});
  }
  // All of them on the way through the pipeline as one with the mean time.
  const std::vector<double> each = sends(l, crossing_bytes(l));
  for (int64_t stage = 0; stage + 1 < l.pipeline; ++stage) {
    const double seconds = each[static_cast<size_t>(stage)] / static_cast<double>(l.pipeline - 1),
                 beside = group_of_stage(l, stage).device.software.overlap_send;
    s.send += seconds * beside, s.send_waited += seconds * (1 - beside);
  }
  return s;
}

Simulation CostModel::simulation(const Layout& l) { return timeline(l, stage_costs(l)); }

StepTimes CostModel::step_times(const Layout& l, const Prediction& prediction) {
  StepTimes out;
  out.chunks = stage_costs(l);
  const std::vector<StageUnits> chunks = chunk_units(l);
  for (int64_t stage = 0; stage < l.pipeline; ++stage) {
    PassTimes& update = out.updates.emplace_back();
    if (l.schedule == PipelineSchedule::kPipedream) continue;
    const Layout own = l.of_stage(stage);
    update = update_cost(own, group_of_stage(l, stage), units_of_stage(l, chunks, stage),
                         out.chunks[static_cast<size_t>(stage)])
                 .times;
  }
  out.after[TimeKind::kTied] = prediction.breakdown.tied;
  out.after[TimeKind::kHost] = most_of(*problem_.cluster, &SoftwareProfile::step_seconds);
  out.after[TimeKind::kStragglers] = prediction.breakdown.stragglers;
  return out;
}

namespace {

// A stage that takes longest works all the time; before and after it, a micro-batch passes through the others: through
// average ones, or where stages are known to differ, through just those.
double closed_form(const Simulation& each, bool differ, double* busiest) {
  const Simulation s = in_groups(each);
  const double m = static_cast<double>(s.micro_batches), stages = static_cast<double>(s.chunks.size());
  double slowest = 0, own = 0, sum = 0;  // own: of the slowest, without what fills its waits
  for (const auto& stage : s.chunks) {
    double t = 0, w = 0;
    for (const StageTimes& c : stage) {
      bool apart = s.schedule == PipelineSchedule::kZeroBubble && s.chunks.size() > 1;
      t += c.forward + c.backward + (apart ? c.weight : 0);
      w += apart ? 2 * c.weight : 0;
    }
    const double critical = std::max(0.0, t - w);
    if (t > slowest) slowest = t, own = critical;
    sum += critical;
  }
  *busiest = m * slowest;
  if (s.chunks.size() == 1) return m * slowest;
  const double others = differ ? sum - own : sum / stages * (stages - 1);
  return m * slowest + others / static_cast<double>(s.chunks[0].size()) + (stages - 1) * 2 * s.send;
}

}  // namespace

// A stage s that takes c_s(u) seconds for a unit u of a micro-batch, and all of them at most T: for any weights w of
// the stages, T sum(w) >= sum_s w_s sum_{u on s} c_s(u) >= sum_u min_s w_s c_s(u). Weights that make the heaviest kind
// of unit take equally long everywhere give a bound that is close where most of the time is in blocks.
double CostModel::lower_bound_of_largest(const Layout& l) {
  const Workload& w = *problem_.workload;
  const StageLayouts layouts(l);
  std::vector<double> times(w.kinds.size(), 0), least;
  std::vector<int64_t> count(w.kinds.size(), 0);
  for (int k : w.units) ++count[static_cast<size_t>(k)];
  double weights = 0;
  std::optional<size_t> heaviest;
  auto weigh = [&](const std::vector<UnitCost>& costs, const Layout& own, double stages) {
    for (size_t k = 0; k < times.size(); ++k) times[k] = seconds(costs[k], own) * static_cast<double>(count[k]);
    if (!heaviest) heaviest = static_cast<size_t>(std::max_element(times.begin(), times.end()) - times.begin());
    const double weight = times[*heaviest] > 0 ? 1 / times[*heaviest] : 1;
    weights += stages * weight;
    if (least.empty()) least.assign(times.size(), 1e300);
    for (size_t k = 0; k < times.size(); ++k) least[k] = std::min(least[k], weight * times[k]);
  };
  const Cluster& c = *problem_.cluster;
  if (c.groups.size() == 1 && l.stages.empty()) {
    weigh(unit_costs(c.groups[0], l), l, static_cast<double>(l.pipeline));
  } else {
    for (int64_t s = 0, next = 0; s < l.pipeline; s = next) {
      const Layout& own = layouts[static_cast<size_t>(s)];
      const DeviceGroup& group = group_of_stage(l, s);
      while (next < l.pipeline && &layouts[static_cast<size_t>(next)] == &own && &group_of_stage(l, next) == &group)
        ++next;
      weigh(unit_costs(group, own), own, static_cast<double>(next - s));
    }
  }
  double sum = 0, ends = 0;
  for (double t : least) sum += t;
  for (auto [stage, unit] : {std::pair{int64_t{0}, w.units.front()}, {l.pipeline - 1, w.units.back()}}) {
    const Layout& own = layouts[static_cast<size_t>(stage)];
    ends = std::max(ends, seconds(unit_costs(group_of_stage(l, stage), own)[static_cast<size_t>(unit)], own));
  }
  return std::max(sum / weights, ends) * static_cast<double>(micro_batches(problem_, l)) * least_in_turns(l);
}

CostModel::UpdateCost CostModel::update_cost(const Layout& l, const DeviceGroup& g, const StageUnits& units,
                                             const std::vector<ChunkTimes>& chunks) const {
  using enum TimeKind;
  const Workload& w = *problem_.workload;
  const SoftwareProfile& software = g.device.software;
  double element = problem_.options.element_bytes();
  auto [dense, expert] = local_parameters(w, units, l);
  UpdateCost out;
  const UpdateCollectives collectives = update_collectives(l, units);
  auto seconds = [&](const std::vector<CollectiveUse>& list) {
    double sum = 0;
    for (const CollectiveUse& use : list) sum += message_seconds(g, use, l, sum_message(software, l));
    return sum;
  };
  const double reduce = seconds(collectives.reduce);
  out.times[kReduce] = waited_sums(l, g, collectives.reduce, chunks);
  out.times.hidden_reduce = reduce - out.times[kReduce];
  if (problem_.own_programs) {
    const double last = sum_seconds(g, l, collectives.reduce, sum_message(software, l)).last;
    out.times[kSlowed] += slowed(g, out.times.hidden_reduce, out.times[kReduce] - last, l.ranks_of_stage(0));
  }
  // Gradients of tied weights, of which the first and the last stage of published software have a copy.
  if (const double tied = problem_.own_programs ? 0 : tied_parameters(w, units, l); tied > 0) {
    const RankAxis ends{2, (l.pipeline - 1) * l.ranks_of_stage(0)};
    out.times[kReduce] += collective_time(g, CollectiveKind::kAllReduce, ends, tied * element).seconds;
  }
  out.times[kUpdated] = seconds(collectives.gather);
  // ZeRO-2 and 3 sum them with each micro-batch.
  out.algorithm =
      collectives.reduce.empty() || l.zero >= 2
          ? collective_time(g, CollectiveKind::kReduceScatter, shard_ranks(l), dense * problem_.gradient_bytes())
                .algorithm
          : collective_time(g, collectives.reduce[0].collective, collectives.reduce[0].axis,
                            collectives.reduce[0].bytes)
                .algorithm;
  if (l.hierarchical_group > 0) out.algorithm += " in levels";
  const double group_size = static_cast<double>(shard_ranks(l).size);
  double shard = l.zero >= 1 ? dense / group_size + expert / std::max(1.0, group_size / static_cast<double>(l.expert))
                             : dense + expert;
  double products = product_seconds(l, g, units);
  for (const CollectiveUse& use : collectives.products)
    products += collective_time(g, use.collective, use.axis, use.bytes).seconds * use.times;
  const bool hosted = l.offload != OffloadMode::kNone && g.device.host_update_rate > 0;
  const double on_host = hosted ? l.offload_fraction * shard : 0;
  const double traffic = (shard - on_host) * (2 * w.optimizer_bytes + 8 + 4 + element + (problem_.clip ? 4 : 0));
  out.times[kOptimizer] = memory_time(g.device, traffic, kUpdateKernels);
  if (hosted) {
    // Beside the device. As many kernels as there are called, and each waits for its copies.
    const double host = on_host / g.device.host_update_rate + memory_time(g.device, 0, kUpdateKernels);
    out.times[kOptimizer] = std::max(out.times[kOptimizer], host);
    // Programs compiled here take fp32 gradients down; parameters that are kept on the device go down and up as well.
    const bool own = problem_.own_programs, kept = l.offload == OffloadMode::kOptimizer;
    out.times[kToHost] = on_host * (own ? (kept ? 8 : 4) : element) / g.device.host_bandwidth;
    out.times[kFromHost] = on_host * (own ? (kept ? 4 : 0) : element) / g.device.host_bandwidth;
  }
  out.times[kOptimizer] += products;
  return out;
}

// Products of matrices in the update of a stage's parameters.
double CostModel::product_seconds(const Layout& l, const DeviceGroup& g, const StageUnits& units) const {
  const ComputeOptions& options = problem_.options;
  double seconds = 0;
  for (size_t k = 0; k < units.counts.size(); ++k) {
    if (units.counts[k] == 0) continue;
    double each = 0;
    for (const UpdateProduct& p : problem_.workload->kinds[k].update.products) {
      const double ways =
          static_cast<double>((p.divided[0] ? l.tensor : 1) * (p.divided[1] && l.zero >= 1 ? shard_ranks(l).size : 1));
      const Precision precision = p.element_bytes == 2 ? usual_precision(options.precision) : Precision::kFp32;
      each += p.count * matrix_time(g.device, precision, 1, p.m / ways, p.n, p.k, p.element_bytes);
    }
    seconds += units.counts[k] * each;
  }
  return seconds;
}

Prediction CostModel::predict_largest(const Layout& l, bool replay) {
  Prediction out;
  const Workload& w = *problem_.workload;
  const double host = most_of(*problem_.cluster, &SoftwareProfile::step_seconds);
  double micro = static_cast<double>(micro_batches(problem_, l));
  Breakdown& b = out.breakdown;

  const std::vector<std::vector<ChunkTimes>> costs = stage_costs(l);
  const Simulation sim = timeline(l, costs);
  double busiest = 0;
  double pipeline = closed_form(sim, differ(l), &busiest);
  if (l.pipeline > 1 && 2 * micro * static_cast<double>(l.pipeline * l.interleave) <= kMostReplayed[replay])
    pipeline = std::max(busiest, simulate(sim).seconds);

  // The stage that works longest.
  size_t worst = 0;
  double longest = -1;
  for (size_t i = 0; i < costs.size(); ++i) {
    double t = 0;
    for (const StageTimes& c : sim.chunks[i]) t += c.forward + c.backward + c.weight;
    if (t > longest) longest = t, worst = i;
  }
  for (const ChunkTimes& c : costs[worst]) {
    for (const PassTimes* pass : {&c.forward, &c.backward, &c.weight}) b.add(*pass, micro);
  }
  const double latency = 2 * static_cast<double>(l.pipeline - 1) * sim.send;
  b.send += latency;
  b.bubble = std::max(0.0, pipeline - busiest - latency);
  b.host += host;
  out.bubble_share = pipeline > 0 ? (pipeline - busiest) / pipeline : 0;

  // Gradients, optimizer, memory: the stage that has most parameters binds.
  const bool each = l.schedule == PipelineSchedule::kPipedream;  // updates are in the pipeline's time
  std::vector<StageUnits> chunks = chunk_units(l);
  const StageLayouts layouts(l);
  PassTimes slowest_update;
  for (int64_t stage = 0; stage < l.pipeline; ++stage) {
    const DeviceGroup& g = group_of_stage(l, stage);
    const Layout& own = layouts[static_cast<size_t>(stage)];
    const StageUnits units = units_of_stage(l, chunks, stage);
    const UpdateCost update = update_cost(own, g, units, costs[static_cast<size_t>(stage)]);
    out.gradient_algorithm = update.algorithm;
    if (!each && update.times.total() > slowest_update.total()) slowest_update = update.times;
    out.memory.push_back(stage_memory(problem_, g.device, own, units, held(l, chunks, stage)));
    out.capacity.push_back(g.device.memory_bytes);
    double over = out.memory.back().total() - g.device.memory_bytes;
    const size_t worst_memory = static_cast<size_t>(out.worst_stage);
    if (stage == 0 || over > out.memory[worst_memory].total() - out.capacity[worst_memory]) out.worst_stage = stage;
  }
  size_t at = static_cast<size_t>(out.worst_stage);
  out.missing_bytes = std::max(0.0, out.memory[at].total() - out.capacity[at]);
  out.fits = out.missing_bytes <= 0;
  b.add(slowest_update, 1);
  b.tied = shared_seconds(l, sim);
  double step = pipeline + slowest_update.total() + b.tied + host;
  double nodes = 0;
  for (const DeviceGroup& g : problem_.cluster->groups) nodes += static_cast<double>(g.nodes);
  const double lost = most_of(*problem_.cluster, &SoftwareProfile::straggler_per_doubling);
  b.stragglers = nodes > 1 ? step * lost * std::log2(nodes) : 0;
  out.step_seconds = step + b.stragglers;
  for (int k : w.units) {
    const UnitWork& u = w.kinds[static_cast<size_t>(k)];
    out.flops += (u.forward_flops() + u.backward_flops()) * static_cast<double>(problem_.global_batch);
  }
  return out;
}

}  // namespace partita
