#include "tools/proof/numeric_check.h"

#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <utility>

#include "base/cat.h"
#include "base/status.h"
#include "base/temporary_folder.h"
#include "nlohmann/json.hpp"
#include "tools/proof/confined.h"
#include "tools/proof/numeric_runs.h"
#include "tools/proof/run_comparison.h"
#include "tools/proof/trials/kernel_trials.h"
#include "tools/verify/steps/check_versions.h"

namespace partita {
namespace {

constexpr int64_t kMostSeconds = 3600;  // of all runs
constexpr int kMoreDraws = 2;           // of synthetic samples that agree, or do not, decide where the first did not

// On the samples that options.train names.
absl::StatusOr<verifier::NumericVerdict> compare(const verifier::Bundle& bundle, const NumericOptions& options) {
  for (const verifier::RankProgram& p : bundle.programs) {
    if (verifier::updates_each(p.program))
      return absl::InvalidArgumentError(
          "numeric: with schedule: pipedream and several micro-batches a step the ranks do not compute the serial "
          "program, by choice; compile with batch.global of one micro-batch to compare, or leave --numeric out");
  }
  const NumericRuns make(bundle, options.train, options.folder);
  PARTITA_ASSIGN_OR_RETURN(Runs runs, make.all());
  if (runs.compiled.serial.scalars.losses.empty()) return absl::AbortedError("numeric: expected steps, found none");
  // A rank sums the 16-bit products of fewer samples: near the largest number, one may overflow where the other does
  // not.
  if (runs.ranks.scalars.skipped != runs.compiled.serial.scalars.skipped)
    return absl::FailedPreconditionError(
        "numeric: the loss scale is at its limit: gradients of some step overflow in the serial program and not on the "
        "ranks, or the other way round, and what follows cannot be compared; compare on other samples (--data)");
  if (const auto& skipped = runs.ranks.scalars.skipped; std::ranges::count(skipped, false) == 0)
    return absl::FailedPreconditionError(
        cat("numeric: gradients overflow in all of ", skipped.size(),
            " steps, in the serial program and on the ranks: no update can be compared; compare more --steps or on "
            "other samples (--data)"));
  RunComparison comparison(make, runs, std::max(options.tolerance, rounding(bundle.serial)), bundle.compress == "none");
  PARTITA_RETURN_IF_ERROR(comparison.compare(runs.compiled));
  PARTITA_RETURN_IF_ERROR(make.add_reference(runs, 2 * kMoreDraws));
  if (runs.reference) PARTITA_RETURN_IF_ERROR(comparison.compare(*runs.reference));
  return std::move(comparison.verdict);
}

}  // namespace

absl::StatusOr<verifier::NumericVerdict> check_numeric(const verifier::Bundle& bundle, const NumericOptions& options) {
  auto first = compare(bundle, options);
  const runtime::DataConfig& data = options.train.data;
  if (first.status().code() != absl::StatusCode::kAborted || data.kind != DataKind::kSynthetic) return first;
  // A value that lies at a kink (of a relu, between two maxima) falls on either side by rounding, and its gradient
  // with it. That is so on some samples; a wrong program is wrong on all.
  verifier::NumericVerdict verdict;
  int agree = 0, differ = 0;
  while (agree < kMoreDraws && differ < kMoreDraws) {
    NumericOptions other = options;
    other.train.data.seed += agree + differ + 1;
    auto again = compare(bundle, other);
    if (!again.ok()) {
      ++differ;
    } else if (agree++ == 0 || again->tensor_error > verdict.tensor_error) {
      verdict = *again;
    }
  }
  if (differ == kMoreDraws) return first;
  verdict.kink = std::string(first.status().message());
  return verdict;
}

namespace {

using Json = nlohmann::json;

std::string to_text(const verifier::NumericVerdict& v) {
  const verifier::KernelTrials& t = v.kernels;
  return Json{{"steps", v.steps},
              {"kernels", {t.generated, t.library, t.draws, t.elements}},
              {"left_out", t.left_out},
              {"tensors", v.tensors},
              {"loss_error", v.loss_error},
              {"tensor_error", v.tensor_error},
              {"by_reference", v.by_reference},
              {"kink", v.kink}}
      .dump(-1, ' ', false, Json::error_handler_t::replace);
}

absl::StatusOr<verifier::NumericVerdict> from_text(const std::string& text) {
  const Json j = Json::parse(text, nullptr, false);
  if (!j.is_object()) return absl::AbortedError("numeric: the process that ran the bundle's code told nothing sound");
  const auto counts = j.value("kernels", std::vector<int64_t>{0, 0, 0, 0});
  return verifier::NumericVerdict{.steps = j.value("steps", int64_t{0}),
                                  .tensors = j.value("tensors", int64_t{0}),
                                  .loss_error = j.value("loss_error", 0.0),
                                  .tensor_error = j.value("tensor_error", 0.0),
                                  .by_reference = j.value("by_reference", false),
                                  .kink = j.value("kink", ""),
                                  .kernels = {counts.at(0), counts.at(1), counts.at(2), counts.at(3),
                                              j.value("left_out", std::vector<std::string>{})}};
}

}  // namespace

absl::StatusOr<verifier::NumericVerdict> check_numeric_apart(const verifier::Bundle& bundle, NumericOptions options) {
  PARTITA_ASSIGN_OR_RETURN(const TemporaryFolder folder, TemporaryFolder::create("the runs"));
  options.folder = folder.path();
  const Confinement limits{.folder = folder.path(),
                           .memory_bytes = ::sysconf(_SC_PHYS_PAGES) / 10 * 9 * ::sysconf(_SC_PAGESIZE),
                           .seconds = kMostSeconds};
  PARTITA_ASSIGN_OR_RETURN(ConfinedResult result, run_confined(limits, [&]() -> absl::StatusOr<std::string> {
                             PARTITA_ASSIGN_OR_RETURN(auto trials, try_kernels(bundle));
                             PARTITA_ASSIGN_OR_RETURN(auto verdict, check_numeric(bundle, options));
                             verdict.kernels = std::move(trials);
                             return to_text(verdict);
                           }));
  PARTITA_ASSIGN_OR_RETURN(verifier::NumericVerdict verdict, from_text(result.text));
  verdict.confined = std::move(result.held);
  verdict.unconfined = std::move(result.lacking);
  return verdict;
}

}  // namespace partita
