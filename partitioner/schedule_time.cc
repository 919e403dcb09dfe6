#include "partitioner/schedule_time.h"

#include <algorithm>
#include <cmath>

namespace partita {
namespace {

constexpr double kMostReplayed = 3e5;  // operations of a pipeline that are simulated one by one
constexpr double kUpdateKernels = 20;  // of an optimizer that updates many parameters in one

// What of a collective is left to wait for when `hidden` seconds of compute run beside it.
double exposed(double communication, double compute, double share) {
  return communication - std::min(communication, compute) * share;
}

// What it takes to send `bytes` round the axis's ranks in messages of `message`, beside sending them at once.
double more_messages(const DeviceGroup& group, RankAxis axis, double bytes, double message) {
  return message > 0 ? std::floor(bytes / message) * ring_latency(group, axis) : 0;
}

// Bytes of a gradient's element on the wire, where it has `plain` in memory.
double travelling_bytes(Compression kind, double plain) {
  if (kind == Compression::kNone) return plain;
  return std::min(plain, kind == Compression::kBf16 ? 2. : 1.);
}

}  // namespace

std::vector<std::pair<std::string, double>> Breakdown::parts() const {
  return {{"compute", compute},     {"recompute", recompute},   {"tensor", tensor},       {"context", context},
          {"expert", expert},       {"gathers", gathers},       {"bubble", bubble},       {"send", send},
          {"gradients", gradients}, {"statistics", statistics}, {"optimizer", optimizer}, {"offload", offload},
          {"host", host},           {"stragglers", stragglers}};
}

// Of one chunk of a stage, for one micro-batch.
struct CostModel::StageCost {
  double forward = 0, backward = 0, weight = 0;  // with all that is waited for
  double compute = 0, recompute = 0, tensor = 0, context = 0, expert = 0, gathers = 0, statistics = 0;
  double gradients = 0, optimizer = 0;  // where each micro-batch updates
  double send = 0;                      // not hidden, and what a stage that divides other things is sent is laid out
};

CostModel::CostModel(const Problem& problem) : problem_(problem) {
  const Cluster& c = *problem_.cluster;
  for (size_t first = 0; first < c.groups.size(); ++first) {
    for (size_t last = first + 1; last < c.groups.size(); ++last)
      joined_.try_emplace({first, last}, c.joined(first, last, problem_.options.precision));
  }
}

const DeviceGroup& CostModel::group_of_ranks(int64_t first, int64_t last) const {
  const Cluster& c = *problem_.cluster;
  if (c.groups.size() == 1) return c.groups[0];
  const size_t from = c.index_of_group(first), to = c.index_of_group(last);
  return from == to ? c.groups[from] : joined_.at({from, to});
}

const DeviceGroup& CostModel::group_of_stage(const Layout& l, int64_t stage) const {
  const int64_t first = l.first_device(stage);
  return group_of_ranks(first, first + l.devices_of_stage(stage) - 1);
}

CostModel::UnitCost CostModel::unit_cost(const UnitWork& u, const DeviceGroup& group, const Layout& l) const {
  const Workload& w = *problem_.workload;
  const DeviceProfile& device = group.device;
  double element = problem_.options.element_bytes();
  Share share{static_cast<double>(l.micro_batch), static_cast<double>(l.context), static_cast<double>(l.tensor),
              static_cast<double>(l.expert), l.sequence_parallel};
  UnitTime t = unit_time(u, w, device, problem_.options, share);
  UnitCost c;
  c.forward = t.forward, c.input_gradient = t.input_gradient, c.weight_gradient = t.weight_gradient;
  if (l.recompute == RecomputeMode::kFull && u.is_block()) c.recompute = t.forward + device.software.recompute_seconds;
  if (l.recompute == RecomputeMode::kSelective && u.is_block() && !problem_.options.flash) c.recompute = t.attention;
  double positions = static_cast<double>(l.micro_batch) / (w.sequence > 1 ? static_cast<double>(l.context) : 1);
  auto reduce = [&](const std::vector<double>& list, bool sequence) {
    double seconds = 0;
    for (double e : list) {
      double bytes = e * positions * element;
      RankAxis axis{l.tensor, 1};
      seconds += sequence && u.sequence
                     ? collective_time(group, CollectiveKind::kAllGather, axis, bytes).seconds +
                           collective_time(group, CollectiveKind::kReduceScatter, axis, bytes).seconds
                     : collective_time(group, CollectiveKind::kAllReduce, axis, bytes).seconds;
    }
    return seconds;
  };
  if (l.tensor > 1) {
    c.tensor_forward = reduce(u.forward_reduces, l.sequence_parallel);
    c.tensor_backward = reduce(u.backward_reduces, l.sequence_parallel);
  }
  if (l.context > 1) {
    // Queries, keys and values are exchanged from positions to heads and the result back; their gradients likewise. Or
    // keys and values are gathered, and their gradients scattered.
    for (const AttentionWork& a : u.attention) {
      double each = a.head_size * positions * element / (a.split ? share.tensor : 1);
      if (!exchanges_heads(a, share)) {
        const double bytes = 2 * a.key_heads * a.keys * each * share.context;
        const RankAxis axis{l.context, l.tensor};
        const double gather = a.count * collective_time(group, CollectiveKind::kAllGather, axis, bytes).seconds;
        c.context_forward += gather;
        c.context_backward +=
            gather + a.count * collective_time(group, CollectiveKind::kReduceScatter, axis, bytes).seconds;
        continue;
      }
      auto exchange = [&](double rows) {
        return collective_time(group, CollectiveKind::kAllToAll, {l.context, l.tensor}, rows * each).seconds;
      };
      double seconds = 2 * a.count * (exchange(a.heads * a.queries) + exchange(a.key_heads * a.keys));
      c.context_forward += seconds, c.context_backward += seconds;
    }
  }
  if (l.expert > 1 && u.expert_tokens > 0) {
    double bytes = u.expert_tokens * positions * element;
    c.expert = 2 * collective_time(group, CollectiveKind::kAllToAll, {l.expert, l.tensor * l.context}, bytes).seconds;
  }
  auto [dense, expert] = local_parameters(u, l);
  c.gather_bytes = (dense + expert) * element;
  return c;
}

CostModel::Key CostModel::time_key(const DeviceGroup& group, const Layout& l) {
  return {&group, l.tensor, l.context, l.expert, l.micro_batch, l.sequence_parallel, l.recompute};
}

const std::vector<CostModel::UnitCost>& CostModel::unit_costs(const DeviceGroup& group, const Layout& l) {
  auto [at, fresh] = cache_.try_emplace(time_key(group, l));
  if (fresh) {
    for (const UnitWork& u : problem_.workload->kinds) at->second.push_back(unit_cost(u, group, l));
  }
  return at->second;
}

// A rank of stage `to` gathers what ranks of `from` have of its samples and positions, one micro-batch's; where they
// are more or fewer, each part was sent to one of its ranks.
double CostModel::relayout_seconds(const Layout& from, const Layout& to, const DeviceGroup& group) const {
  const Workload& w = *problem_.workload;
  auto parts = [&](const Layout& l) { return l.data * l.expert * (w.sequence > 1 ? l.context : 1); };
  auto ranks = [](const Layout& l) { return l.data * l.expert * l.context * l.tensor; };
  const int64_t ways = ranks(from) == ranks(to) ? parts(from) / parts(to) : ranks(to) / parts(to);
  if (ways <= 1) return 0;
  double bytes = crossing_elements() * static_cast<double>(to.micro_batch) * problem_.options.element_bytes();
  if (w.sequence > 1) bytes /= static_cast<double>(to.context);
  return collective_time(group, CollectiveKind::kAllGather, {ways, 1}, bytes).seconds;
}

std::vector<std::vector<CostModel::StageCost>> CostModel::stage_costs(const Layout& whole) {
  std::vector<StageUnits> chunks = chunk_units(whole);
  std::vector<std::vector<StageCost>> out(static_cast<size_t>(whole.pipeline),
                                          std::vector<StageCost>(static_cast<size_t>(whole.interleave)));
  const StageLayouts layouts(whole);
  int64_t m = micro_batches(problem_, whole);
  const std::vector<double> sends = this->sends(whole);
  for (size_t p = 0; p < chunks.size(); ++p) {
    size_t stages = static_cast<size_t>(whole.pipeline), stage = p % stages, chunk = p / stages;
    const Layout& l = layouts[stage];
    RankAxis data{l.data * l.expert * l.context, l.tensor}, samples{l.data * l.expert, l.tensor * l.context};
    const DeviceGroup& group = group_of_stage(whole, static_cast<int64_t>(stage));
    const SoftwareProfile& software = group.device.software;
    const auto& costs = unit_costs(group, l);
    StageCost& s = out[stage][chunk];
    for (size_t k = 0; k < costs.size(); ++k) {
      double n = chunks[p].counts[k];
      if (n == 0) continue;
      const UnitCost& c = costs[k];
      double forward = c.forward, backward = c.input_gradient + c.weight_gradient + c.recompute;
      double repeat = c.recompute > 0 && l.recompute == RecomputeMode::kFull ? 1 : 0;
      s.compute += n * (c.forward + c.input_gradient + c.weight_gradient);
      s.recompute += n * c.recompute;
      double gather_forward = 0, gather_backward = 0;
      if (l.zero >= 2 || l.offload == OffloadMode::kAll) {
        RankAxis shards = data;
        if (l.zero_group > 0) shards.size = std::min(shards.size, l.zero_group);
        double gather = collective_time(group, CollectiveKind::kAllGather, shards, c.gather_bytes).seconds +
                        more_messages(group, shards, c.gather_bytes, software.gather_message_bytes);
        double element = problem_.options.element_bytes(),
               scattered = c.gather_bytes * travelling_bytes(problem_.compress, element) / element;
        double scatter = collective_time(group, CollectiveKind::kReduceScatter, shards, scattered).seconds +
                         more_messages(group, shards, scattered, software.gather_message_bytes);
        if (l.offload == OffloadMode::kAll) gather += c.gather_bytes / group.device.host_bandwidth;
        // Stage 2 gathers parameters once a step, stage 3 for every pass, where it does not keep them.
        bool each = (l.zero >= 3 && l.reshard_after_forward) || l.offload == OffloadMode::kAll;
        gather_forward = exposed(each ? gather : gather / static_cast<double>(m), forward, software.overlap_gather);
        gather_backward = exposed((each ? gather : 0) + scatter, backward, software.overlap_gather);
        double slow = software.overlap_slowdown;
        gather_forward += slow * std::min(forward, each ? gather : 0),
            gather_backward += slow * std::min(backward, scatter);
      }
      double statistics = 0;  // of forward, and as much of backward
      for (double e : problem_.workload->kinds[k].batch_reduces)
        statistics += collective_time(group, CollectiveKind::kAllReduce, samples, e * sizeof(float)).seconds;
      double tensor_backward = c.tensor_backward + repeat * c.tensor_forward;
      double expert = c.expert, context = c.context_forward;
      s.tensor += n * (c.tensor_forward + tensor_backward);
      s.context += n * (context * (1 + repeat) + c.context_backward);
      s.expert += n * expert * (2 + repeat);
      s.gathers += n * (gather_forward + gather_backward);
      s.statistics += 2 * n * statistics;
      s.forward += n * (forward + c.tensor_forward + context + expert + gather_forward + statistics);
      s.backward += n * (c.input_gradient + c.recompute + tensor_backward + context * repeat + c.context_backward +
                         expert * (1 + repeat) + gather_backward + statistics);
      s.weight += n * c.weight_gradient;
    }
    if (m > 1 && l.schedule != PipelineSchedule::kPipedream) {  // each adds its gradients to those of the ones before
      auto [dense, expert] = local_parameters(*problem_.workload, chunks[p], l);
      double parameters = dense + expert;
      if (l.zero >= 2)
        parameters /= static_cast<double>(l.zero_group > 0 ? std::min(l.zero_group, data.size) : data.size);
      double seconds = memory_time(group.device, parameters * software.accumulate_bytes, 0);
      s.compute += seconds, s.weight += seconds;
    }
    double host = software.micro_batch_seconds / static_cast<double>(l.interleave);
    const double shown = 1 - software.overlap_send;  // to the next stage, and gradients to the one before
    const double on = sends[stage] * shown, back = sends[stage > 0 ? stage - 1 : 0] * shown;
    s.forward += host / 3 + on, s.backward += host * 2 / 3 + back, s.send += on + back;
    if (!whole.stages.empty()) {
      double in = p > 0 ? relayout_seconds(layouts[(p - 1) % stages], l, group) : 0,
             out_of = p + 1 < chunks.size() ? relayout_seconds(layouts[(p + 1) % stages], l, group) : 0;
      s.forward += in, s.backward += out_of, s.send += in + out_of;
    }
    if (l.schedule != PipelineSchedule::kZeroBubble || l.pipeline == 1) s.backward += s.weight;
  }
  if (whole.schedule == PipelineSchedule::kPipedream) add_updates(whole, chunks, out);
  return out;
}

namespace {

// All chunks of a stage.
StageUnits units_of_stage(const Layout& l, const std::vector<StageUnits>& chunks, int64_t stage) {
  StageUnits units = chunks[static_cast<size_t>(stage)];
  for (size_t p = static_cast<size_t>(stage + l.pipeline); p < chunks.size(); p += static_cast<size_t>(l.pipeline)) {
    for (size_t k = 0; k < units.counts.size(); ++k) units.counts[k] += chunks[p].counts[k];
  }
  return units;
}

}  // namespace

void CostModel::add_updates(const Layout& l, const std::vector<StageUnits>& chunks,
                            std::vector<std::vector<StageCost>>& stages) const {
  for (int64_t stage = 0; stage < l.pipeline; ++stage) {
    StageCost& c = stages[static_cast<size_t>(stage)][0];
    const StageUnits units = units_of_stage(l, chunks, stage);
    const Layout own = l.of_stage(stage);
    const UpdateCost update = update_cost(own, group_of_stage(l, stage), units, c.backward);
    double stash = 0;
    if (stashed_versions(l, in_flight(problem_, l, stage)) > 0) {
      auto [dense, expert] = local_parameters(*problem_.workload, units, own);
      const double bytes = 2 * (dense + expert) * problem_.options.element_bytes();
      stash = memory_time(group_of_stage(l, stage).device, bytes, 1);
    }
    c.gradients = update.gradients, c.optimizer = update.optimizer + stash;
    c.forward += stash, c.backward += update.total();
  }
}

double CostModel::crossing_elements() const {
  double input = 0;
  for (const UnitWork& u : problem_.workload->kinds) input = u.is_block() ? std::max(input, u.input) : input;
  return input;
}

double CostModel::send_seconds(const Layout& l, int64_t stage) const {
  if (l.pipeline == 1) return 0;
  const Workload& w = *problem_.workload;
  const int64_t next = stage + 1 < l.pipeline ? stage + 1 : 0, first = std::min(stage, next),
                last = std::max(stage, next);
  const int64_t apart = std::min(l.devices_of_stage(stage), l.devices_of_stage(next));
  double bytes = crossing_elements() * static_cast<double>(l.micro_batch) * problem_.options.element_bytes();
  if (l.stages.empty()) {
    if (w.sequence > 1) bytes /= static_cast<double>(l.context);
    bytes /= static_cast<double>(l.tensor);  // each rank sends its part; the other side gathers it
  } else {                                   // a stage with fewer ranks sends and gets more on each
    bytes *= static_cast<double>(l.data * l.expert) / static_cast<double>(apart);
  }
  const DeviceGroup& group = group_of_ranks(l.first_device(first), l.first_device(last + 1) - 1);
  const bool within = &group == &group_of_stage(l, stage) && &group == &group_of_stage(l, next);
  // From one group to another all go over the link between them.
  return collective_time(group, CollectiveKind::kSend, {2, within ? apart : group.devices()}, bytes).seconds;
}

std::vector<double> CostModel::sends(const Layout& l) const {
  std::vector<double> out;
  const bool alike = l.stages.empty() && problem_.cluster->groups.size() == 1;
  for (int64_t s = 0; s < l.pipeline; ++s) {
    const bool known = s > 0 && (alike || (s + 1 == l.pipeline && l.interleave == 1));  // the last sends to none
    out.push_back(known ? out.back() : send_seconds(l, s));
  }
  return out;
}

Simulation CostModel::timeline(const Layout& l, const std::vector<std::vector<StageCost>>& costs) const {
  Simulation s;
  s.micro_batches = micro_batches(problem_, l);
  s.schedule = l.schedule;
  for (const auto& stage : costs) {
    s.chunks.emplace_back();
    for (const StageCost& c : stage) s.chunks.back().push_back({c.forward, c.backward, c.weight});
  }
  // All of them on the way through the pipeline as one with the mean time.
  const std::vector<double> each = sends(l);
  for (int64_t stage = 0; stage + 1 < l.pipeline; ++stage)
    s.send += each[static_cast<size_t>(stage)] * group_of_stage(l, stage).device.software.overlap_send;
  if (l.pipeline > 1) s.send /= static_cast<double>(l.pipeline - 1);
  return s;
}

Simulation CostModel::simulation(const Layout& l) { return timeline(l, stage_costs(l)); }

namespace {

double closed_form(const Simulation& s, int64_t pipeline, double v, double* busiest) {
  double m = static_cast<double>(s.micro_batches), slowest = 0, sum = 0;
  for (const auto& stage : s.chunks) {
    double t = 0, w = 0;
    for (const StageTimes& c : stage) {
      bool apart = s.schedule == PipelineSchedule::kZeroBubble && pipeline > 1;
      t += c.forward + c.backward + (apart ? c.weight : 0);
      w += apart ? 2 * c.weight : 0;
    }
    slowest = std::max(slowest, t);
    sum += std::max(0.0, t - w);
  }
  *busiest = m * slowest;
  if (pipeline == 1) return m * slowest;
  double own = sum / static_cast<double>(pipeline);  // the bubble is made of average stages
  return m * slowest + (static_cast<double>(pipeline) - 1) * (own / v + 2 * s.send);
}

}  // namespace

// A stage s that takes c_s(u) seconds for a unit u of a micro-batch, and all of them at most T: for any weights w of
// the stages, T sum(w) >= sum_s w_s sum_{u on s} c_s(u) >= sum_u min_s w_s c_s(u). Weights that make the heaviest kind
// of unit take equally long everywhere give a bound that is close where most of the time is in blocks.
double CostModel::lower_bound(const Layout& l) {
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
    for (int64_t s = 0; s < l.pipeline; ++s) {
      const Layout& own = layouts[static_cast<size_t>(s)];
      weigh(unit_costs(group_of_stage(l, s), own), own, 1);
    }
  }
  double sum = 0;
  for (double t : least) sum += t;
  return sum / weights * static_cast<double>(micro_batches(problem_, l));
}

