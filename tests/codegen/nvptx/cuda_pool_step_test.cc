// Pools and their gradients as steps of the CUDA module's device, with the parameters that a program gives them.
#ifdef PARTITA_STAND_INS
#include <gtest/gtest.h>

#include "ir/graph/evaluate.h"
#include "ir/op/op_def.h"
#include "tests/codegen/support/cuda_on_host.h"
#include "tests/codegen/support/graph_maker.h"

namespace partita {
namespace {

using Ints = std::vector<int64_t>;

const runtime::Step* find_step(const runtime::Program& program, const std::string& name) {
  for (const runtime::ProgramSegment& segment : program.segments) {
    for (const runtime::Step& step : segment.steps) {
      if (step.name == name) return &step;
    }
  }
  return nullptr;
}

// Of a pool over x and its gradient, on a program's own steps.
void expect_reference(const std::string& op, const Attrs& attrs, const Shape& shape, DType dtype) {
  GraphMaker m;
  const ValueId x = m.in(shape, dtype);
  const std::vector<ValueId> y = m.b.emit_all(op, {x}, attrs);
  const ValueId g = m.in(m.b.shape(y[0]), dtype);
  m.out(y[0]);
  m.b.context().segment = Segment::kBackward;
  const std::vector<TensorType> types = {m.b.type(x)};
  const std::vector<ValueId> inputs = {x};
  std::vector<ValueId> gradients = {g};
  if (y.size() > 1) gradients.push_back(kNoValue);
  m.out(find_op(op)->gradient({m.b, attrs, types, inputs, y, gradients})[0]);
  auto program = emit_program(local_program(m.b.graph()), {.gpu = "sm_90"});
  ASSERT_TRUE(program.ok()) << program.status();
  const runtime::Step *forward = find_step(*program, op), *backward = find_step(*program, op + "_grad");
  ASSERT_TRUE(forward != nullptr && backward != nullptr);

  const Tensor data = random_tensor(m.b.type(x), 1), gradient = random_tensor(m.b.type(g), 2);
  const std::vector<Tensor> pooled = evaluate_op(*find_op(op), attrs, std::vector<const Tensor*>{&data});
  const std::vector<Tensor> found = run_step_on_cuda(*forward, {data}, Tensor::zeros(m.b.type(y[0])));
  ASSERT_EQ(found.size(), pooled.size());
  const double tolerance = dtype == DType::kBF16 ? 1e-2 : 1e-6;
  for (size_t k = 0; k < found[0].f.size(); ++k) ASSERT_NEAR(found[0].f[k], pooled[0].f[k], tolerance) << k;
  std::vector<Tensor> given = {gradient};
  std::vector<const Tensor*> pointers = {&gradient};
  if (found.size() > 1) {
    EXPECT_EQ(found[1].i, pooled[1].i);
    given.push_back(found[1]);
    pointers.push_back(&pooled[1]);
  }
  Attrs of_gradient = attrs;
  of_gradient.set("input_shape", shape);
  const Tensor expected = evaluate_op(*find_op(op + "_grad"), of_gradient, pointers)[0];
  const Tensor back = run_step_on_cuda(*backward, given, Tensor::zeros(m.b.type(x)))[0];
  for (size_t k = 0; k < expected.f.size(); ++k)
    ASSERT_NEAR(back.f[k], expected.f[k], tolerance * (1 + std::abs(expected.f[k]))) << k;
}

TEST(CudaPoolStep, AndItsGradientAreThoseOfTheReference) {
  const Attrs overlapping{
      {"kernel", Ints{3, 3}}, {"strides", Ints{2, 2}}, {"pads_low", Ints{1, 1}}, {"pads_high", Ints{1, 1}}};
  const Attrs dilated{{"kernel", Ints{2}}, {"strides", Ints{1}}, {"dilations", Ints{3}}};
  for (DType dtype : {DType::kF32, DType::kBF16}) {
    for (const char* op : {"max_pool", "avg_pool"}) {
      SCOPED_TRACE(op);
      expect_reference(op, overlapping, {2, 3, 9, 8}, dtype);
    }
    expect_reference("max_pool", dilated, {2, 3, 11}, dtype);
  }
}

}  // namespace
}  // namespace partita
#endif
