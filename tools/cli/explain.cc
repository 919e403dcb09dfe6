#include "partitioner/explain.h"
#include "base/cat.h"
#include "base/status.h"
#include "nlohmann/json.hpp"
#include "partitioner/plan_file.h"
#include "partitioner/sweep.h"
#include "tools/cli/command.h"
#include "tools/plan.h"

namespace partita {
namespace {

struct Flags {
  std::string plan;
  std::vector<std::string> why_not;
  bool what_if = false;
};

std::string text_at(const nlohmann::json& plan, const char* key) {
  const auto& in = plan.contains("inputs") ? plan["inputs"] : plan;
  return in.is_object() && in.contains(key) && in[key].is_string() ? in[key].get<std::string>() : "";
}

absl::StatusOr<std::unique_ptr<Planning>> again(const nlohmann::json& plan) {
  PlanRequest r;
  r.model = text_at(plan, "model"), r.train_file = text_at(plan, "train"),
  r.cluster_file = text_at(plan, "cluster_path");
  if (r.model.empty() || r.cluster_file.empty())
    return absl::FailedPreconditionError("the plan does not say which model and cluster it was made for");
  return prepare_plan(r);
}

absl::Status run(const Flags& flags) {
  PARTITA_ASSIGN_OR_RETURN(nlohmann::json plan, read_plan(flags.plan));
  std::fputs(explanation(plan).c_str(), stdout);
  if (flags.why_not.empty() && !flags.what_if) return absl::OkStatus();
  PARTITA_ASSIGN_OR_RETURN(std::unique_ptr<Planning> p, again(plan));
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
    std::fputs(comparison(plan, candidate_json(p->problem, c, nullptr)).c_str(), stdout);
  }
  if (!flags.what_if) return absl::OkStatus();
  std::printf("\nwhat would change it\n");
  for (const WhatIf& w : what_if(p->problem, p->options)) {
    std::printf("  %-26s %s\n", w.change.c_str(),
                w.candidate ? fmt::format("{:.4g} s a step: {}", w.candidate->prediction.step_seconds,
                                          describe(w.candidate->layout))
                                  .c_str()
                            : "still does not fit");
  }
  return absl::OkStatus();
}

}  // namespace

void add_explain(CLI::App& app, absl::Status& result) {
  auto flags = std::make_shared<Flags>();
  CLI::App* verb =
      app.add_subcommand("explain", "a plan in words: where time and memory go, what binds, what lost and why");
  verb->add_option("plan", flags->plan, "plan.json")->required();
  verb->add_option("--why-not", flags->why_not, "plan again with this pinned and compare: pipeline=4");
  verb->add_flag("--what-if", flags->what_if, "plan again with more memory, faster links, a faster device");
  verb->callback([flags, &result] { result = run(*flags); });
}

}  // namespace partita