CostModel::UpdateCost CostModel::update_cost(const Layout& l, const DeviceGroup& g, const StageUnits& units,
                                             double backward) const {
  const Workload& w = *problem_.workload;
  double group_size = static_cast<double>(l.data * l.expert * l.context);
  if (l.zero_group > 0) group_size = std::min(group_size, static_cast<double>(l.zero_group));
  double element = problem_.options.element_bytes(), reduce_bytes = travelling_bytes(problem_.compress, element);
  auto [dense, expert] = local_parameters(w, units, l);
  UpdateCost out;
  RankAxis axis{l.data * l.expert * l.context, l.tensor}, experts{l.data * l.context, l.tensor * l.expert};
  auto collective = [&](CollectiveKind kind, double bytes_per) {
    CollectiveTime t = collective_time(g, kind, axis, dense * bytes_per);
    double message = l.zero == 1 ? g.device.software.shard_message_bytes : 0;
    out.algorithm = std::string(t.algorithm);
    return t.seconds + collective_time(g, kind, experts, expert * bytes_per).seconds +
           more_messages(g, axis, dense * bytes_per, message) + more_messages(g, experts, expert * bytes_per, message);
  };
  if (l.zero == 0) out.gradients = collective(CollectiveKind::kAllReduce, reduce_bytes);
  if (l.zero == 1) out.gradients = collective(CollectiveKind::kReduceScatter, reduce_bytes);
  out.gradients = exposed(out.gradients, backward, g.device.software.overlap_data);
  if (l.zero == 1) out.gradients += collective(CollectiveKind::kAllGather, element);
  double shard = l.zero >= 1 ? dense / group_size + expert / std::max(1.0, group_size / static_cast<double>(l.expert))
                             : dense + expert;
  double traffic = shard * (2 * 4 * w.optimizer_states + 8 + 4 + element + (problem_.clip ? 4 : 0));
  if (l.offload == OffloadMode::kNone || g.device.host_update_rate == 0) {
    out.optimizer = memory_time(g.device, traffic, kUpdateKernels);
  } else {
    // As many kernels as on the device are called, and each waits for its copies.
    out.optimizer = shard / g.device.host_update_rate + memory_time(g.device, 0, kUpdateKernels);
    out.offload = 2 * shard * element / g.device.host_bandwidth;
  }
  return out;
}

