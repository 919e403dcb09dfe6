// The walk through a program's schedule behind check_steps(). Its parts: check_steps.cc (the schedule, copies, the
// end), check_kernels.cc (generated code and library kernels), check_collectives.cc.
#pragma once

#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "ir/graph/graph.h"
#include "runtime/program/program.h"
#include "tools/verify/bundle/claims.h"
#include "tools/verify/steps/check_steps.h"
#include "tools/verify/steps/step_memory.h"
#include "tools/verify/steps/written_parts.h"

namespace partita::verifier {

class StepChecker {
 public:
  StepChecker(const Graph& graph, const runtime::Program& program, const std::vector<Claim>& claims);

  absl::StatusOr<StepsReport> run();

 private:
  using ScheduleEntry = runtime::ScheduleEntry;
  using Step = runtime::Step;

  // The schedule (check_steps.cc).
  absl::Status run_schedule(const std::vector<ScheduleEntry>& schedule, bool evaluation);
  absl::Status run_step(const Step& step);
  absl::Status run_copy(const Step& step);
  absl::Status run_stash(const Step& step, const Node& node);
  absl::Status check_end(bool evaluation);

  // What steps of all kinds do: they read, and their operands and results lie somewhere.
  Range range(const Step& step, size_t k) const { return range_of(step.operands[k], entry_.slot); }
  absl::Status read(const Step& step, size_t k, int value);
  absl::Status check_whole(int value);
  bool writes(const Step& step, const Range& r) const;
  absl::Status check_apart(const Step& step, bool in_place) const;
  absl::Status check_count(const Step& step) const;
  absl::Status check_segment(int value) const;
  absl::Status check_operands(const Step& step, const Node& node);

  // Kernels (check_kernels.cc).
  void add_to_group(Segment kind, const Step& step);
  void note_temporaries(const Step& step);
  absl::Status run_kernel(const Step& step);
  absl::Status check_one_place(const Step& step, size_t k, const Range& r);
  absl::Status run_library(const Step& step);
  absl::Status run_product(const Step& step, const std::string& epilogue);
  absl::Status check_rounded(const runtime::Operand& operand, int value, int bias, const TensorType& type) const;
  absl::StatusOr<int> read_sum(const Step& step, size_t o, int value);
  absl::Status write_result(const Step& step, size_t o, int value);

  // Collectives (check_collectives.cc).
  absl::Status start_collective(const Step& step);
  absl::Status send(const Step& step, const Node& node);
  absl::Status read_bundle(const Step& step, const Node& node, std::vector<Range>& reads, std::vector<Range>& writes);
  absl::Status wait(const Step& step);

  const Graph& g_;
  const runtime::Program& program_;
  const std::vector<Claim>& claims_;
  std::vector<ValueId> storage_;
  std::map<std::pair<int, NodeId>, std::set<int>> groups_;
  std::map<std::pair<int, int>, uint32_t> last_writer_;  // (segment, value) -> the last kernel that writes it
  StepMemory m_;
  // From where messages leave: its places' operations, -1 where there is none.
  struct Outbox {
    Range range;
    size_t next = 0;
    std::vector<int> under_way = {};
  };
  std::map<runtime::Param, Outbox> outboxes_;  // by number
  std::set<int> started_;
  std::map<std::pair<int, int64_t>, Content> overwritten_;  // by the current group
  NodeId overwritten_by_ = kNoNode;
  // Where the kernels of a group have written a value in this run of the segment, and the first that has.
  std::map<std::pair<NodeId, int>, std::pair<uint32_t, Range>> places_;
  static constexpr int kConstants = -2;
  std::map<int, int> rounded_;  // temporary -> what alone it is made of, kConstants, or -1
  WrittenParts written_parts_;
  ScheduleEntry entry_;
  Segment kind_ = Segment::kForward;
  bool each_ = false;
  bool updates_each_ = false;  // the reduce segment runs with each micro-batch
  StepsReport report_;
};

}  // namespace partita::verifier
