// The runs that the numeric check compares: the ranks, the serial program compiled for one rank and by the reference
// evaluator, and the serial program again with rounding put on, which tells how far rounding takes it.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "runtime/trainer.h"
#include "tools/proof/outcome.h"
#include "tools/verify/bundle/bundle.h"

namespace partita {

// First values of states, by name.
using FirstValues = std::map<std::string, std::vector<double>>;
// Runs a serial graph from the bundle's first values but for these. `name`: of the files that it leaves.
using SerialRun = std::function<absl::StatusOr<Outcome>(const Graph&, const FirstValues&, const char* name)>;

// The serial program from gradients that are off by their rounding: as they are, above and below.
struct Pushed {
  Outcome none, up, down;
};

// What the ranks are held against.
struct Side {
  Outcome serial;
  // Both where it was asked for: from first parameters that are off by their rounding, and pushed.
  std::optional<Outcome> off;
  std::optional<Pushed> pushed;
};

struct Runs {
  Outcome ranks, first;            // `first`: before any step
  std::optional<Outcome> unfused;  // the serial program compiled without fusion, where it was asked for
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
  // Where the program computes in 32 bits or more, and `draws` of it take the reference evaluator less than a minute.
  absl::Status add_reference(Runs& runs, int draws) const;
  // What tells how far rounding takes the ranks from one of the sides: adds `unfused`, and the side's `off`, if the
  // reference evaluator or 16 bits round.
  absl::Status measure(Side& side, Runs& runs) const;
  // Adds the side's `pushed`, where the program computes in 16 bits.
  absl::Status push(Side& side, const Runs& runs) const;

 private:
  SerialRun compiled() const;
  SerialRun by_reference(const Runs& runs) const;
  FirstValues off_by(double share, const Outcome& first) const;

  const verifier::Bundle& bundle_;
  const runtime::TrainOptions train_;
  const std::string folder_;
  const double coarse_;
};

}  // namespace partita
