#include <algorithm>
#include <cmath>
#include <optional>
#include <vector>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/atomic_file.h"
#include "base/cat.h"
#include "base/quote.h"
#include "base/status.h"
#include "fmt/format.h"
#include "partitioner/planner/report/plan_file.h"
#include "tools/cli/command.h"
#include "tools/flow/plan.h"
#include "tools/page/chrome_trace.h"
#include "tools/page/failing_run_page.h"

namespace partita {
namespace {

struct Flags {
  std::string plan, trace, ranks;
  // Of a run of many steps:
  double days = 0, steps = 0, tokens = 0;
  double every = 0;  // steps between checkpoints; 0: the best
  std::optional<double> wait, write;
  std::vector<std::string> also;
  std::string start;
  int replays = 200;
  uint64_t seed = 1;

  bool is_run() const { return days > 0 || steps > 0 || tokens > 0; }
};

constexpr double kWorthSaying = 5e-4;  // of the step

// ", bubble 0.2 s": causes of waits, those that take most first.
std::string waits_of(const StageSeconds& seconds, double least) {
  constexpr double Breakdown::*kWork[] = {&Breakdown::compute, &Breakdown::recompute, &Breakdown::optimizer};
  std::vector<std::pair<double, std::string_view>> waits;
  for (const auto& [name, cause] : kBreakdownNames) {
    if (std::find(std::begin(kWork), std::end(kWork), cause) == std::end(kWork) && seconds.spent.*cause > least)
      waits.emplace_back(seconds.spent.*cause, name);
  }
  std::stable_sort(waits.begin(), waits.end(), [](const auto& a, const auto& b) { return a.first > b.first; });
  std::string text;
  for (const auto& [wait, name] : waits) append(text, fmt::format(", {} {:.4g} s", name, wait));
  return text;
}

// What each of its ranks waits for, by cause, and what runs beside its compute.
std::string exposed(const StageSeconds& seconds, double step) {
  const double least = kWorthSaying * step;
  std::string text =
      "      waits for" + (waits_of(seconds, least).empty() ? " nothing" : waits_of(seconds, least).substr(1));
  std::string beside;
  if (seconds.hidden_sums > least) append(beside, fmt::format(", sums within passes {:.4g} s", seconds.hidden_sums));
  if (seconds.hidden_gathers > least) append(beside, fmt::format(", gathers {:.4g} s", seconds.hidden_gathers));
  if (seconds.hidden_reduce > least) append(beside, fmt::format(", gradients {:.4g} s", seconds.hidden_reduce));
  if (seconds.hidden_copies > least) append(beside, fmt::format(", host copies {:.4g} s", seconds.hidden_copies));
  if (!beside.empty()) append(text, "; beside compute", beside.substr(1));
  return text + "\n";
}

std::string told(const PlannedStep& step, const StepTimeline& t) {
  std::string text =
      fmt::format("step {:.4g} s: {} micro-batches through {} {} {:.4g} s", t.seconds, step.simulation.micro_batches,
                  step.stages.size(), step.stages.size() == 1 ? "stage" : "stages", t.passes.seconds);
  const double tied = step.times.after[TimeKind::kTied], after = step.times.after.total() - tied;
  append(text,
         fmt::format(", gradient sums, update and gathers {:.4g} s", t.seconds - t.passes.seconds - tied - after));
  if (tied > 0) append(text, fmt::format(", tied parameters {:.4g} s", tied));
  append(text, fmt::format(", host and stragglers {:.4g} s\n", after));
  if (std::abs(t.seconds - step.predicted_seconds) > 1e-6 * step.predicted_seconds)
    append(text, fmt::format("the plan has {:.4g} s, by the pipeline's closed form: it has too many passes for the "
                             "search to replay\n",
                             step.predicted_seconds));
  for (size_t k = 0; k < t.passes.busy.size(); ++k) {
    append(text,
           fmt::format("  stage {:>3} (ranks {}..{}) busy {:>5.1f} % of the passes, at most {} {} kept\n", k,
                       step.stages[k].first_rank, step.stages[k].first_rank + step.stages[k].axes.ranks() - 1,
                       t.passes.seconds > 0 ? 100 * t.passes.busy[k] / t.passes.seconds : 0, t.passes.most_in_flight[k],
                       step.traffic.chunks > 1           ? "micro-batch chunks"
                       : t.passes.most_in_flight[k] == 1 ? "micro-batch"
                                                         : "micro-batches"));
    append(text, exposed(stage_seconds(step, t, k), t.seconds));
  }
  return text;
}

absl::StatusOr<Cluster> cluster_of(const Plan& plan) {
  PARTITA_ASSIGN_OR_RETURN(const ProfileLibrary library, load_profiles(plan.inputs.profiles));
  return parse_cluster(plan.inputs.cluster, plan.inputs.cluster_path, library);
}

// Plans for fewer nodes go on from the same states with the same batches, so that their steps are the plan's.
absl::Status add_smaller_plans(const Flags& flags, const Plan& plan, FailingRun& run) {
  for (const std::string& file : flags.also) {
    PARTITA_ASSIGN_OR_RETURN(const Plan other, read_plan(file));
    PARTITA_ASSIGN_OR_RETURN(const Cluster cluster, cluster_of(other));
    const FailingRun::Size size = failing_run(cluster, other.predicted.step_seconds, 1, 0, other.pin).sizes[0];
    if (other.inputs.model != plan.inputs.model || other.global_batch != plan.global_batch)
      return absl::InvalidArgumentError(cat(file, ": expected a plan of ", quote(plan.inputs.model), " with ",
                                            plan.global_batch, " samples a step, as ", flags.plan, ", found ",
                                            quote(other.inputs.model), " with ", other.global_batch));
    if (size.nodes >= run.sizes[0].nodes)
      return absl::InvalidArgumentError(cat(file, ": expected a plan for fewer than the ", run.sizes[0].nodes,
                                            " nodes of ", flags.plan, ", found ", size.nodes));
    run.sizes.push_back(size);
  }
  std::sort(run.sizes.begin(), run.sizes.end(), [](const auto& a, const auto& b) { return a.nodes > b.nodes; });
  return absl::OkStatus();
}

// Where repairs are waited for: how many nodes to spare would do.
std::string spares_that_do(const FailingRun& run, const ExpectedRun& e, int replays, uint64_t seed) {
  constexpr double kWorthTelling = 0.01, kEnough = 0.002;
  if (e.times.waiting < kWorthTelling * e.times.total()) return "";
  FailingRun more = run;
  const double away = run.node_failures() * static_cast<double>(run.sizes[0].nodes) * run.rates.repair;  // on average
  for (int64_t spare = run.spare_nodes + 1; static_cast<double>(spare) <= 20 + 2 * away;
       spare += std::max<int64_t>(1, spare / 4)) {
    more.spare_nodes = spare;
    const ExpectedRun now = expected(more, e.interval, replays, seed);
    if (now.times.waiting < kEnough * now.times.total())
      return fmt::format("with {} nodes to spare it would hardly wait: goodput {:.1f} %\n", spare,
                         100 * now.goodput(more));
  }
  return "";
}

absl::Status play_run(const Flags& flags, const Plan& plan) {
  PARTITA_ASSIGN_OR_RETURN(const Cluster cluster, cluster_of(plan));
  const double step = plan.predicted.step_seconds, in_step = plan.predicted.tokens_per_second * step;
  if (flags.tokens > 0 && in_step <= 0)
    return absl::InvalidArgumentError(cat(flags.plan, ": its samples have no tokens; say --steps or --days"));
  const double steps = std::ceil(flags.steps > 0  ? flags.steps
                                 : flags.days > 0 ? flags.days * 86400 / step
                                                  : flags.tokens / in_step);
  if (steps > kMostSteps)
    return absl::InvalidArgumentError(cat("expected at most ", kMostSteps, " steps, found ", steps));
  int64_t begin = absl::ToUnixSeconds(absl::Now());
  if (!flags.start.empty()) {
    absl::Time time;
    std::string error;
    if (!absl::ParseTime("%Y-%m-%d", flags.start, &time, &error))
      return absl::InvalidArgumentError(cat("--start: expected a date as in 2027-01-31, found ", quote(flags.start)));
    begin = absl::ToUnixSeconds(time);
  }
  double parameters = 0;
  for (const Plan::Unit& u : plan.units) parameters += static_cast<double>(u.count) * u.parameters;
  FailingRun run = failing_run(cluster, step, steps, parameters, plan.pin);
  if (flags.wait) run.checkpoint_wait = *flags.wait;
  if (flags.write) run.checkpoint_write = run.checkpoint_read = *flags.write;
  PARTITA_RETURN_IF_ERROR(add_smaller_plans(flags, plan, run));
  const double interval =
      flags.every > 0 ? std::min(flags.every, steps) : best_interval(run, std::min(flags.replays, 100), flags.seed);
  const ExpectedRun e = expected(run, interval, flags.replays, flags.seed);
  if (std::isinf(e.times.lost))
    return absl::ResourceExhaustedError(fmt::format(
        "no run gets there: it fails 1,000 times between two checkpoints of {:.0f} steps; --checkpoint-every "
        "a smaller number, or fewer nodes",
        interval));
  std::fputs(failing_run_text(run, e, begin, plan.predicted.price_per_hour).c_str(), stdout);
  std::fputs(spares_that_do(run, e, std::min(flags.replays, 100), flags.seed).c_str(), stdout);
  return absl::OkStatus();
}

// What says something of a run of many steps, and of nothing else.
constexpr const char* kOfRuns[] = {
    "--checkpoint-every", "--checkpoint-wait", "--checkpoint-write", "--also", "--start", "--replays", "--seed"};

absl::Status check_flags(const CLI::App& verb, const Flags& flags) {
  for (const char* name : kOfRuns) {
    if (!flags.is_run() && verb.count(name) > 0)
      return absl::InvalidArgumentError(cat(name, " is of a run: say how long it is by --days, --steps or --tokens"));
  }
  if (flags.every != std::floor(flags.every))
    return absl::InvalidArgumentError(cat("--checkpoint-every: expected whole steps, found ", flags.every));
  return absl::OkStatus();
}

absl::Status run(const Flags& flags) {
  PARTITA_ASSIGN_OR_RETURN(const Plan plan, read_plan(flags.plan));
  if (flags.is_run()) return play_run(flags, plan);
  PARTITA_ASSIGN_OR_RETURN(const PlannedStep step, planned_step(plan));
  const StepTimeline t = step_timeline(step);
  PARTITA_ASSIGN_OR_RETURN(std::vector<int64_t> ranks, traced_ranks(step, flags.ranks));
  std::fputs(told(step, t).c_str(), stdout);
  if (flags.trace.empty()) return absl::OkStatus();
  PARTITA_ASSIGN_OR_RETURN(std::string text, chrome_trace(step, t, ranks));
  PARTITA_RETURN_IF_ERROR(write_file_atomically(flags.trace, text));
  std::printf("%s: %zu of %lld ranks%s\n", flags.trace.c_str(), ranks.size(), static_cast<long long>(step.ranks()),
              flags.ranks.empty() && static_cast<int64_t>(ranks.size()) < step.ranks()
                  ? ", the first of each stage: the others of a stage do the same at the same time (--ranks all, or "
                    "--ranks 0,8,16..19, writes more)"
                  : "");
  return absl::OkStatus();
}

}  // namespace

void add_simulate(CLI::App& app, absl::Status& result) {
  auto flags = std::make_shared<Flags>();
  CLI::App* verb = app.add_subcommand("simulate", "replay a plan's step event by event");
  verb->add_option("plan", flags->plan, "plan.json")->required();
  CLI::Option* trace = verb->add_option("--trace", flags->trace,
                                        "write the timeline, a process a rank and a thread a stream, for Perfetto or "
                                        "chrome://tracing");
  verb->add_option("--ranks", flags->ranks, "ranks in the trace: all, or 0,8,16..19; default: the first of each stage")
      ->needs(trace);
  CLI::Option* days = verb->add_option("--days", flags->days,
                                       "play a run of as many steps as take so long where nothing fails, with the "
                                       "failures that the cluster file or published rates say: goodput, end, $")
                          ->check(CLI::PositiveNumber);
  CLI::Option* steps = verb->add_option("--steps", flags->steps, "the same, of so many steps")
                           ->check(CLI::PositiveNumber)
                           ->excludes(days);
  verb->add_option("--tokens", flags->tokens, "the same, of so many tokens")
      ->check(CLI::PositiveNumber)
      ->excludes(days)
      ->excludes(steps);
  verb->add_option("--checkpoint-every", flags->every, "steps between checkpoints; default: the best")
      ->check(CLI::PositiveNumber);
  verb->add_option("--checkpoint-wait", flags->wait, "seconds that training waits for a checkpoint, as measured")
      ->check(CLI::NonNegativeNumber);
  verb->add_option("--checkpoint-write", flags->write, "seconds until it is complete after that, as measured")
      ->check(CLI::NonNegativeNumber);
  verb->add_option("--also", flags->also, "plan.json for fewer nodes, that the run goes on with (repeatable)");
  verb->add_option("--start", flags->start, "the day it begins, as in 2027-01-31; default: today");
  verb->add_option("--replays", flags->replays, "runs that are played")
      ->capture_default_str()
      ->check(CLI::Range(1, 100000));
  verb->add_option("--seed", flags->seed, "of their failures")->capture_default_str();
  verb->callback([flags, verb, &result] {
    if (result = check_flags(*verb, *flags); result.ok()) result = run(*flags);
  });
}

}  // namespace partita
