#include "partitioner/planner/report/sweep.h"

#include <algorithm>

#include "base/atomic_file.h"
#include "base/status.h"
#include "tools/cli/command.h"
#include "tools/flow/plan.h"
#include "tools/page/sweep_page.h"

namespace partita {
namespace {

struct Flags {
  PlanRequest request;
  std::string devices, csv, svg;
  double tokens = 0;
  bool failures = false;
};

absl::Status run(const Flags& flags) {
  PARTITA_ASSIGN_OR_RETURN(std::vector<int64_t> sizes, parse_sizes(flags.devices));
  PARTITA_ASSIGN_OR_RETURN(std::unique_ptr<Planning> p, prepare_plan(flags.request));
  PARTITA_ASSIGN_OR_RETURN(Sweep s, sweep(p->problem, p->options, sizes, flags.tokens, flags.failures));
  std::fputs(sweep_table(s, flags.tokens).c_str(), stdout);
  if (!flags.csv.empty()) PARTITA_RETURN_IF_ERROR(write_file_atomically(flags.csv, sweep_csv(s)));
  if (!flags.svg.empty()) {
    double tokens = p->workload.tokens * static_cast<double>(p->problem.global_batch);
    PARTITA_RETURN_IF_ERROR(write_file_atomically(flags.svg, sweep_svg(s, tokens)));
  }
  if (std::none_of(s.rows.begin(), s.rows.end(), [](const SweepRow& r) { return r.best.has_value(); }))
    return absl::ResourceExhaustedError(
        "no size has a layout that fits; `partita plan` on one of them says what is missing and what would do");
  return absl::OkStatus();
}

}  // namespace

void add_sweep(CLI::App& app, absl::Status& result) {
  auto flags = std::make_shared<Flags>();
  CLI::App* verb =
      app.add_subcommand("sweep", "the best plan for each number of devices: step time, days, $, the knee");
  add_plan_flags(*verb, flags->request);
  verb->add_option("--devices", flags->devices, "8..1024 (doubling) or 8,16,24")->required();
  verb->add_option("--tokens", flags->tokens, "train on this many tokens (samples without a sequence)")
      ->check(CLI::NonNegativeNumber);
  verb->add_flag("--failures", flags->failures,
                 "count what failing machines cost (failures: of the cluster): throughput, days, $ and the knee are "
                 "those of such a run");
  verb->add_option("--csv", flags->csv, "write the table as CSV");
  verb->add_option("--svg", flags->svg, "write the chart as SVG");
  verb->callback([flags, &result] { result = run(*flags); });
}

}  // namespace partita
