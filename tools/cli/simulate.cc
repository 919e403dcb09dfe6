#include <cmath>

#include "base/atomic_file.h"
#include "base/cat.h"
#include "base/status.h"
#include "fmt/format.h"
#include "partitioner/planner/report/plan_file.h"
#include "tools/cli/command.h"
#include "tools/page/chrome_trace.h"

namespace partita {
namespace {

struct Flags {
  std::string plan, trace, ranks;
};

std::string told(const PlannedStep& step, const StepTimeline& t) {
  std::string text =
      fmt::format("step {:.4g} s: {} micro-batches through {} {} {:.4g} s", t.seconds, step.simulation.micro_batches,
                  step.stages.size(), step.stages.size() == 1 ? "stage" : "stages", t.passes.seconds);
  const double after = step.times.after.total();
  append(text, fmt::format(", gradient sums, update and gathers {:.4g} s", t.seconds - t.passes.seconds - after));
  append(text, fmt::format(", host and stragglers {:.4g} s\n", after));
  if (std::abs(t.seconds - step.predicted_seconds) > 1e-6 * step.predicted_seconds)
    append(text, fmt::format("the plan has {:.4g} s, by the pipeline's closed form: it has too many passes for the "
                             "search to replay\n",
                             step.predicted_seconds));
  for (size_t k = 0; k < t.passes.busy.size(); ++k)
    append(text,
           fmt::format("  stage {:>3} (ranks {}..{}) busy {:>5.1f} % of the passes, at most {} {} kept\n", k,
                       step.stages[k].first_rank, step.stages[k].first_rank + step.stages[k].axes.ranks() - 1,
                       t.passes.seconds > 0 ? 100 * t.passes.busy[k] / t.passes.seconds : 0, t.passes.most_in_flight[k],
                       step.traffic.chunks > 1           ? "micro-batch chunks"
                       : t.passes.most_in_flight[k] == 1 ? "micro-batch"
                                                         : "micro-batches"));
  return text;
}

absl::Status run(const Flags& flags) {
  PARTITA_ASSIGN_OR_RETURN(const Plan plan, read_plan(flags.plan));
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
  verb->callback([flags, &result] { result = run(*flags); });
}

}  // namespace partita
