#include "runtime/program/bundle_plans.h"

#include <algorithm>
#include <string>

#include "absl/functional/function_ref.h"
#include "base/cat.h"
#include "base/quote.h"
#include "base/status.h"
#include "runtime/program/bundle_names.h"
#include "runtime/program/placement.h"

namespace partita::runtime {
namespace {

int64_t integer_of(const BundleFiles& bundle, const char* key) {
  const auto found = bundle.manifest().find(key);
  return found != bundle.manifest().end() && found->is_number_integer() ? found->get<int64_t>() : 0;
}

// A bundle in a folder of another one, which lists it.
absl::StatusOr<SharedBundle> open_within(const BundleFiles& bundle, const std::string& folder, const BundleTrust* trust,
                                         const std::string& what,
                                         absl::FunctionRef<bool(const BundleFiles&)> is_meant) {
  const std::string path = cat(bundle.folder(), "/", folder), manifest = cat(folder, "/", kManifestName);
  PARTITA_RETURN_IF_ERROR(bundle.checked(manifest).status());
  PARTITA_ASSIGN_OR_RETURN(auto inner,
                           trust != nullptr ? BundleFiles::open(path, *trust) : BundleFiles::open_unproved(path));
  const nlohmann::json& listed = bundle.manifest()["files"][manifest];
  if (listed.value("sha256", "") != inner->root() || !is_meant(*inner))
    return absl::DataLossError(cat(quote(path, 1000), " is not ", what, " that ", quote(bundle.folder(), 1000),
                                   " lists; copy or compile the bundle again"));
  return inner;
}

}  // namespace

int64_t ranks_of(const BundleFiles& bundle) { return integer_of(bundle, "ranks"); }
int64_t samples_of(const BundleFiles& bundle) { return integer_of(bundle, "samples_per_step"); }
int64_t length_of(const BundleFiles& bundle) { return integer_of(bundle, "length"); }

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
  return open_within(*bundle, cat(kPlansName, "/", ranks), trust, cat("the plan for ", ranks, " ranks"),
                     [&](const BundleFiles& plan) { return ranks_of(plan) == ranks; });
}

absl::StatusOr<std::vector<RampStep>> ramp_of(const BundleFiles& plan) {
  std::vector<RampStep> ramp;
  for (const nlohmann::json& step : plan.manifest().value("ramp", nlohmann::json::array())) {
    const bool pair = step.is_array() && step.size() == 2 && step[0].is_number_integer() && step[1].is_number_integer();
    if (pair) ramp.push_back({step[0].get<int64_t>(), step[1].get<int64_t>()});
    const bool first = ramp.size() < 2;
    if (!pair || ramp.back().samples < 1 || ramp.back().from < (first ? 0 : ramp[ramp.size() - 2].from + 1) ||
        ramp.front().from != 0)
      return absl::DataLossError(cat(quote(plan.folder(), 1000), ": ", kManifestName,
                                     " has a damaged ramp; compile "
                                     "the bundle again"));
  }
  return ramp;
}

absl::StatusOr<SharedBundle> open_batch(const BundleFiles& plan, int64_t samples, const BundleTrust* trust) {
  return open_within(
      plan, cat(kBatchesName, "/", samples), trust, cat("the part for ", samples, " samples a step"),
      [&](const BundleFiles& part) { return samples_of(part) == samples && ranks_of(part) == ranks_of(plan); });
}

absl::StatusOr<std::vector<int64_t>> lengths_of(const BundleFiles& plan) {
  const nlohmann::json said = plan.manifest().value("lengths", nlohmann::json::object());
  std::vector<int64_t> lengths;
  if (said.empty()) return lengths;
  bool good = said.is_object() && said.size() == 1 && said.begin()->is_array() && said.begin()->size() > 1;
  for (const nlohmann::json& length : good ? *said.begin() : nlohmann::json::array()) {
    good = good && length.is_number_integer() && length > (lengths.empty() ? 0 : lengths.back());
    if (good) lengths.push_back(length.get<int64_t>());
  }
  if (good) return lengths;
  return absl::DataLossError(
      cat(quote(plan.folder(), 1000), ": ", kManifestName, " has damaged lengths; compile the bundle again"));
}

absl::StatusOr<SharedBundle> open_length(const BundleFiles& plan, int64_t length, const BundleTrust* trust) {
  return open_within(plan, cat(kLengthsName, "/", length), trust, cat("the part for samples of length ", length),
                     [&](const BundleFiles& part) {
                       return length_of(part) == length && ranks_of(part) == ranks_of(plan) &&
                              samples_of(part) * length == samples_of(plan) * length_of(plan);
                     });
}

absl::StatusOr<SharedBundle> open_checked_batch(const BundleFiles& plan, int64_t samples, const BundleTrust& trust,
                                                int threads) {
  PARTITA_ASSIGN_OR_RETURN(SharedBundle part, open_batch(plan, samples, &trust));
  PARTITA_RETURN_IF_ERROR(part->check(threads, /*weights=*/false));
  return part;
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
