#include "partitioner/planner/report/explain.h"
#include "base/cat.h"
#include "base/status.h"
#include "fmt/format.h"
#include "partitioner/planner/report/make_plan.h"
#include "partitioner/planner/report/plan_file.h"
#include "partitioner/planner/report/sweep.h"
#include "tools/cli/command.h"
#include "tools/flow/plan.h"

namespace partita {
namespace {

struct Flags {
  std::string plan;
  std::vector<std::string> why_not;
  bool what_if = false;
};

// "-5.7 %, the same layout"
std::string change_text(const WhatIf& now, const WhatIf& change) {
  if (!change.candidate) return change.note;
  const Candidate& c = *change.candidate;
  std::string text = fmt::format("{:>9.4g} s", c.prediction.step_seconds);
  if (&now == &change) return cat(text, "  ", describe(c.layout));
  if (now.candidate)
    text += fmt::format(" ({:+.1f} %)", 100 * (c.prediction.step_seconds / now.candidate->prediction.step_seconds - 1));
  const bool same = now.candidate && describe(now.candidate->layout) == describe(c.layout);
  return cat(text, "  ", same ? "the same layout" : describe(c.layout));
}

absl::Status run(const Flags& flags) {
  PARTITA_ASSIGN_OR_RETURN(const Plan plan, read_plan(flags.plan));
  std::fputs(explanation(plan).c_str(), stdout);
  if (flags.why_not.empty() && !flags.what_if) return absl::OkStatus();
  PARTITA_ASSIGN_OR_RETURN(std::unique_ptr<Planning> p, plan_again(plan));
  for (const std::string& w : p->warnings) std::fprintf(stderr, "warning: %s\n", w.c_str());
  for (const std::string& pin : flags.why_not) {
    PARTITA_ASSIGN_OR_RETURN(SearchOptions options, options_with(*p, {}, {pin}));
    CostModel model(p->problem);
    std::printf("\nwhy not %s\n", pin.c_str());
    auto found = search(model, options);
    if (!found.ok()) {
      std::printf("  %s\n", std::string(found.status().message()).c_str());
      continue;
    }
    const Candidate& c = found->best ? *found->best : *found->nearest;
    std::fputs(comparison(plan, other_layout(c, nullptr)).c_str(), stdout);
  }
  if (!flags.what_if) return absl::OkStatus();
  std::printf("\nwhat would change it\n");
  const std::vector<WhatIf> all = what_if(p->problem, p->options);
  for (const WhatIf& w : all) std::printf("  %-26s %s\n", w.change.c_str(), change_text(all[0], w).c_str());
  return absl::OkStatus();
}

}  // namespace

void add_explain(CLI::App& app, absl::Status& result) {
  auto flags = std::make_shared<Flags>();
  CLI::App* verb =
      app.add_subcommand("explain", "a plan in words: where time and memory go, what binds, what lost and why");
  verb->add_option("plan", flags->plan, "plan.json")->required();
  verb->add_option("--why-not", flags->why_not, "plan again with this pinned and compare: pipeline=4")
      ->allow_extra_args(false);
  verb->add_flag("--what-if", flags->what_if, "plan again with more memory, faster links, faster or more devices");
  verb->callback([flags, &result] { result = run(*flags); });
}

}  // namespace partita
