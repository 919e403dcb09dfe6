// What the verbs of the command line share.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "CLI/App.hpp"  // all of CLI11 takes three seconds more; where an App is made it is needed
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"
#include "partitioner/planner/report/plan.h"
#include "runtime/launch/restarts.h"
#include "runtime/run_flags.h"
#include "tools/flow/compile.h"

namespace partita {

// Registers a verb; `result` receives its outcome when it has run.
void add_train(CLI::App& app, absl::Status& result);
void add_plan(CLI::App& app, absl::Status& result);
void add_explain(CLI::App& app, absl::Status& result);
void add_sweep(CLI::App& app, absl::Status& result);
void add_simulate(CLI::App& app, absl::Status& result);
void add_report(CLI::App& app, absl::Status& result);
void add_watch(CLI::App& app, absl::Status& result);
void add_diff(CLI::App& app, absl::Status& result);
void add_compile(CLI::App& app, absl::Status& result);
void add_run(CLI::App& app, absl::Status& result);
void add_data(CLI::App& app, absl::Status& result);
void add_launch(CLI::App& app, absl::Status& result);
void add_verify(CLI::App& app, absl::Status& result);
void add_compare(CLI::App& app, absl::Status& result);
void add_disassemble(CLI::App& app, absl::Status& result);
void add_assemble(CLI::App& app, absl::Status& result);
void add_doctor(CLI::App& app, absl::Status& result);
void add_model(CLI::App& app, absl::Status& result);
void add_factors(CLI::App& app, absl::Status& result);
void add_autopsy(CLI::App& app, absl::Status& result);
void add_checkpoint(CLI::App& app, absl::Status& result);
void add_import_config(CLI::App& app, absl::Status& result);
void add_predict(CLI::App& app, absl::Status& result);
void add_generate(CLI::App& app, absl::Status& result);
void add_completion(CLI::App& app, absl::Status& result);
void add_manual(CLI::App& app, absl::Status& result);

// `--precision`: the recipe's key of that name.
void add_precision(CLI::App& app, std::optional<Precision>& precision);

// `--set KEY=VALUE`, and the short forms of some: keys of the recipe over what its file says.
void add_sets(CLI::App& app, std::vector<std::string>& sets);

// A model, its recipe and how to compile it: the flags that train and compile share. No target is cpu:host.
struct ModelFlags {
  std::string model, train_file, plan, target, dump_ir, stop_after;
  std::optional<Plan> made;  // in place of `plan`: one that was searched for this run
  std::vector<std::string> pins, like;
  std::vector<std::string> sets;  // keys of the recipe said over again, "optimizer.lr=1e-4"
  std::optional<int64_t> ranks;
  std::optional<Precision> precision;
  bool time_passes = false, no_fusion = false, no_in_place = false, no_epilogues = false, allow_infeasible = false;

  // The first lines of every --help: what to compile, and how.
  void add(CLI::App& app);
  // A layout is said, other than by train.yaml.
  bool says_layout() const { return !plan.empty() || !like.empty() || !pins.empty() || ranks; }
  // Loads and checks the recipe and applies the precision, the plan, presets, then pins.
  absl::StatusOr<CompileRequest> request() const;
};

// How the ranks of a run are started on this host.
struct LaunchFlags {
  bool processes = false;
  runtime::RestartLimits restarts = {};
  std::optional<int64_t> ranks = {};  // of the bundle's plans the one for so many; unset: the bundle's own

  // After those of RunFlags.
  void add(CLI::App& app);
};
// --ranks of a bundle that is there.
void add_ranks(CLI::App& app, std::optional<int64_t>& ranks);
void add_restarts(CLI::App& app, runtime::RestartLimits& limits);

// Runs a bundle with all its ranks as threads of this process, or in processes of their own.
absl::Status run_bundle(const std::string& folder, const runtime::RunFlags& flags, const LaunchFlags& launch = {});
// How a bundle is run to be looked at: on its own data where it has some and no others are said, else on numbers made
// up; two steps where none are said.
absl::StatusOr<runtime::TrainOptions> checked_run(const runtime::BundleFiles& bundle, runtime::RunFlags flags);
struct PlanRequest;
// Model, recipe, cluster, pins: the flags that every verb that plans has.
void add_plan_flags(CLI::App& verb, PlanRequest& request);
// Searches a layout; says the summary on standard output unless `quiet`.
absl::StatusOr<Plan> search_plan(const PlanRequest& request, bool quiet);

// The first word that is no command or option where it stands: InvalidArgument with the nearest one.
absl::Status check_words(const CLI::App& app, int argc, char** argv);

// Numbers of all commands are numbers: `nan` lies in every range of the parser's.
void refuse_nan(CLI::App& app);

// What the parser says of a number that is out of range, without the limits of its type.
std::string without_limits(const CLI::App& app, const std::string& message);

// The runner that bundles are made with: beside this program, where it is installed (../lib/partita), or where it was
// built (../runtime).
absl::StatusOr<std::string> find_runner();

void print_warnings(const Compiled& compiled);
void print_seconds(const Compiled& compiled);

}  // namespace partita
