#include "tools/verify/kernels/kernels.h"

#include <algorithm>

#include "base/quote.h"
#include "base/status.h"
#include "ir/nest/affine.h"
#include "ir/nest/device_schedule.h"
#include "runtime/program/batched_launches.h"
#include "runtime/program/params.h"
#include "runtime/program/sides.h"
#include "tools/verify/kernels/check_nest.h"
#include "tools/verify/kernels/whole_nest.h"
#include "tools/verify/layout/mismatch.h"

namespace partita::verifier {
namespace {

using runtime::Step;

constexpr int64_t kMostPoints = int64_t{1} << 50;  // of a batched launch

bool runs_on_gpu(const runtime::Program& program, const Step& step) {
  return runtime::needs_device(program) && !runtime::runs_on_host(program, step);
}

// Of a batched launch.
bool has_points(const Step& step) { return step.params.count(runtime::kBatchedParam) > 0; }
int64_t points_of(const Step& step) { return runtime::int_param(step.params, runtime::kBatchedParam, 0); }

int64_t vectors(const LoopNest& nest) { return row_points(nest) * column_points(nest) / device_schedule(nest).vector; }

// That operands are those of the nest, and hold every element that it reads.
absl::Status check_operands(const Step& step, const LoopNest& nest) {
  if (step.operands.size() != nest.operands.size() || step.inputs != nest.inputs)
    return differs("expected ", nest.inputs, " inputs and ", static_cast<int>(nest.operands.size()) - nest.inputs,
                   " outputs, as its nest has");
  std::vector<int64_t> sizes;
  for (size_t k = 0; k < step.operands.size(); ++k) {
    if (step.operands[k].dtype != nest.operands[k])
      return differs("operand ", k, ": expected ", dtype_name(nest.operands[k]), " as in its nest, found ",
                     dtype_name(step.operands[k].dtype));
    sizes.push_back(elements(step.operands[k].shape));
  }
  const LoopNest whole = with_whole_columns(nest);
  for (const NestNode& n : whole.nodes) {
    if (n.op != NestOp::kLoad) continue;
    const Affine at{n.access.offset, n.access.strides};
    const int64_t size = sizes[static_cast<size_t>(n.access.operand)];
    if (lowest(at, whole.sizes) < 0 || highest(at, whole.sizes) >= size)
      return differs("operand ", n.access.operand, ": expected reads inside of its ", size, " elements, found others");
  }
  for (const NestFold& f : nest.folds) {
    const int64_t expected = units(nest) * f.extent;
    if (sizes[static_cast<size_t>(f.access.operand)] != expected)
      return differs("operand ", f.access.operand, ": expected ", expected, " partial results");
  }
  return absl::OkStatus();
}

}  // namespace

Kernels::Kernels(const runtime::Program& program, const KernelNests& nests)
    : program_(program), kernels_(nests.kernels.size()) {
  for (const KernelNest& k : nests.kernels) by_name_[{k.name, k.host || !runtime::needs_device(program)}] = &k;
}

// What a step does of a batched launch differs from the nest of its code in the number of its points alone.
absl::StatusOr<LoopNest> Kernels::make(const Step& step) {
  const auto found = by_name_.find({step.name, !runs_on_gpu(program_, step)});
  if (found == by_name_.end()) return differs("expected a kernel of the bundle, found ", quote(step.name));
  const KernelNest& kernel = *found->second;
  used_.insert(&kernel);
  absl::Status status = check_nest(kernel.nest);
  if (!status.ok()) return differs("kernel ", quote(step.name), ": ", status.message());
  if (kernel.batched != has_points(step))
    return differs("expected the code of ", has_points(step) ? "a batched" : "one", " launch");
  if (!kernel.batched) return kernel.nest;
  const int64_t points = points_of(step);
  if (points < 1 || points > kMostPoints) return differs("expected points of a batched launch, found ", points);
  LoopNest nest = device_nest(kernel.nest);
  const DeviceSchedule schedule = device_schedule(nest);
  if (schedule.shape == DeviceShape::kPoints && nest.sizes.size() == 1) {
    nest.sizes[0] = points * schedule.vector;
    nest.rows_per_unit = 1;
  }
  const DeviceSchedule now = device_schedule(nest);
  if (now.vector != schedule.vector || now.vectors != schedule.vectors || now.wide != schedule.wide ||
      vectors(nest) != points)
    return differs("expected a launch that its code can do, found one of ", points, " points");
  PARTITA_RETURN_IF_ERROR(check_nest(nest));
  return nest;
}

absl::Status Kernels::check_launch(const Step& step, const LoopNest& nest) const {
  int64_t expected = units(nest);
  std::vector<std::string> known;
  if (runs_on_gpu(program_, step)) {
    const LoopNest whole = device_nest(nest);
    const DeviceSchedule schedule = device_schedule(whole);
    expected = schedule.blocks;
    known = {"threads", "registers", "spilled_bytes", runtime::kBatchedParam};
    if (const int64_t found = runtime::int_param(step.params, "threads", 0); found != schedule.threads)
      return differs("expected ", schedule.threads, " threads, found ", found);
  }
  if (step.units != expected) return differs("expected ", expected, " units of work, found ", step.units);
  for (const auto& [name, value] : step.params) {
    if (std::find(known.begin(), known.end(), name) == known.end() || !std::holds_alternative<int64_t>(value))
      return differs("expected no parameter ", quote(name), " of generated code");
  }
  return absl::OkStatus();
}

absl::Status Kernels::check_all_used() const {
  if (by_name_.size() != kernels_) return differs("expected kernels of different names");
  for (const auto& [name, kernel] : by_name_) {
    if (used_.count(kernel) == 0)
      return differs("kernel ", quote(name.first), ": expected a step that runs it, found none");
  }
  return absl::OkStatus();
}

absl::StatusOr<const LoopNest*> Kernels::nest_of(const Step& step) {
  const Made key{step.name, runs_on_gpu(program_, step), has_points(step) ? points_of(step) : -1};
  auto at = nests_.find(key);
  if (at == nests_.end()) at = nests_.emplace(key, make(step)).first;
  if (!at->second.ok()) return at->second.status();
  const LoopNest& nest = *at->second;
  PARTITA_RETURN_IF_ERROR(check_launch(step, nest));
  PARTITA_RETURN_IF_ERROR(check_operands(step, nest));
  return &nest;
}

}  // namespace partita::verifier
