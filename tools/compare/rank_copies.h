// What ranks hold of the values of the serial program, put together: boxes to whole values, terms of a sum to the sum.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "tools/compare/captures.h"
#include "tools/verify/check_values.h"

namespace partita {

// One copy of a value of the serial program (of its root: verifier::SerialValues), as some ranks hold it together.
struct RootCopy {
  Tensor values;             // flat, by index of the root
  std::vector<bool> filled;  // the elements that they hold
  bool whole = false;        // all of them
  bool summed = false;       // the sum of what several runs of the graph have
  std::vector<int> ranks;
  std::vector<std::vector<int64_t>> indices;  // per rank: of the root's elements that it holds
  size_t stage = 0;
  int value = -1;      // of the stage's graph with composites expanded
  int64_t step = -1;   // of the stage's program
  int64_t begun = -1;  // the step whose temporaries that one goes on with: together they are one kernel; or itself
  bool written = false;
  DType held = DType::kInvalid;  // what its numbers were rounded to, where that is another type
  std::string torn = {};         // not empty: ranks that should hold the same hold other bits
};

// How often a step runs the serial graph, and how many of these runs ranks do at the same time.
struct StepRuns {
  int64_t count = 1, together = 1;
};

// The serial program of a bundle in numbers of runs and roots, and its copies on ranks.
class RankCopies {
 public:
  // Aborted where the bundle's evidence does not say how its ranks make up the serial program. It outlives this.
  static absl::StatusOr<RankCopies> create(const verifier::Bundle& bundle);

  const verifier::SerialValues& serial() const { return values_.serial; }
  const verifier::ProgramSet& set() const { return *set_; }
  StepRuns runs() const { return {runs_, slice_count_}; }
  int64_t elements(int32_t root) const { return elements_[static_cast<size_t>(root)]; }
  // Of one step: by root and run, what puts its copies together, in the order in which steps made them. They are many
  // times as large as what was captured, so whoever needs one makes it.
  struct Held {
    std::function<std::vector<RootCopy>()> copies;
    bool summed = false;  // one of them is a sum of several runs
  };
  using Copies = std::map<std::pair<int32_t, int64_t>, Held>;
  // `captures` stays as it is while the copies are used.
  Copies collect(const Captures& captures) const;
  // What a value of a stage's graph with composites expanded is of the serial program; root -1 where nothing is known.
  const verifier::IndexMap& layout(size_t stage, int value) const {
    return layouts_[stage][static_cast<size_t>(value)];
  }

 private:
  RankCopies(const verifier::ProgramSet& set, verifier::RankValues values) : set_(&set), values_(std::move(values)) {}
  absl::Status place_values();
  void find_begun();
  absl::Status count_runs();
  int64_t run_of(const verifier::IndexMap& layout, const std::vector<int64_t>& coordinates, int64_t micro_batch) const;
  // What ranks at these coordinates hold of one value and run.
  struct Part {
    int rank = 0;
    const Capture* capture = nullptr;
    std::vector<int64_t> coordinates;
  };
  // Those of one stage's value, by the ranks that repeat it.
  struct Holders {
    size_t stage = 0;
    int value = -1;
    std::map<std::string, std::vector<Part>> parts;
  };
  RootCopy join(size_t stage, int value, const std::vector<Part>& parts) const;
  std::vector<RootCopy> join_all(const std::vector<Holders>& holders) const;

  const verifier::ProgramSet* set_;
  verifier::RankValues values_;
  std::vector<std::vector<verifier::IndexMap>> layouts_;  // per stage and value
  std::vector<std::map<int64_t, int64_t>> begun_;         // per stage: of steps that go on with another's temporaries
  std::vector<int64_t> elements_;                         // per root
  int64_t runs_ = 1, micro_slices_ = 1, slice_count_ = 1;
  std::vector<runtime::AxisStride> slice_axes_;
};

// The root's index of each element of a tensor of this layout, on a rank at these coordinates.
std::vector<int64_t> root_indices(const verifier::IndexMap& layout, int64_t elements,
                                  const std::vector<int64_t>& coordinates);

}  // namespace partita
