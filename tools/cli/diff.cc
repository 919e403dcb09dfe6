#include "base/status.h"
#include "partitioner/planner/report/plan_difference.h"
#include "partitioner/planner/report/plan_file.h"
#include "tools/cli/command.h"

namespace partita {

void add_diff(CLI::App& app, absl::Status& result) {
  struct Flags {
    std::string a, b;
    bool all = false;
  };
  auto flags = std::make_shared<Flags>();
  CLI::App* verb = app.add_subcommand("diff", "what differs between two plans");
  verb->add_option("a", flags->a, "plan.json")->required();
  verb->add_option("b", flags->b, "another")->required();
  verb->add_flag("--all", flags->all, "every value that differs, under its key in the files");
  verb->callback([flags, &result] {
    auto run = [&]() -> absl::Status {
      PARTITA_ASSIGN_OR_RETURN(const Plan a, read_plan(flags->a));
      PARTITA_ASSIGN_OR_RETURN(const Plan b, read_plan(flags->b));
      std::string text = flags->all ? all_differences(a, b) : plan_difference(a, b);
      std::fputs(text.empty() ? "no difference\n" : text.c_str(), stdout);
      return absl::OkStatus();
    };
    result = run();
  });
}

}  // namespace partita
