// The symbolic check of a whole bundle, and the paper that says it was passed (docs/verify.md).
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "tools/verify/bundle/bundle.h"
#include "tools/verify/graph/fixed_sums.h"

namespace partita::verifier {

struct Verdict {
  int64_t ranks = 1, programs = 1;
  int64_t values = 0, states = 0, outputs = 0;       // derived; proved equal to the serial program's
  int64_t steps = 0, operands = 0, collectives = 0;  // run through
  int64_t micro_batches = 1;
  // Kernels, each proved by its nest; of how many the code was compiled again and is equal, and why not of all.
  struct Kernels {
    int64_t nests = 0, compiled = 0;
    std::string unknown;
  };
  Kernels kernels;
  // The same of evaluation, where the bundle has it: derived values, steps that were run through, nodes of its serial
  // program that draw random numbers, and kernels.
  struct Evaluation {
    int64_t values = 0, steps = 0, random_nodes = 0, kernels = 0;
  };
  std::optional<Evaluation> evaluation;
  std::string compress = "none";  // not equal to the serial program but for this rounding of
  int64_t compressed_sums = 0;    // so many sums of gradients
  std::vector<int64_t> delays;    // not equal to it but for one micro-batch a step: per stage, how many updates its
                                  // weights are behind at most when a micro-batch reads them (PipeDream)
  FixedSums fixed;                // the order of sums
  int64_t statistic_groups = 1;   // of samples, in the serial program, that batch statistics are of each
};

// Kernels that were run by themselves on drawn operands, and agreed with the reference.
struct KernelTrials {
  int64_t generated = 0, library = 0;  // distinct ones: by code, or by name, operands and parameters; and by what lies
                                       // over what
  int64_t draws = 0, elements = 0;     // runs, and elements of their results that were compared: those that rounding
                                       // cannot make anything of
  std::vector<std::string> left_out;   // what was not run, and why
};

// The numeric check's outcome.
struct NumericVerdict {
  int64_t steps = 0, tensors = 0;
  double loss_error = 0, tensor_error = 0;  // largest relative differences
  bool by_reference = false;  // also from the serial program by the reference evaluator in double precision
  std::string kink;           // what differs on the first synthetic samples, where others agree; empty: nothing
  KernelTrials kernels;
  std::vector<std::string> confined, unconfined;  // what the runs were held to, and what this system cannot do of it
};

// The order of sums that is asked for above the serial program. Aborted where it asks for what no program can do.
absl::StatusOr<FixedSums> fixed_sums(const Bundle& bundle);
// Aborted with the first step, value, expected and found state where the program is not the serial one.
absl::StatusOr<Verdict> check_bundle(const Bundle& bundle);

// Whether the manifest says of a proved bundle what is not equal in it: compression, delayed updates. Aborted.
absl::Status check_choices(const nlohmann::json& manifest, const Verdict& verdict);

// certificate.json of the bundle with this root. `sources`: files and hashes of the model and the recipe that the
// serial program was held against, or null.
std::string certificate_text(const std::string& root, const Verdict& verdict,
                             const std::optional<NumericVerdict>& numeric, const nlohmann::json& sources);

}  // namespace partita::verifier
