#include "tools/proof/run_comparison.h"

#include <algorithm>
#include <cmath>

#include "base/cat.h"
#include "base/quote.h"
#include "base/status.h"

namespace partita {
namespace {

constexpr double kNoise = 10;  // of the difference that compiling without fusion makes

// Something's length over that of what it is held against.
double share(double off, double size) { return off == 0 ? 0 : std::isnan(off) ? INFINITY : off / size; }
double difference(double a, double b) { return share(std::abs(a - b), std::abs(b)); }

// What rounding a state to its own type may change it by, relatively, over some steps.
double stored(DType dtype) {
  return dtype == DType::kBF16 ? 0x1p-7 : dtype == DType::kF16 ? 0x1p-10 : dtype == DType::kF64 ? 0x1p-50 : 0x1p-22;
}

// How far rounding of gradients may take a tensor.
double reach(const Pushed& pushed, const std::string& name) {
  const std::vector<double> none = pushed.none.tensor(name), down = pushed.down.tensor(name);
  std::vector<double> reach = pushed.up.tensor(name);
  for (size_t k = 0; k < none.size(); ++k)
    reach[k] = std::max(std::abs(reach[k] - none[k]), std::abs(down[k] - none[k]));
  return length(Numbers(reach));
}

}  // namespace

absl::Status RunComparison::compare(Side& side) {
  verdict.by_reference = &side != &runs_.compiled;
  PARTITA_RETURN_IF_ERROR(compare_scalars(side, "the loss of step", &StepNumbers::losses, 1));
  PARTITA_RETURN_IF_ERROR(compare_scalars(side, "the learning rate of step", &StepNumbers::rates, SIZE_MAX));
  PARTITA_RETURN_IF_ERROR(compare_scalars(side, "the gradients' norm of step", &StepNumbers::norms, 0));
  PARTITA_RETURN_IF_ERROR(compare_scalars(side, "the loss of evaluation", &StepNumbers::evaluations, 0));
  return compare_tensors(side);
}

// How far rounding may take the ranks from a side, where they are further from it than the tolerance. `apart`: how far
// two outcomes are.
template <typename Apart>
absl::StatusOr<double> RunComparison::noise(Side& side, double found, Apart apart) {
  double allowed = 0;
  if (found > tolerance_ && &side == &runs_.compiled) {
    PARTITA_RETURN_IF_ERROR(more_.add_unfused(runs_));
    allowed = kNoise * apart(*runs_.unfused, side.serial);
  }
  for (size_t k = 0; found > std::max(tolerance_, allowed); ++k) {
    if (k == side.off.size()) {
      PARTITA_ASSIGN_OR_RETURN(const bool more, more_.draw(side, runs_));
      if (!more) break;
    }
    allowed = std::max(allowed, side.share * apart(side.off[k], side.serial));
  }
  return allowed;
}

bool RunComparison::beyond(double found, double noise, bool held) const {
  return std::isinf(found) || (held && found > std::max(tolerance_, noise));
}

// Numbers of each step, the first `held` of them also where gradients are compressed.
absl::Status RunComparison::compare_scalars(Side& side, std::string_view what,
                                            std::vector<double> StepNumbers::*numbers, size_t held) {
  const auto of = [&](const RunOutcome& o) -> const std::vector<double>& { return o.scalars.*numbers; };
  const std::vector<double>&all = of(runs_.ranks), &serial = of(side.serial);
  if (const size_t compiled = of(runs_.compiled.serial).size(); all.size() != compiled)
    return absl::AbortedError(cat("numeric: ", what, ": expected ", compiled, ", found ", all.size()));
  for (size_t k = 0; k < serial.size(); ++k) {
    const double one = serial[k];
    const bool number = std::isfinite(one) || std::isfinite(all[k]);
    if (!number && numbers != &StepNumbers::evaluations && runs_.ranks.scalars.skipped[k]) continue;
    if (!number)
      return absl::FailedPreconditionError(cat("numeric: ", what, " ", k, " is ", one, by(side), " and ", all[k],
                                               " on the ranks: training diverges, and what follows cannot be compared; "
                                               "compare fewer --steps or on other samples (--data)"));
    const double found = difference(all[k], one);
    PARTITA_ASSIGN_OR_RETURN(const double allowed, noise(side, found, [&](const RunOutcome& a, const RunOutcome& b) {
                               return k < of(a).size() ? difference(of(a)[k], of(b)[k]) : 0;
                             }));
    verdict.loss_error = std::max(verdict.loss_error, found);
    if (beyond(found, allowed, equal_ || k < held))
      return absl::AbortedError(cat("numeric: ", what, " ", k, ": expected ", one, by(side), ", found ", all[k], " on ",
                                    runs_.several ? "all ranks" : "one rank"));
  }
  return absl::OkStatus();
}

absl::Status RunComparison::compare_tensors(Side& side) {
  verdict.tensors = 0;
  for (const std::string& name : runs_.compiled.serial.names()) {
    if (!runs_.ranks.has(name)) return absl::AbortedError(cat("numeric: ", quote(name), ": expected it, found none"));
    ++verdict.tensors;
    if (!side.serial.has(name)) continue;
    const bool state = runs_.first.has(name);
    const double size = size_of(name, side.serial);
    const auto apart = [&](const RunOutcome& a, const RunOutcome& b) {
      return a.has(name) && b.has(name) ? share(distance(a.numbers(name), b.numbers(name)), size) : 0;
    };
    const double found = apart(runs_.ranks, side.serial);
    PARTITA_ASSIGN_OR_RETURN(double allowed, noise(side, found, apart));
    if (state && beyond(found, allowed, equal_)) {
      PARTITA_RETURN_IF_ERROR(more_.push(side, runs_));
      if (side.pushed) allowed = std::max(allowed, reach(*side.pushed, name) / size);
    }
    if (beyond(found, allowed, equal_))
      return absl::AbortedError(cat("numeric: ", quote(name), " after ", verdict.steps,
                                    " steps: expected the serial program's", by(side), ", found ",
                                    state ? "a difference of " : "a relative difference of ", found,
                                    state ? " times its update" : ""));
    if (allowed < kNoise * tolerance_) verdict.tensor_error = std::max(verdict.tensor_error, found);
  }
  return absl::OkStatus();
}

// What a difference is held against: of a state the length of its update, and as much of its own that rounding the
// state itself may be told from the tolerance.
double RunComparison::size_of(const std::string& name, const RunOutcome& expected) const {
  const Numbers numbers = expected.numbers(name);
  if (!runs_.first.has(name)) return length(numbers);
  return distance(numbers, runs_.first.numbers(name)) + stored(runs_.first.dtype(name)) / tolerance_ * length(numbers);
}

}  // namespace partita
