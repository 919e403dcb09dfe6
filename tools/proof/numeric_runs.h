// The runs that the numeric check compares: the ranks, the serial program compiled for one rank and by the reference
// evaluator, and the serial program again with rounding put on, which tells how far rounding takes it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "runtime/train/trainer.h"
#include "tools/proof/run_outcome.h"
#include "tools/verify/bundle/bundle.h"

namespace partita {

// First values of states, by name.
using FirstValues = std::map<std::string, std::vector<double>>;
// Runs a serial graph from the bundle's first values but for these. `draw`: of other rounding; 0: as it is rounded.
using SerialRun = std::function<absl::StatusOr<RunOutcome>(const Graph&, FirstValues, size_t draw)>;

// The serial program from gradients that are off by their rounding: as they are, above and below.
struct Pushed {
  RunOutcome none, up, down;
};

// What the ranks are held against.
struct Side {
  RunOutcome serial;
  double share = 0;  // of what rounding changes, that the ranks may differ by
  // Both where it was asked for: draws of other rounding, and pushed.
  std::vector<RunOutcome> off;
  std::optional<Pushed> pushed;
};

struct Runs {
  RunOutcome ranks, first;            // `first`: before any step
  std::optional<RunOutcome> unfused;  // the serial program compiled without fusion, where it was asked for
  Side compiled;
  std::optional<Side> reference;
  bool several = false;  // ranks
};

// Half the distance from 1 to the next number of the narrowest float type that the graph computes in, of 16 bits; 0:
// none.
double rounding(const Graph& graph);

class NumericRuns {
 public:
  // `folder` exists, for what the runs leave. `bundle` outlives this.
  NumericRuns(const verifier::Bundle& bundle, runtime::TrainOptions train, std::string folder)
      : bundle_(bundle), train_(std::move(train)), folder_(std::move(folder)), coarse_(rounding(bundle.serial)) {}

  absl::StatusOr<Runs> all() const;
  // Where `draws` of it take the reference evaluator less than a minute.
  absl::Status add_reference(Runs& runs, int draws) const;
  absl::Status add_unfused(Runs& runs) const;
  // Adds to what tells how far rounding takes the ranks from one of the sides; false where there is no more to add. The
  // reference evaluator rounds anew whatever nodes make, and code generation has no part in it; a compiled program
  // starts from first parameters that are off by their rounding to 16 bits, if it has any.
  absl::StatusOr<bool> draw(Side& side, const Runs& runs) const;
  // Adds the side's `pushed`, where its rounding is known: a compiled program's is what first parameters that are off
  // by their rounding make of its gradients.
  absl::Status push(Side& side, const Runs& runs) const;

 private:
  SerialRun compiled(const Runs& runs) const;
  SerialRun by_reference(const Runs& runs) const;
  FirstValues first_off(const RunOutcome& first, size_t draw) const;

  const verifier::Bundle& bundle_;
  const runtime::TrainOptions train_;
  const std::string folder_;
  const double coarse_;
  mutable int again_ = 0;  // runs of compiled programs that were made again: each has files of its own
};

}  // namespace partita