Prediction CostModel::predict(const Layout& l, bool replay) {
  Prediction out;
  const Workload& w = *problem_.workload;
  const SoftwareProfile& software = problem_.cluster->groups[0].device.software;
  double micro = static_cast<double>(micro_batches(problem_, l));
  Breakdown& b = out.breakdown;

  std::vector<std::vector<StageCost>> costs = stage_costs(l);
  const Simulation sim = timeline(l, costs);
  double busiest = 0;
  double pipeline = closed_form(sim, l.pipeline, static_cast<double>(l.interleave), &busiest);
  if (replay && l.pipeline > 1 && 2 * micro * static_cast<double>(l.pipeline * l.interleave) <= kMostReplayed)
    pipeline = std::max(busiest, simulate(sim).seconds);

  // The stage that works longest.
  size_t worst = 0;
  double longest = -1;
  for (size_t i = 0; i < costs.size(); ++i) {
    double t = 0;
    for (const StageCost& c : costs[i]) t += c.forward + c.backward;
    if (t > longest) longest = t, worst = i;
  }
  for (const StageCost& c : costs[worst]) {
    b.compute += micro * c.compute, b.recompute += micro * c.recompute, b.tensor += micro * c.tensor;
    b.context += micro * c.context, b.expert += micro * c.expert, b.gathers += micro * c.gathers;
    b.statistics += micro * c.statistics;
    b.gradients += micro * c.gradients, b.optimizer += micro * c.optimizer;
  }
  double latency = 2 * static_cast<double>(l.pipeline - 1) * sim.send;
  b.send = latency;
  for (const StageCost& c : costs[worst]) b.send += micro * c.send;
  b.bubble = std::max(0.0, pipeline - busiest - latency);
  b.host = software.micro_batch_seconds * micro + software.step_seconds;
  out.bubble_share = pipeline > 0 ? (pipeline - busiest) / pipeline : 0;

  // Gradients, optimizer, memory: the stage that has most parameters binds.
  const bool each = l.schedule == PipelineSchedule::kPipedream;  // updates are in the pipeline's time
  std::vector<StageUnits> chunks = chunk_units(l);
  const StageLayouts layouts(l);
  for (int64_t stage = 0; stage < l.pipeline; ++stage) {
    const DeviceGroup& g = group_of_stage(l, stage);
    const Layout& own = layouts[static_cast<size_t>(stage)];
    const StageUnits units = units_of_stage(l, chunks, stage);
    double last_backward = 0;
    for (const StageCost& c : costs[static_cast<size_t>(stage)]) last_backward += c.backward;
    const UpdateCost update = update_cost(own, g, units, last_backward);
    out.gradient_algorithm = update.algorithm;
    if (!each && update.total() > b.gradients + b.optimizer + b.offload)
      b.gradients = update.gradients, b.optimizer = update.optimizer, b.offload = update.offload;
    out.memory.push_back(stage_memory(problem_, g.device, own, units, in_flight(problem_, l, stage)));
    out.capacity.push_back(g.device.memory_bytes);
    double over = out.memory.back().total() - g.device.memory_bytes;
    size_t s = static_cast<size_t>(stage), worst_memory = static_cast<size_t>(out.worst_stage);
    if (stage == 0 || over > out.memory[worst_memory].total() - out.capacity[worst_memory]) out.worst_stage = stage;
    (void)s;
  }
  size_t at = static_cast<size_t>(out.worst_stage);
  out.missing_bytes = std::max(0.0, out.memory[at].total() - out.capacity[at]);
  out.fits = out.missing_bytes <= 0;
  double step = pipeline + (each ? 0 : b.gradients + b.optimizer + b.offload) + software.step_seconds;
  double nodes = 0;
  for (const DeviceGroup& g : problem_.cluster->groups) nodes += static_cast<double>(g.nodes);
  b.stragglers = nodes > 1 ? step * software.straggler_per_doubling * std::log2(nodes) : 0;
  out.step_seconds = step + b.stragglers;
  for (int k : w.units) {
    const UnitWork& u = w.kinds[static_cast<size_t>(k)];
    out.flops += (u.forward_flops() + u.backward_flops()) * static_cast<double>(problem_.global_batch);
  }
  return out;
}

}  // namespace partita
