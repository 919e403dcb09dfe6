#include "tools/verify/layout/slices.h"

#include <algorithm>

#include "base/quote.h"
#include "tools/verify/layout/mismatch.h"

namespace partita::verifier {
namespace {

bool same(const runtime::AxisStride& a, const runtime::AxisStride& b) {
  return a.axis == b.axis && a.stride == b.stride;
}

}  // namespace

const GraphInput* input_named(const Graph& graph, const std::string& name, InputKind kind) {
  for (const GraphInput& in : graph.inputs) {
    if (in.name == name && in.kind == kind) return &in;
  }
  return nullptr;
}

absl::StatusOr<Slices> find_slices(const Graph& serial, const Graph& local, const runtime::Program& program) {
  Slices slices;
  int64_t samples = 0;
  for (size_t k = 0; k < local.inputs.size(); ++k) {
    const runtime::Placement& p = program.inputs[k].placement;
    const GraphInput* in = input_named(serial, local.inputs[k].name, InputKind::kData);
    if (local.inputs[k].kind != InputKind::kData || in == nullptr || p.logical.empty()) continue;
    const Shape& shape = serial.type(in->value).shape;
    if (shape.size() != p.logical.size() || shape[0] < 1 || p.logical[0] % shape[0] != 0)
      return differs("input ", quote(in->name), ": expected a placement of ", to_string(shape),
                     " or several of it, found ", to_string(p.logical));
    Slices mine{p.logical[0] / shape[0], {}};
    if (mine.count > 1) {
      if (p.shape.empty() || p.shape[0] != mine.count || p.local[0] != 1)
        return differs("input ", quote(in->name), ": expected ", mine.count, " blocks of samples, one a rank");
      mine.axes = p.axes[0];
    }
    if (samples > 0 && !std::equal(mine.axes.begin(), mine.axes.end(), slices.axes.begin(), slices.axes.end(), same))
      return differs("input ", quote(in->name), ": its samples are divided otherwise than another input's");
    slices = std::move(mine);
    samples = p.logical[0];
  }
  if (program.micro_slices < 1 || program.micro_batches % program.micro_slices != 0)
    return differs("expected a multiple of ", program.micro_slices, " micro-batches, found ", program.micro_batches);
  int64_t runs = program.micro_batches / program.micro_slices;
  if (samples > 0 && program.samples_per_step != samples * runs)
    return differs("expected ", samples * runs, " samples a step (", runs, " runs of ", samples, "), found ",
                   program.samples_per_step);
  return slices;
}

bool add_micro_slice_axis(runtime::Placement& placement, int64_t slice_samples, int axis) {
  int64_t inner = 1, rank0 = placement.logical.empty() ? 0 : placement.logical[0];
  size_t end = 0;
  for (int64_t covered = 1; end < placement.shape.size() && covered < rank0; ++end) covered *= placement.shape[end];
  for (size_t d = end; d-- > 0;) {
    if (slice_samples >= inner && slice_samples < inner * placement.shape[d]) {
      placement.axes[d].push_back({axis, slice_samples / inner});
      return slice_samples % inner == 0;
    }
    inner *= placement.shape[d];
  }
  return false;
}

}  // namespace partita::verifier
