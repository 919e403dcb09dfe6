// The walk through a program's schedule behind check_steps(). Its parts: check_steps.cc (the schedule, copies, the
// end), check_kernels.cc (generated code and library kernels), check_attention.cc, check_fp8.cc,
// check_collectives.cc.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/math/quantized.h"
#include "ir/graph/fp8_blocks.h"
#include "ir/graph/graph.h"
#include "runtime/program/program.h"
#include "tools/verify/bundle/claims.h"
#include "tools/verify/kernels/kernels.h"
#include "tools/verify/kernels/prove_nest.h"
#include "tools/verify/kernels/written_parts.h"
#include "tools/verify/steps/check_steps.h"
#include "tools/verify/steps/step_memory.h"

namespace partita::verifier {

class StepChecker {
 public:
  StepChecker(const Graph& graph, const runtime::Program& program, const std::vector<Claim>& claims,
              const KernelNests& nests, const std::map<ValueId, Fp8Rounding>& roundings);

  absl::StatusOr<StepsReport> run();

 private:
  using ScheduleEntry = runtime::ScheduleEntry;
  using Step = runtime::Step;

  // The schedule (check_steps.cc).
  absl::Status run_schedule();
  absl::Status stage_inputs();
  absl::Status check_own_params(const Step& step) const;
  absl::Status run_step(const Step& step);
  absl::Status run_copy(const Step& step);
  absl::Status run_stash(const Step& step, const Node& node);
  absl::Status check_end();

  // What steps of all kinds do: they read, and their operands and results lie somewhere.
  Range range(const Step& step, size_t k) const { return range_of(step.operands[k], entry_.slot); }
  absl::Status read(const Step& step, size_t k, int value);
  int rounded_again(int value) const;
  // What a step that has its operands with their channels last, or as the graph has them, has of `v`.
  int in_order(ValueId v, bool turned) const;
  absl::Status check_whole(int value);
  struct KernelStep;
  absl::Status check_apart(const Step& step, bool in_place, const KernelStep* kernel = nullptr) const;
  absl::Status check_count(const Step& step) const;
  absl::Status check_segment(int value) const;
  absl::Status check_operands(const Step& step, const Node& node);

  // Kernels (check_kernels.cc).
  absl::StatusOr<KernelStep*> kernel_of(const Step& step);
  absl::Status run_kernel(const Step& step);
  absl::Status check_in_place(const Step& step, KernelStep& kernel) const;
  absl::Status prove(KernelStep& kernel);
  absl::Status write_kernel(const Step& step, const KernelStep& kernel, size_t k);
  bool is_overwritten(const Step& step, const Range& r, int value);
  absl::Status check_one_place(const Step& step, size_t k, const Range& r);
  absl::Status run_library(const Step& step);
  absl::Status run_added_rows(const Step& step);
  absl::Status check_order(NodeId node);
  absl::Status run_product(const Step& step, const std::string& epilogue);
  absl::Status check_rounded(const runtime::Operand& operand, int value, int bias, const TensorType& type) const;
  absl::StatusOr<int> read_sum(const Step& step, size_t o, int value);
  absl::Status write_result(const Step& step, size_t o, int value);

  // Attention on views (check_attention.cc).
  absl::Status run_attention(const Step& step);

  // Products of fp8 numbers (check_fp8.cc).
  struct Quantized;
  absl::Status run_quantize(const Step& step);
  absl::Status write_quantized(const Step& step, size_t k, const Quantized& q);
  absl::Status run_multiply(const Step& step);
  absl::Status check_rounding(ValueId v, const Quantized& q, bool transpose) const;

  // Collectives (check_collectives.cc).
  absl::Status start_collective(const Step& step);
  absl::Status send(const Step& step, const Node& node);
  absl::Status read_bundle(const Step& step, const Node& node, std::vector<Range>& reads, std::vector<Range>& writes);
  absl::Status wait(const Step& step);

  const Graph& g_;
  const std::map<ValueId, Fp8Rounding>& roundings_;
  const runtime::Program& program_;
  const std::vector<Claim>& claims_;
  std::vector<ValueId> storage_, turned_;
  StepMemory m_;
  const CodeView code_;
  Kernels kernels_;
  // What a step that is a kernel does, from its nest.
  struct KernelStep {
    NestUse use;
    std::vector<std::optional<WrittenPart>> parts;   // per operand: what it writes of it; nullopt: all, or nothing
    std::map<std::pair<size_t, size_t>, bool> over;  // output, input: whether the one may lie over the other
    std::set<std::vector<const NestUse*>> proved;    // with these writers of the temporaries that it reads
  };
  std::map<uint32_t, KernelStep> kernel_steps_;  // by id
  TemporaryWriters writers_;
  // What a step has written into a temporary: the value, read as `matrix`, in rows or, transposed, columns.
  struct Quantized {
    uint32_t step = 0;
    Segment segment = Segment::kForward;
    int of = -1;
    std::string format;
    bool tiles = false, transpose = false;
    Shape matrix = {};
    QuantizedMatrix quantized() const { return {matrix[transpose], matrix[1 - transpose], tiles}; }
  };
  std::map<int, Quantized> quantized_;  // by temporary
  // From where messages leave: its places' operations, -1 where there is none.
  struct Outbox {
    Range range;
    size_t next = 0;
    std::vector<int> under_way = {};
  };
  std::map<runtime::Param, Outbox> outboxes_;  // by number
  std::set<int> started_;                      // operations
  std::map<int, int> started_once_;            // by step of the prologue
  // What kernels that write parts of a value have written them over.
  std::map<std::pair<int, int64_t>, Content> overwritten_;
  // Where the kernels of a group have written a value in this run of the segment, and the first that has.
  std::map<std::pair<NodeId, int>, std::pair<uint32_t, Range>> places_;
  WrittenParts written_parts_;
  std::map<NodeId, int32_t> terms_;  // the micro-batch whose term a sum in a fixed order had last
  ScheduleEntry entry_;
  Segment kind_ = Segment::kForward;
  bool each_ = false;
  bool updates_each_ = false;  // the reduce segment runs with each micro-batch
  StepsReport report_;
};

}  // namespace partita::verifier
