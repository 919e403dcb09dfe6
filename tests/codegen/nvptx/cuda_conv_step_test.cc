// Convolutions and their gradients as steps of the CUDA module's device, on a cuDNN that is this machine and lacks what
// the library lacks: one spatial dimension, unlike padding, some algorithms for some shapes.
#ifdef PARTITA_STAND_INS
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/cat.h"
#include "ir/graph/evaluate.h"
#include "ir/op/op_def.h"
#include "runtime/program/library_kernels.h"
#include "tests/codegen/support/cuda_on_host.h"
#include "tests/codegen/support/interpreter.h"

namespace partita {
namespace {

struct Case {
  const char* what;
  Shape x, weight;
  Shape strides, low, high, dilations;
  int64_t groups = 1;
};

struct Use {
  Attrs attrs;
  runtime::Params params;
  void set(const char* name, const Shape& values) { attrs.set(name, values), params[name] = values; }
  void set(const char* name, int64_t value) { attrs.set(name, value), params[name] = value; }
};

Use use_of(const Case& c) {
  Use use;
  use.set("strides", c.strides);
  use.set("pads_low", c.low);
  use.set("pads_high", c.high);
  use.set("dilations", c.dilations);
  use.set("groups", c.groups);
  return use;
}

runtime::Step step_of(const char* op, const Use& use, const std::vector<Tensor>& inputs, const TensorType& result) {
  runtime::Step step{.kind = runtime::StepKind::kLibrary,
                     .name = op,
                     .inputs = static_cast<int32_t>(inputs.size()),
                     .params = use.params};
  for (const Tensor& t : inputs) step.operands.push_back({{}, t.type.dtype, t.type.shape});
  step.operands.push_back({{}, result.dtype, result.shape});
  return step;
}

// What the reference evaluator makes of it, once the device's result was held against that. With the parameter
// "channels_last" the device's operands and result are so.
Tensor expect_reference(const char* op, const Use& use, std::vector<Tensor> inputs) {
  std::vector<const Tensor*> operands;
  for (const Tensor& t : inputs) operands.push_back(&t);
  Tensor expected = evaluate_op(*find_op(op), use.attrs, operands)[0];
  TensorType type = expected.type;
  const bool last = use.params.contains("channels_last");
  if (last) type.shape = channels_last(type.shape);
  for (Tensor& t : inputs) t = last ? transposed(t, {0, 2, 3, 1}) : t;
  std::vector<Tensor> found = run_step_on_cuda(step_of(op, use, inputs, type), inputs, random_tensor(type, 9));
  for (Tensor& t : found) t = last ? transposed(t, {0, 3, 1, 2}) : t;
  const DType dtype = expected.type.dtype;
  const double tolerance = dtype == DType::kF64 ? 1e-12 : dtype == DType::kF32 ? 1e-5 : 2e-2;
  EXPECT_EQ(found.size(), 1u);
  for (size_t k = 0; k < expected.f.size() && found.size() == 1; ++k) {
    if (!(std::abs(found[0].f[k] - expected.f[k]) <= tolerance * (1 + std::abs(expected.f[k])))) {
      ADD_FAILURE() << op << " [" << k << "]: expected " << expected.f[k] << ", found " << found[0].f[k];
      break;
    }
  }
  return expected;
}

const Case kCases[] = {
    {"one dimension", {2, 3, 9}, {4, 3, 3}, {2}, {1}, {1}, {1}},
    {"one dimension, unlike padding", {2, 4, 9}, {4, 2, 4}, {1}, {2}, {1}, {1}, 2},
    {"as TensorFlow pads", {2, 3, 6, 8}, {4, 3, 3, 3}, {2, 2}, {0, 0}, {1, 1}, {1, 1}},
    {"padded in front alone", {1, 2, 5, 4}, {3, 2, 3, 2}, {1, 2}, {2, 1}, {0, 0}, {1, 1}},
    {"groups, dilated", {2, 4, 7, 7}, {6, 2, 3, 3}, {1, 1}, {2, 2}, {2, 2}, {2, 2}, 2},
    {"three dimensions", {2, 2, 4, 5, 3}, {3, 2, 2, 3, 2}, {1, 2, 1}, {1, 0, 0}, {0, 1, 0}, {1, 1, 1}},
    {"three dimensions, planes together", {1, 2, 3, 4, 4}, {2, 2, 1, 3, 3}, {1, 1, 1}, {0, 1, 2}, {0, 0, 1}, {1, 1, 1}},
};

TEST(CudaConvStep, IsThatOfTheReference) {
  for (const Case& c : kCases) {
    for (const DType dtype : {DType::kF64, DType::kF32, DType::kBF16, DType::kF16}) {
      SCOPED_TRACE(cat(c.what, " ", dtype_name(dtype)));
      const Tensor x = random_tensor({dtype, c.x}, 1), w = random_tensor({dtype, c.weight}, 2);
      const Tensor y = expect_reference("conv", use_of(c), {x, w});
      const Tensor g = random_tensor(y.type, 3);
      Use data = use_of(c), weight = use_of(c);
      data.set("input_shape", c.x);
      weight.set("weight_shape", c.weight);
      expect_reference("conv_grad_data", data, {g, w});
      expect_reference("conv_grad_weight", weight, {g, x});
    }
  }
}

// cuDNN's own order, but for groups, of which this one knows none in it: they are turned for it.
TEST(CudaConvStep_ChannelsLast, IsThatOfTheReference) {
  for (const Case& c : kCases) {
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      if (c.x.size() != kChannelsLast.size()) continue;
      SCOPED_TRACE(cat(c.what, " ", dtype_name(dtype)));
      Use use = use_of(c);
      use.params["channels_last"] = int64_t{1};
      if (dtype == DType::kF32) use.set("tf32", 1);
      const Tensor x = random_tensor({dtype, c.x}, 1), w = random_tensor({dtype, c.weight}, 2);
      const Tensor y = expect_reference("conv", use, {x, w});
      const Tensor g = random_tensor(y.type, 3);
      Use data = use, weight = use;
      data.set("input_shape", c.x);
      weight.set("weight_shape", c.weight);
      expect_reference("conv_grad_data", data, {g, w});
      expect_reference("conv_grad_weight", weight, {g, x});
    }
  }
}

// This cuDNN has no graph API, which 16 bits with channels last are asked of.
TEST(CudaConvStep_ChannelsLast, MetricsTellByWhichInterface) {
  runtime::Program program;
  program.target = "cuda:sm_90";
  auto device = open_cuda_on_host(program, 0);
  ASSERT_TRUE(device.ok()) << device.status();
  const Case& c = kCases[2];
  std::map<std::string, double> read;
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    Use use = use_of(c);
    use.params["channels_last"] = int64_t{1};
    const std::vector<Tensor> inputs = {Tensor::zeros({dtype, channels_last(c.x)}),
                                        Tensor::zeros({dtype, channels_last(c.weight)})};
    const runtime::Step step = step_of("conv", use, inputs, {dtype, {2, 3, 4, 4}});
    ASSERT_TRUE((*device)->prepare(program, step).ok()) << (*device)->prepare(program, step).status();
  }
  ASSERT_TRUE((*device)->allocate_scratch().ok());
  for (const auto& [name, value] : (*device)->readings()) read[name] = value;
  EXPECT_EQ(read.at("gpu_convolutions_graph"), 0);
  EXPECT_EQ(read.at("gpu_convolutions_older"), 1);
}

