// A rank's memory as its steps see it: which value of which micro-batch an access finds.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "ir/graph/graph.h"
#include "tools/verify/steps/contents.h"

namespace partita::verifier {

// Errors are Aborted and say what was expected and what was found.
class StepMemory {
 public:
  StepMemory(const Graph& graph, const runtime::Program& program, const std::vector<ValueId>& storage);

  // Now runs a segment's entry; `each`: of one micro-batch's segments.
  void enter(const runtime::ScheduleEntry& entry, bool each) { entry_ = entry, each_ = each; }

  // Whether memory that holds `c` can be read as `value` now.
  bool is(const Content& c, int value) const;
  absl::Status read_range(const Range& r, int value);
  absl::Status write_range(const Range& r, int value);
  // That the operand has the value's type and size.
  absl::Status check_type(const runtime::Operand& operand, int value) const;

  std::string name(int value) const;
  std::string describe(const std::optional<Content>& c) const;

  // An asynchronous operation: a step in a slot.
  int flight(int step, int32_t slot) const { return step + slot * steps_; }
  int step_of(int flight) const { return flight % steps_; }

  Memory& memory() { return memory_; }
  const std::vector<const Literal*>& literals() const { return literals_; }
  int64_t operands() const { return operands_; }  // seen so far

 private:
  absl::Status read_constant(const Range& r, int value) const;

  const Graph& g_;
  const runtime::Program& program_;
  std::vector<const Literal*> literals_;
  std::map<ValueId, ValueId> next_of_;  // a state's value -> what it becomes
  Memory memory_;
  runtime::ScheduleEntry entry_;
  bool each_ = false;
  int64_t operands_ = 0;
  int steps_ = 0;  // of the program
};

}  // namespace partita::verifier
