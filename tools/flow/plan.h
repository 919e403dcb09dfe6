// The one flow from a model file to a plan: import, forward and backward passes, analysis, search.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "ir/recipe/recipe.h"
#include "partitioner/planner/report/plan.h"
#include "partitioner/planner/search/search.h"
#include "tools/flow/model_source.h"

namespace partita {

struct PlanRequest {
  std::string model, train_file, cluster_file;
  std::string cluster;       // not empty: the YAML itself, and no file is read
  std::string profile_file;  // YAML of devices, links and software over the built-in ones
  std::vector<std::string> pins, like;
  std::optional<Precision> precision;  // in place of the recipe's
  std::vector<std::string> sets;       // keys over the recipe's (ir/recipe/overrides.h)
  double time_limit = 0;
  // Where all parts of the layout are pinned, it is priced as the software that the profiles describe runs it: its
  // memory is theirs, and no program is allocated.
  bool published = false;
};

// A problem with all that it points to.
struct Planning {
  Recipe recipe;
  ProfileLibrary library;
  Cluster cluster;
  Workload workload;
  std::vector<Workload> shorter;  // of samples that are shorter than the largest length
  Problem problem;
  SearchOptions options;
  std::vector<std::string> warnings;
  std::unique_ptr<ModelSource> source;
  double analysis_seconds = 0;  // to read the model, too
};

// The built-in profiles, with those of a YAML file over them; "": alone. NotFound, or InvalidArgument with its line.
absl::StatusOr<ProfileLibrary> load_profiles(const std::string& file);
absl::StatusOr<std::unique_ptr<Planning>> prepare_plan(const PlanRequest& request);
// The same for one more preset ("megatron:tp8,pp4") and pins over a copy of the prepared recipe.
absl::StatusOr<SearchOptions> options_with(const Planning& planning, const std::vector<std::string>& like,
                                           const std::vector<std::string>& pins);
// The problem that a plan was made for, by the same files and flags; a cluster file that changed since is a warning.
absl::StatusOr<std::unique_ptr<Planning>> plan_again(const Plan& plan);
// The source's recipe with all of a layout pinned.
Recipe recipe_of(const ModelSource& source, const Problem& problem, const Layout& layout);
// The layout that the plan pins.
absl::StatusOr<Layout> planned_layout(const Planning& planning, const Plan& plan);
// The analysis alone, without what programs keep (partitioner/planner/cost/memory/program_memory.h).
absl::StatusOr<Workload> analyse_model(ModelSource& source);

}  // namespace partita
