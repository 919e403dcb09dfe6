// Other orders of summation than a bundle's `reproducible` says: faults of a compiler that would leave other bits on
// another number of ranks, and no other sum. Those of graphs are made as a split would leave them: code, steps and
// claims follow from them.
#pragma once

#include <map>
#include <random>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "partitioner/localize/local_program.h"
#include "tools/verify/bundle/bundle.h"

namespace partita {

struct TreeMutation {
  std::string_view name;
  // One of the two; false where there is nothing of the kind.
  bool (*in_graphs)(std::vector<LocalProgram>& stages, std::mt19937& rng) = nullptr;
  bool (*in_programs)(verifier::Bundle& bundle, std::mt19937& rng) = nullptr;
};
// Of graphs (tree_graph_mutations.cc), of programs (tree_program_mutations.cc).
std::span<const TreeMutation> tree_graph_mutations();
std::span<const TreeMutation> tree_program_mutations();

struct TreeReport {
  std::map<std::string, int> rejected;  // by the mutation's name
  std::vector<std::string> accepted;    // seed, layout and name of each
};

// Compiles a small model with `reproducible: 8` in several layouts, in memory, and breaks it; mutation K is drawn from
// seed + K. FailedPrecondition where the verifier rejects it as it should be.
absl::StatusOr<TreeReport> run_tree_campaign(int mutations, uint32_t seed);

}  // namespace partita
