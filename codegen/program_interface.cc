#include "codegen/program_interface.h"

#include "base/cat.h"
#include "base/quote.h"
#include "base/status.h"
#include "codegen/place_tensors.h"

namespace partita {
namespace {

runtime::InitialValue initial_value(const Initial& initial) {
  using runtime::InitialKind;
  if (std::holds_alternative<std::monostate>(initial)) return {InitialKind::kFill, 0, 0};
  if (const auto* rule = std::get_if<InitialRule>(&initial)) {
    switch (rule->kind) {
      case InitialRuleKind::kConstant:
        return {InitialKind::kFill, rule->a, 0};
      case InitialRuleKind::kNormal:
        return {InitialKind::kNormal, rule->a, rule->b};
      case InitialRuleKind::kUniform:
        return {InitialKind::kUniform, rule->a, rule->b};
    }
  }
  return {InitialKind::kFile, 0, 0};
}

runtime::Placement placed(const std::vector<PlacedTensor>& tensors, size_t k, const Shape& shape, const Mesh& mesh) {
  return placement_of(k < tensors.size() ? tensors[k] : PlacedTensor{shape, Sharding::replicated(shape)}, mesh);
}

// Samples from one micro-batch of a run of the graph to the next.
int64_t slice_samples(const LocalProgram& local, size_t k) {
  const Mesh& mesh = local.mesh;
  if (mesh.time < 0 || k >= local.inputs.size() || local.inputs[k].logical.empty()) return 0;
  int64_t inner = 1, stride = 0;
  const auto& pieces = local.inputs[k].sharding.dims[0];
  for (size_t p = pieces.size(); p-- > 0;) {
    int64_t at = inner * local_size(pieces[p], mesh);
    for (size_t a = pieces[p].axes.size(); a-- > 0;) {
      if (pieces[p].axes[a] == mesh.time) stride = at;
      at *= mesh.axes[pieces[p].axes[a]].size;
    }
    inner *= pieces[p].size;
  }
  return stride;
}

}  // namespace

runtime::Operand make_operand(const StepPlan& plan, const PlanOperand& o) {
  runtime::Operand out;
  out.dtype = o.type.dtype;
  out.shape = o.type.shape;
  if (o.type.dtype == DType::kInvalid) return out;
  const PlanBuffer& b = plan.buffers[o.buffer];
  out.address = {b.region, b.offset + o.offset, b.slot_stride, b.places};
  return out;
}

void make_interface(const LocalProgram& local, const Graph& graph, const StepPlan& plan, runtime::Program& program) {
  for (size_t k = 0; k < graph.states.size(); ++k) {
    const State& s = graph.states[k];
    program.states.push_back({s.name, s.kind, s.parameter, make_operand(plan, plan.states[k]),
                              placed(local.states, k, graph.type(s.value).shape, local.mesh),
                              initial_value(s.initial)});
  }
  for (size_t k = 0; k < graph.inputs.size(); ++k) {
    const GraphInput& i = graph.inputs[k];
    program.inputs.push_back({i.name, i.kind, make_operand(plan, plan.inputs[k]),
                              placed(local.inputs, k, graph.type(i.value).shape, local.mesh), slice_samples(local, k)});
  }
  for (size_t k = 0; k < graph.outputs.size(); ++k) {
    const GraphOutput& o = graph.outputs[k];
    program.outputs.push_back(
        {o.name, make_operand(plan, plan.outputs[k]), placed(local.outputs, k, graph.type(o.value).shape, local.mesh)});
  }
}

}  // namespace partita
