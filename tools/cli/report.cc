#include <chrono>
#include <cstdlib>
#include <ctime>

#include "base/atomic_file.h"
#include "base/status.h"
#include "fmt/chrono.h"
#include "nlohmann/json.hpp"
#include "partitioner/planner/report/plan_file.h"
#include "tools/calibrate/measured_groups.h"
#include "tools/cli/command.h"
#include "tools/flow/plan.h"
#include "tools/page/report_data.h"
#include "tools/page/report_page.h"
#include "tools/page/report_run.h"

namespace partita {
namespace {

struct Flags {
  std::string plan, output, trace, metrics, certificate;
  bool what_if = false;

  std::vector<std::string> command() const {
    std::vector<std::string> words = {"partita", "report", plan, "-o", output};
    for (const auto& [flag, value] :
         {std::pair{"--trace", trace}, {"--metrics", metrics}, {"--certificate", certificate}}) {
      if (!value.empty()) words.insert(words.end(), {flag, value});
    }
    if (what_if) words.emplace_back("--what-if");
    return words;
  }
};

// Of now, or, for pages that are to be the same again, of SOURCE_DATE_EPOCH (reproducible-builds.org).
std::string date() {
  const char* set = std::getenv("SOURCE_DATE_EPOCH");
  const std::time_t now = set != nullptr ? static_cast<std::time_t>(std::strtoll(set, nullptr, 10))
                                         : std::chrono::system_clock::to_time_t(std::chrono::system_clock::now());
  return fmt::format("{:%Y-%m-%d %H:%M} UTC", fmt::gmtime(now));
}

// What needs the model and the cluster that the plan was made for.
absl::Status add_planned_again(const Flags& flags, const Plan& plan, nlohmann::json& data) {
  PARTITA_ASSIGN_OR_RETURN(std::unique_ptr<Planning> p, plan_again(plan));
  for (const std::string& w : p->warnings) std::fprintf(stderr, "warning: %s\n", w.c_str());
  if (flags.what_if) data["what_if"] = what_if_json(what_if(p->problem, p->options));
  if (flags.trace.empty()) return absl::OkStatus();
  PARTITA_ASSIGN_OR_RETURN(Layout layout, planned_layout(*p, plan));
  PARTITA_ASSIGN_OR_RETURN(std::vector<MeasuredGroup> groups, read_measured_groups(flags.trace, p->problem, layout));
  data["measured"] = measured_json(p->problem, layout, groups, flags.trace);
  return absl::OkStatus();
}

absl::Status run(const Flags& flags) {
  PARTITA_ASSIGN_OR_RETURN(const Plan plan, read_plan(flags.plan));
  PARTITA_ASSIGN_OR_RETURN(const PlannedStep step, planned_step(plan));
  nlohmann::json data = report_data(plan, step);
  data["made"] = {{"date", date()}, {"command", flags.command()}};
  if (flags.what_if || !flags.trace.empty()) PARTITA_RETURN_IF_ERROR(add_planned_again(flags, plan, data));
  if (!flags.metrics.empty()) {
    PARTITA_ASSIGN_OR_RETURN(data["learning"], learning_json(flags.metrics));
  }
  if (!flags.certificate.empty()) {
    PARTITA_ASSIGN_OR_RETURN(data["proof"], proof_json(flags.certificate));
  }
  return write_file_atomically(flags.output, report_page(data));
}

}  // namespace

void add_report(CLI::App& app, absl::Status& result) {
  auto flags = std::make_shared<Flags>();
  CLI::App* verb = app.add_subcommand("report", "a plan as one self-contained HTML page");
  verb->add_option("plan", flags->plan, "plan.json")->required();
  verb->add_option("-o,--output", flags->output, "page to write")->required();
  verb->add_flag("--what-if", flags->what_if, "plan again with more memory, faster links, faster or more devices");
  verb->add_option(
      "--trace", flags->trace,
      "a measured run of the plan (what `partita train --plan … --profile` wrote), beside what is predicted");
  verb->add_option("--metrics", flags->metrics,
                   "the learning curve of a run (what `partita train --metrics FILE.jsonl` wrote)");
  verb->add_option("--certificate", flags->certificate,
                   "what was proved of the plan's bundle (certificate.json, which `partita verify` wrote)");
  verb->callback([flags, &result] { result = run(*flags); });
}

}  // namespace partita
