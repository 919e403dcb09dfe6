#include "partitioner/planner/report/make_plan.h"

#include "base/cat.h"
#include "fmt/format.h"
#include "partitioner/planner/report/missing.h"

namespace partita {
namespace {

std::string why_slower(const Prediction& theirs, const Prediction& ours) {
  std::string most;
  double gap = 0;
  for (const auto& [name, seconds] : kBreakdownNames) {
    const double more = theirs.breakdown.*seconds - ours.breakdown.*seconds;
    if (more > gap) gap = more, most = name;
  }
  return fmt::format("{:.1f} % slower{}", (theirs.step_seconds / ours.step_seconds - 1) * 100,
                     most.empty() ? "" : fmt::format(", most of it {} (+{:.3g} s)", most, gap));
}

std::vector<Plan::Stage> stages(CostModel& model, const Candidate& chosen, const Simulation& simulation,
                                const StepTimes& times, const PlanTraffic& traffic) {
  const Layout& l = chosen.layout;
  const std::vector<int> cuts = l.cuts.empty() ? model.even_cuts(l) : l.cuts;
  std::vector<Plan::Stage> out;
  for (int64_t s = 0; s < l.pipeline; ++s) {
    const size_t stage = static_cast<size_t>(s);
    out.push_back({.first_rank = l.first_rank(s),
                   .ranks = l.ranks_of_stage(s),
                   .device = model.group_of_stage(l, s).device.name,
                   .memory = chosen.prediction.memory[stage],
                   .capacity = chosen.prediction.capacity[stage],
                   .update = times.updates[stage],
                   .traffic = traffic.stages[stage].transfers,
                   .recompute = model.recomputed(l, s)});
  }
  int64_t first = 0;
  for (size_t c = 0; c < cuts.size(); ++c) {
    const size_t stage = c % out.size(), chunk = c / out.size();
    out[stage].chunks.push_back({first, cuts[c], simulation.chunks[stage][chunk], times.chunks[stage][chunk]});
    first += cuts[c];
  }
  return out;
}

std::string split_in_words(const UnitWork& u, int64_t tensor) {
  const auto ranks = static_cast<int64_t>(u.head_ranks(static_cast<double>(tensor)));
  return ranks == tensor ? u.split : cat(u.split, "; ", tensor / ranks, " ranks do the same heads");
}

std::vector<Plan::Unit> units(const Workload& w, int64_t tensor) {
  std::vector<Plan::Unit> out;
  for (const UnitWork& u : w.kinds) {
    out.push_back({.name = u.name,
                   .forward_flops = u.forward_flops(),
                   .backward_flops = u.backward_flops(),
                   .parameters = u.parameters[0] + u.parameters[1],
                   .saved_elements = u.saved[0] + u.saved[1],
                   .tensor_split = split_in_words(u, tensor),
                   .grouped_matrices = u.chosen});
  }
  for (int k : w.units) ++out[static_cast<size_t>(k)].count;
  return out;
}

Plan::Predicted predicted(const Problem& problem, const Prediction& p) {
  const double tokens = problem.workload->tokens * static_cast<double>(problem.global_batch),
               peak = problem.cluster->peak_flops(problem.options.precision);
  Plan::Predicted out{.step_seconds = p.step_seconds,
                      .fits = p.fits,
                      .missing_bytes = static_cast<int64_t>(p.missing_bytes),
                      .breakdown = p.breakdown,
                      .bubble_share = p.bubble_share,
                      .tokens_per_second = p.step_seconds > 0 ? tokens / p.step_seconds : 0,
                      .model_flops = p.flops,
                      .mfu = p.step_seconds > 0 && peak > 0 ? p.flops / p.step_seconds / peak : 0,
                      .price_per_hour = problem.cluster->price_per_hour(),
                      .gradient_collective = p.gradient_algorithm,
                      .lengths = p.lengths};
  for (const MemoryUse& m : p.memory) out.memory_bytes.push_back(static_cast<int64_t>(m.total()));
  for (double bytes : p.program_bytes) out.program_bytes.push_back(static_cast<int64_t>(bytes));
  return out;
}

}  // namespace

Plan::Other other_layout(const Candidate& c, const Candidate* best) {
  const Prediction& p = c.prediction;
  Plan::Other out{.layout = describe(c.layout),
                  .pin = to_pins(c.layout),
                  .step_seconds = p.step_seconds,
                  .fits = p.fits,
                  .memory_bytes = p.most_memory(),
                  .breakdown = p.breakdown};
  if (!p.fits) {
    out.reason = explain_missing(c);
  } else if (best && best->prediction.step_seconds > 0) {
    out.reason = why_slower(p, best->prediction);
  }
  return out;
}

Plan make_plan(const Problem& problem, CostModel& model, const SearchResult& result, const Candidate& chosen,
               Plan::Inputs inputs) {
  const Layout& l = chosen.layout;
  const Simulation simulation = model.simulation(l);
  const StepTimes times = model.step_times(l, chosen.prediction);
  const PlanTraffic traffic = model.traffic(l);
  Plan plan{.inputs = std::move(inputs),
            .devices = problem.devices(),
            .hardware = problem.cluster->hardware(),
            .links = problem.cluster->wiring(),
            .global_batch = problem.global_batch,
            .layout = describe(l),
            .pin = to_pins(l),
            .compress = problem.compress,
            .batch_statistics = problem.batch_statistics,
            .micro_batches = simulation.micro_batches,
            .send_seconds = simulation.send,
            .send_waited_seconds = simulation.send_waited,
            .stages = stages(model, chosen, simulation, times, traffic),
            .units = units(*problem.workload, l.tensor),
            .predicted = predicted(problem, chosen.prediction),
            .search = {result.considered, result.bounded, result.unfit, result.allocated, result.gap},
            .boundary_bytes = traffic.boundary_bytes,
            .shared = traffic.shared,
            .after_update = times.after};
  for (const Candidate& c : result.others) plan.candidates.push_back(other_layout(c, &chosen));
  plan.nodes.emplace();
  for (const DeviceGroup& g : problem.cluster->groups)
    plan.nodes->push_back({g.nodes, g.devices_per_node, g.device.name});
  return plan;
}

}  // namespace partita
