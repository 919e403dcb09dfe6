#include "partitioner/planner/report/explain.h"

#include <algorithm>

#include "base/cat.h"
#include "base/quote.h"
#include "base/status.h"
#include "fmt/format.h"
#include "partitioner/audit/explain_value.h"
#include "partitioner/planner/report/make_plan.h"
#include "partitioner/planner/report/plan_file.h"
#include "partitioner/planner/report/sweep.h"
#include "tools/cli/command.h"
#include "tools/flow/partition.h"
#include "tools/flow/plan.h"

namespace partita {
namespace {

struct Flags {
  ModelFlags model;  // `model`: of a plan.json, or a model's own
  std::vector<std::string> why_not, values;
  bool what_if = false;

  bool is_plan() const { return model.model.ends_with(".json"); }
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

// Of the plan's layout, or of that which flags and recipe give a model.
absl::Status explain_values(Flags flags) {
  if (flags.is_plan()) {
    PARTITA_ASSIGN_OR_RETURN(flags.model.made, read_plan(flags.model.model));
    flags.model.model = flags.model.made->inputs.model;
    if (flags.model.train_file.empty()) flags.model.train_file = flags.model.made->inputs.train;
    flags.model.precision = flags.model.made->inputs.precision;
  }
  PARTITA_ASSIGN_OR_RETURN(const CompileRequest request, flags.model.request());
  const bool gradients = std::any_of(flags.values.begin(), flags.values.end(),
                                     [](const std::string& name) { return name.starts_with("grad/"); });
  ModelSource source(request.model, request.recipe);
  PassRun passes = PassRun::unchecked();
  PhaseTimes times;
  PARTITA_ASSIGN_OR_RETURN(
      const Partition p,
      partition_model(source, request.recipe, {request.ranks, gradients, request.target.row_bytes()}, passes, times));
  for (const std::string& w : p.model.warnings) std::fprintf(stderr, "warning: %s\n", w.c_str());
  for (const std::string& name : flags.values) {
    PARTITA_ASSIGN_OR_RETURN(const std::string text,
                             explain_value(p.planned, p.model.layout, p.model.recipe.pin, name));
    std::fputs(text.c_str(), stdout);
  }
  return absl::OkStatus();
}

absl::Status run(const Flags& flags) {
  if (!flags.values.empty()) return explain_values(flags);
  if (!flags.is_plan())
    return absl::InvalidArgumentError(
        cat(quote(flags.model.model),
            ": expected a plan.json; of a model's value: --value NAME says why it lies as it does"));
  PARTITA_ASSIGN_OR_RETURN(const Plan plan, read_plan(flags.model.model));
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
  verb->add_option("plan", flags->model.model, "plan.json; with --value also a model, an ONNX file or a folder")
      ->required();
  verb->add_option("--why-not", flags->why_not, "plan again with this pinned and compare: pipeline=4")
      ->allow_extra_args(false);
  CLI::Option* value = verb->add_option("--value", flags->values,
                                        "why this value, parameter or output (grad/NAME) lies on the ranks as it does")
                           ->allow_extra_args(false);
  verb->add_option("--train", flags->model.train_file, "of a model: the recipe, train.yaml")->needs(value);
  verb->add_option("--ranks", flags->model.ranks, "of a model: number of ranks; default: what the pins say, else 1")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 20))
      ->needs(value);
  verb->add_option("--like", flags->model.like, "of a model: a well-known layout: ddp, zero1, megatron:tp2, …")
      ->allow_extra_args(false)
      ->needs(value);
  verb->add_option("--pin", flags->model.pins, "of a model: fix a part of the layout: KEY=VALUE")
      ->allow_extra_args(false)
      ->needs(value);
  verb->add_flag("--what-if", flags->what_if, "plan again with more memory, faster links, faster or more devices");
  verb->callback([flags, &result] { result = run(*flags); });
}

}  // namespace partita
