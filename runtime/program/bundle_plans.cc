#include "runtime/program/bundle_plans.h"

#include <algorithm>
#include <string>

#include "base/cat.h"
#include "base/quote.h"
#include "base/status.h"
#include "runtime/program/bundle_names.h"
#include "runtime/program/placement.h"

namespace partita::runtime {

int64_t ranks_of(const BundleFiles& bundle) {
  const auto ranks = bundle.manifest().find("ranks");
  return ranks != bundle.manifest().end() && ranks->is_number_integer() ? ranks->get<int64_t>() : 0;
}

std::vector<int64_t> plans_of(const BundleFiles& bundle) {
  std::vector<int64_t> all = {ranks_of(bundle)};
  for (const nlohmann::json& ranks : bundle.manifest().value("also", nlohmann::json::array())) {
    if (ranks.is_number_integer()) all.push_back(ranks.get<int64_t>());
  }
  std::sort(all.rbegin(), all.rend());
  return all;
}

absl::StatusOr<SharedBundle> open_plan(const SharedBundle& bundle, int64_t ranks, const BundleTrust* trust) {
  if (ranks == ranks_of(*bundle)) return bundle;
  const std::vector<int64_t> all = plans_of(*bundle);
  if (std::find(all.begin(), all.end(), ranks) == all.end()) {
    std::string known;
    for (size_t k = 0; k < all.size(); ++k) append(known, k == 0 ? "" : k + 1 == all.size() ? " or " : ", ", all[k]);
    return absl::UnavailableError(
        cat("this bundle is for ", known, known == "1" ? " rank" : " ranks", " and ", ranks, " started"));
  }
  const std::string folder = cat(kPlansName, "/", ranks), path = cat(bundle->folder(), "/", folder);
  PARTITA_RETURN_IF_ERROR(bundle->checked(cat(folder, "/", kManifestName)).status());
  PARTITA_ASSIGN_OR_RETURN(auto plan,
                           trust != nullptr ? BundleFiles::open(path, *trust) : BundleFiles::open_unproved(path));
  const nlohmann::json& listed = bundle->manifest()["files"][cat(folder, "/", kManifestName)];
  if (listed.value("sha256", "") != plan->root() || ranks_of(*plan) != ranks)
    return absl::DataLossError(cat(quote(path, 1000), " is not the plan for ", ranks, " ranks that ",
                                   quote(bundle->folder(), 1000), " lists; copy or compile the bundle again"));
  return plan;
}

absl::StatusOr<SharedBundle> open_checked_plan(const SharedBundle& bundle, int64_t ranks, const BundleTrust& trust,
                                               int threads) {
  PARTITA_ASSIGN_OR_RETURN(SharedBundle plan, open_plan(bundle, ranks, &trust));
  if (plan != bundle) PARTITA_RETURN_IF_ERROR(plan->check(threads, /*weights=*/false));
  return plan;
}

absl::StatusOr<std::vector<Program>> programs_of(const BundleFiles& plan) {
  PARTITA_ASSIGN_OR_RETURN(std::vector<Program> programs, plan.programs(kImageName));
  if (const int64_t ranks = mesh_size(programs.front().mesh); ranks != ranks_of(plan))
    return absl::DataLossError(cat(quote(plan.folder(), 1000), ": the programs are for ", ranks, " ranks and ",
                                   kManifestName, " says ", ranks_of(plan), "; compile the bundle again"));
  return programs;
}

}  // namespace partita::runtime
