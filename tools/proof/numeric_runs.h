// The runs that the numeric check compares: the ranks, the serial program compiled for one rank and by the reference
// evaluator, and the serial program again with rounding put on, which tells how far rounding takes it.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "runtime/files/safetensors.h"
#include "runtime/trainer.h"
#include "tools/verify/bundle/bundle.h"

namespace partita {

// Numbers of each step.
struct StepNumbers {
  std::vector<double> losses, evaluations, rates, norms;
  std::vector<bool> skipped;  // whether its gradients overflowed
};

// What a run left: its tensors stay in their files, as those of several runs would not fit into memory.
class Outcome {
 public:
  // The tensors of a file, their names after `prefix`.
  absl::Status add(const std::string& path, const std::string& prefix);
  std::vector<std::string> names() const;  // of what is in files
  bool has(const std::string& name) const { return values.count(name) > 0 || places_.count(name) > 0; }
  DType dtype(const std::string& name) const;
  std::vector<double> tensor(const std::string& name) const;

  StepNumbers scalars;
  std::map<std::string, std::vector<double>> values;  // tensors that are in no file

 private:
  std::vector<runtime::SafetensorsFile> files_;
  std::map<std::string, std::pair<size_t, std::string>> places_;
};

// The name that an outcome has the first step's gradient under.
std::string gradient_of(std::string_view name);

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
  std::optional<Outcome> off;  // from first parameters that are off by their rounding; none: none was run
  std::optional<Pushed> pushed;
};

struct Runs {
  Outcome ranks, unfused, first;  // `unfused`: the serial program compiled; `first`: before any step
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
  // Adds `pushed` to one of their sides, where the program computes in 16 bits.
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
