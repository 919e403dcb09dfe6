#include "tools/proof/numeric_check.h"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <utility>

#include "base/cat.h"
#include "base/quote.h"
#include "base/status.h"
#include "base/temporary_folder.h"
#include "nlohmann/json.hpp"
#include "tools/proof/confined.h"
#include "tools/proof/numeric_runs.h"
#include "tools/proof/trials/kernel_trials.h"
#include "tools/verify/steps/check_versions.h"

namespace partita {
namespace {

constexpr double kNoise = 10;           // of the difference that compiling without fusion makes
constexpr double kRounding = 3;         // of the one that first values off by a 16-bit type's rounding make
constexpr int64_t kMostSeconds = 3600;  // of all runs
constexpr int kMoreDraws = 2;           // of synthetic samples, all of which must agree where the first did not

// Something's length over that of what it is held against.
double share(double off, double size) { return off == 0 ? 0 : std::isnan(off) ? INFINITY : off / size; }
double difference(double a, double b) { return share(std::abs(a - b), std::abs(b)); }

// What rounding a state to its own type may change it by, relatively, over some steps.
double stored(DType dtype) {
  return dtype == DType::kBF16 ? 0x1p-7 : dtype == DType::kF16 ? 0x1p-10 : dtype == DType::kF64 ? 0x1p-50 : 0x1p-22;
}

class Comparison {
 public:
  // `equal`: the ranks compute the serial program; else (compressed gradients) only the first loss is its own, and the
  // rest is measured, and has to be finite.
  Comparison(const NumericRuns& more, Runs& runs, double tolerance, bool equal)
      : more_(more), runs_(runs), tolerance_(tolerance), equal_(equal) {
    verdict.steps = static_cast<int64_t>(runs.compiled.serial.scalars.losses.size());
  }

  // The ranks must agree with each side, by what that side can tell. Of a sum whose terms cancel all is rounding to the
  // reference evaluator, while one rank and several differ; a fault of all compiled programs shows beside it alone.
  absl::Status compare_compiled() { return compare({runs_.compiled, kRounding, ""}); }
  absl::Status compare_reference() {
    verdict.by_reference = true;
    return compare({*runs_.reference, kNoise, " by the reference evaluator"});
  }

  verifier::NumericVerdict verdict;

 private:
  struct Against {
    Side& side;
    double share;  // of what first values that are off by their rounding change, that the ranks may differ by
    const char* by;
  };

  absl::Status compare(const Against& against) {
    PARTITA_RETURN_IF_ERROR(compare_scalars(against, "the loss of step", &StepNumbers::losses, 1));
    PARTITA_RETURN_IF_ERROR(compare_scalars(against, "the learning rate of step", &StepNumbers::rates, SIZE_MAX));
    PARTITA_RETURN_IF_ERROR(compare_scalars(against, "the gradients' norm of step", &StepNumbers::norms, 0));
    PARTITA_RETURN_IF_ERROR(compare_scalars(against, "the loss of evaluation", &StepNumbers::evaluations, 0));
    return compare_tensors(against);
  }

  // Numbers of each step, the first `held` of them also where gradients are compressed.
  absl::Status compare_scalars(const Against& against, std::string_view what, std::vector<double> StepNumbers::*numbers,
                               size_t held) {
    const auto of = [&](const Outcome& o) -> const std::vector<double>& { return o.scalars.*numbers; };
    const std::vector<double>&all = of(runs_.ranks), &compiled = of(runs_.compiled.serial),
          &serial = of(against.side.serial);
    if (all.size() != compiled.size())
      return absl::AbortedError(cat("numeric: ", what, ": expected ", compiled.size(), ", found ", all.size()));
    for (size_t k = 0; k < serial.size(); ++k) {
      const double one = serial[k], found = difference(all[k], one);
      PARTITA_ASSIGN_OR_RETURN(const double allowed, noise(against, found, [&](const Outcome& a, const Outcome& b) {
                                 return k < of(a).size() ? difference(of(a)[k], of(b)[k]) : 0;
                               }));
      verdict.loss_error = std::max(verdict.loss_error, found);
      if (beyond(found, allowed, equal_ || k < held))
        return absl::AbortedError(cat("numeric: ", what, " ", k, ": expected ", one, against.by, ", found ", all[k],
                                      " on ", runs_.several ? "all ranks" : "one rank"));
    }
    return absl::OkStatus();
  }

