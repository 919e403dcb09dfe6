// The generated code of a program as its nests say it: which nest a step runs, over how many units of work, on which
// operands.
#pragma once

#include <map>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "ir/nest/nest_text.h"
#include "runtime/program/program.h"
#include "tools/verify/kernels/written_parts.h"

namespace partita::verifier {

class Kernels {
 public:
  Kernels(const runtime::Program& program, const KernelNests& nests);

  // The nest that a kernel step runs. Aborted where there is none of its name on its side, where it is none that code
  // can be made of, or where the step's units, threads, or operands are others than it needs.
  absl::StatusOr<const LoopNest*> nest_of(const runtime::Step& step);
  // Aborted where two kernels of one side have one name, or a step has been given no nest of some kernel.
  absl::Status check_all_used() const;

 private:
  using Made = std::tuple<std::string, bool, int64_t>;  // name, whether on the GPU, points of a batched launch or -1
  absl::StatusOr<LoopNest> make(const runtime::Step& step);
  absl::Status check_launch(const runtime::Step& step, const LoopNest& nest) const;

  const runtime::Program& program_;
  std::map<std::pair<std::string, bool>, const KernelNest*> by_name_;  // and whether on the host
  std::set<const KernelNest*> used_;
  size_t kernels_ = 0;
  std::map<Made, absl::StatusOr<LoopNest>> nests_;
};

}  // namespace partita::verifier
