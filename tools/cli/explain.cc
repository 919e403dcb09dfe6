#include "partitioner/explain.h"

#include <algorithm>

#include "base/cat.h"
#include "base/quote.h"
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

std::vector<std::string> texts_at(const nlohmann::json& plan, const char* key) {
  std::vector<std::string> out;
  if (!plan.contains("inputs") || !plan["inputs"].is_object() || !plan["inputs"].contains(key)) return out;
  for (const auto& text : plan["inputs"][key])
    if (text.is_string()) out.push_back(text.get<std::string>());
  return out;
}

// The problem that the plan was made for, by the same files and flags.
absl::StatusOr<std::unique_ptr<Planning>> again(const nlohmann::json& plan) {
  PlanRequest r;
  r.model = text_at(plan, "model"), r.train_file = text_at(plan, "train");
  r.cluster_file = text_at(plan, "cluster_path"), r.profile_file = text_at(plan, "profiles");
  r.like = texts_at(plan, "like"), r.pins = texts_at(plan, "pins");
  if (r.model.empty() || r.cluster_file.empty())
    return absl::FailedPreconditionError("the plan does not say which model and cluster it was made for");
  if (std::string trace = text_at(plan, "refined"); !trace.empty())
    return absl::FailedPreconditionError(
        cat("the plan was made with a profile that ", quote(trace),
            " corrected, and nobody wrote that down: plan again with --refined-profile FILE"));
  if (std::string name = text_at(plan, "precision"); !name.empty()) {
    const auto names = enum_names<Precision>();
    const auto at = std::find(names.begin(), names.end(), name);
    if (at == names.end())
      return absl::InvalidArgumentError(cat("plan: inputs.precision: unknown value ", quote(name)));
    r.precision = static_cast<Precision>(at - names.begin());
  }
  PARTITA_ASSIGN_OR_RETURN(std::unique_ptr<Planning> p, prepare_plan(r));
  if (p->cluster.text != text_at(plan, "cluster"))
    std::printf(
        "\nnote: %s has changed since the plan was made; what follows is for the cluster that it describes now\n",
        quote(r.cluster_file).c_str());
  return p;
}

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
  verb->add_option("--why-not", flags->why_not, "plan again with this pinned and compare: pipeline=4");
  verb->add_flag("--what-if", flags->what_if, "plan again with more memory, faster links, faster or more devices");
  verb->callback([flags, &result] { result = run(*flags); });
}

}  // namespace partita
