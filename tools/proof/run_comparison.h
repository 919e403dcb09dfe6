// The ranks' run held against the serial program's.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "tools/proof/numeric_runs.h"
#include "tools/verify/certificate.h"

namespace partita {

class RunComparison {
 public:
  // `more`: makes runs that tell what rounding does, where something differs by more than the tolerance. `equal`: the
  // ranks compute the serial program; else (compressed gradients) only the first loss is its own, and the rest is
  // measured, and has to be finite. Both outlive this.
  RunComparison(const NumericRuns& more, Runs& runs, double tolerance, bool equal)
      : more_(more), runs_(runs), tolerance_(tolerance), equal_(equal) {
    verdict.steps = static_cast<int64_t>(runs.compiled.serial.scalars.losses.size());
  }

  // With one of the runs' sides. They must agree with each, by what that side can tell. Of a sum whose terms cancel all
  // is rounding to the reference evaluator, while one rank and several differ; a fault of all compiled programs shows
  // beside it alone. Aborted with what differs first.
  absl::Status compare(Side& side);

  verifier::NumericVerdict verdict;

 private:
  absl::Status compare_scalars(Side& side, std::string_view what, std::vector<double> StepNumbers::*numbers,
                               size_t held);
  absl::Status compare_tensors(Side& side);
  template <typename Apart>
  absl::StatusOr<double> noise(Side& side, double found, Apart apart);
  bool beyond(double found, double noise, bool held) const;
  double size_of(const std::string& name, const RunOutcome& expected) const;
  const char* by(const Side& side) const { return &side == &runs_.compiled ? "" : " by the reference evaluator"; }

  const NumericRuns& more_;
  Runs& runs_;
  const double tolerance_;
  const bool equal_;
};

}  // namespace partita
