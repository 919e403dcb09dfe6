#ifdef PARTITA_STAND_INS
#include "tests/codegen/support/cuda_on_host.h"

#include <gtest/gtest.h>

#include <string>

#include "runtime/cuda/cuda_device.h"

namespace partita {

absl::StatusOr<std::unique_ptr<runtime::Device>> open_cuda_on_host(const runtime::Program& program, int ordinal) {
  return runtime::CudaDevice::open(program, ordinal);
}

std::vector<Tensor> run_step_on_cuda(const runtime::Step& step, const std::vector<Tensor>& inputs, const Tensor& held,
                                     const std::string& choices) {
  runtime::Program program;
  program.target = "cuda:sm_90";
  auto device = open_cuda_on_host(program, 0);
  EXPECT_TRUE(device.ok()) << device.status();
  if (!choices.empty()) {
    EXPECT_TRUE((*device)->tune(choices).ok());
  }
  auto kernel = (*device)->prepare(program, step);
  EXPECT_TRUE(kernel.ok()) << kernel.status();
  if (!kernel.ok()) return {};
  EXPECT_TRUE((*device)->allocate_scratch().ok());
  std::vector<std::byte*> at;
  for (size_t k = 0; k < step.operands.size(); ++k) {
    const TensorType type{step.operands[k].dtype, step.operands[k].shape};
    if (type.dtype == DType::kInvalid) {  // an absent operand
      at.push_back(nullptr);
      continue;
    }
    at.push_back((*device)->allocate(byte_size(type)).value());
    const Tensor value = k < inputs.size() ? inputs[k] : k == inputs.size() ? held : Tensor::zeros(type);
    EXPECT_TRUE((*device)->write(at.back(), std::as_bytes(to_literal(value).bytes())).ok());
  }
  (*kernel)->run(at);
  std::vector<Tensor> results;
  for (size_t k = inputs.size(); k < at.size(); ++k) {
    const TensorType type{step.operands[k].dtype, step.operands[k].shape};
    std::vector<std::byte> bytes(static_cast<size_t>(byte_size(type)));
    EXPECT_TRUE((*device)->read(bytes, at[k]).ok());
    results.push_back(to_tensor(make_literal(type, std::move(bytes))));
  }
  EXPECT_TRUE((*device)->failure().ok()) << (*device)->failure();
  return results;
}

}  // namespace partita
#endif
