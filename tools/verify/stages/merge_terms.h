// Sums over stages whose terms are made alike: what an op does to each of them, it does to their sum where it is
// linear.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "tools/verify/stages/joined_graph.h"

namespace partita::verifier {

class TermMerger {
 public:
  explicit TermMerger(JoinedGraph& graph) : g_(graph) {}

  // State `state` of the graph holds some of the terms of the accumulator `whole` of the serial program.
  void add_accumulator(const std::string& whole, size_t state) { accumulators_[whole].push_back(state); }

  // Whether a node adds, after the micro-batches, a term that was made with them: stages' and chunks' terms are.
  bool adds_terms(const Node& x, const std::vector<ValueId>& inputs) const;
  // The sum of values as one value. None where they are not made alike.
  std::optional<ValueId> merged(std::vector<ValueId> terms);
  // The accumulators of one sum's terms give way to one of the sum, if what they become adds up; returns the values of
  // those that are gone. Once, when all states are joined.
  absl::StatusOr<std::set<ValueId>> join_accumulators();

 private:
  std::optional<ValueId> merged_accumulators(std::vector<ValueId> terms);
  std::optional<ValueId> merged_results(const std::vector<ValueId>& terms);
  std::optional<std::vector<ValueId>> merged_operands(const std::vector<Node>& makers, const Formula& f, int linear);

  JoinedGraph& g_;
  std::map<std::string, std::vector<size_t>> accumulators_;  // per sum, the states of its terms
  std::map<std::string, size_t> whole_;                      // per sum of several, its own state
  std::map<std::vector<ValueId>, std::optional<ValueId>> merged_;
};

}  // namespace partita::verifier