TEST(CudaPoolStep_ChannelsLast, IsThatOfTheReference) {
  Use use;
  use.set("kernel", Shape{3, 2});
  use.set("strides", Shape{2, 1});
  use.set("pads_low", Shape{1, 0});
  use.set("pads_high", Shape{1, 1});
  use.params["channels_last"] = int64_t{1};
  const Tensor x = random_tensor({DType::kF16, {2, 5, 7, 6}}, 1);
  const Tensor y = expect_reference("avg_pool", use, {x});
  Use gradient = use;
  gradient.set("input_shape", x.type.shape);
  expect_reference("avg_pool_grad", gradient, {random_tensor(y.type, 2)});
}

TEST(CudaConvStep, WhatNoAlgorithmKnows_IsSaidWithTheShapes) {
  const Case c{"dilated by 5", {1, 2, 12, 12}, {2, 2, 2, 2}, {1, 1}, {0, 0}, {0, 0}, {5, 5}};
  const std::vector<Tensor> inputs = {random_tensor({DType::kF32, c.x}, 1), random_tensor({DType::kF32, c.weight}, 2)};
  runtime::Program program;
  program.target = "cuda:sm_90";
  auto device = open_cuda_on_host(program, 0);
  ASSERT_TRUE(device.ok()) << device.status();
  const runtime::Step step = step_of("conv", use_of(c), inputs, {DType::kF32, {1, 2, 7, 7}});
  const absl::Status status = (*device)->prepare(program, step).status();
  EXPECT_TRUE(absl::IsUnimplemented(status)) << status;
  EXPECT_THAT(std::string(status.message()),
              testing::AllOf(testing::HasSubstr("no algorithm"), testing::HasSubstr("f32[1, 2, 12, 12]")));
}

}  // namespace
}  // namespace partita
#endif