  absl::Status compare_tensors(const Against& against) {
    verdict.tensors = 0;
    for (const std::string& name : runs_.compiled.serial.names()) {
      if (!runs_.ranks.has(name)) return absl::AbortedError(cat("numeric: ", quote(name), ": expected it, found none"));
      ++verdict.tensors;
      if (!against.side.serial.has(name)) continue;
      const bool state = runs_.first.has(name);
      const double size = size_of(name, against.side.serial);
      const auto apart = [&](const Outcome& a, const Outcome& b) {
        return a.has(name) && b.has(name) ? share(distance(a.numbers(name), b.numbers(name)), size) : 0;
      };
      const double found = apart(runs_.ranks, against.side.serial);
      PARTITA_ASSIGN_OR_RETURN(double allowed, noise(against, found, apart));
      if (state && beyond(found, allowed, equal_)) {
        PARTITA_RETURN_IF_ERROR(more_.push(against.side, runs_));
        if (against.side.pushed) allowed = std::max(allowed, reach(*against.side.pushed, name) / size);
      }
      if (beyond(found, allowed, equal_))
        return absl::AbortedError(cat("numeric: ", quote(name), " after ", verdict.steps,
                                      " steps: expected the serial program's", against.by, ", found ",
                                      state ? "a difference of " : "a relative difference of ", found,
                                      state ? " times its update" : ""));
      if (allowed < kNoise * tolerance_) verdict.tensor_error = std::max(verdict.tensor_error, found);
    }
    return absl::OkStatus();
  }

  // How far rounding of gradients may take a tensor.
  static double reach(const Pushed& pushed, const std::string& name) {
    const std::vector<double> none = pushed.none.tensor(name), down = pushed.down.tensor(name);
    std::vector<double> reach = pushed.up.tensor(name);
    for (size_t k = 0; k < none.size(); ++k)
      reach[k] = std::max(std::abs(reach[k] - none[k]), std::abs(down[k] - none[k]));
    return length(Numbers(reach));
  }

  // How far rounding may take the ranks from a side, where they are further from it than the tolerance. `apart`: how
  // far two outcomes are.
  template <typename Apart>
  absl::StatusOr<double> noise(const Against& against, double found, Apart apart) {
    if (found <= tolerance_) return 0;
    PARTITA_RETURN_IF_ERROR(more_.measure(against.side, runs_));
    const double unfused = kNoise * apart(*runs_.unfused, runs_.compiled.serial);
    if (!against.side.off) return unfused;
    return std::max(unfused, against.share * apart(*against.side.off, against.side.serial));
  }

  bool beyond(double found, double noise, bool held) const {
    return held ? found > std::max(tolerance_, noise) : std::isinf(found);
  }

  // What a difference is held against: of a state the length of its update, and as much of its own that rounding the
  // state itself may be told from the tolerance.
  double size_of(const std::string& name, const Outcome& expected) const {
    const Numbers numbers = expected.numbers(name);
    if (!runs_.first.has(name)) return length(numbers);
    return distance(numbers, runs_.first.numbers(name)) +
           stored(runs_.first.dtype(name)) / tolerance_ * length(numbers);
  }

  const NumericRuns& more_;
  Runs& runs_;
  const double tolerance_;
  const bool equal_;
};

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
  Comparison comparison(make, runs, std::max(options.tolerance, rounding(bundle.serial)), bundle.compress == "none");
  PARTITA_RETURN_IF_ERROR(comparison.compare_compiled());
  PARTITA_RETURN_IF_ERROR(make.add_reference(runs, 1 + kMoreDraws));
  if (runs.reference) PARTITA_RETURN_IF_ERROR(comparison.compare_reference());
  return comparison.verdict;
}

}  // namespace

absl::StatusOr<verifier::NumericVerdict> check_numeric(const verifier::Bundle& bundle, const NumericOptions& options) {
  auto first = compare(bundle, options);
  const runtime::DataConfig& data = options.train.data;
  if (first.status().code() != absl::StatusCode::kAborted || data.kind != DataKind::kSynthetic) return first;
  // A value that lies at a kink (of a relu, between two maxima) falls on either side by rounding, and its gradient
  // with it. That is so on some samples; a wrong program is wrong on all.
  verifier::NumericVerdict verdict;
  for (int draw = 1; draw <= kMoreDraws; ++draw) {
    NumericOptions other = options;
    other.train.data.seed += draw;
    auto again = compare(bundle, other);
    if (!again.ok()) return first;
    if (draw == 1 || again->tensor_error > verdict.tensor_error) verdict = *again;
  }
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
