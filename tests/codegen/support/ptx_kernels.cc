#include "tests/codegen/support/ptx_kernels.h"

#include <string>

#include "base/status.h"
#include "ir/type/tensor_type.h"
#include "runtime/program/batched_launches.h"

namespace partita {
namespace {

void add_operands(const runtime::Step& step, char* const* buffers, std::vector<ptx::GlobalMemory::Range>& to) {
  for (size_t k = 0; k < step.operands.size(); ++k) {
    const runtime::Operand& o = step.operands[k];
    if (buffers[k] != nullptr && o.dtype != DType::kInvalid)
      to.push_back({reinterpret_cast<uint64_t>(buffers[k]), static_cast<uint64_t>(byte_size({o.dtype, o.shape}))});
  }
}

}  // namespace

PtxKernels::PtxKernels(const runtime::Program& program) {
  auto module = ptx::Module::load({program.portable_kernels.begin(), program.portable_kernels.end()});
  PARTITA_CHECK(module.ok(), std::string(module.status().message()));
  module_ = *std::move(module);
}

void PtxKernels::run(const runtime::Step& step, char* const* buffers, ptx::Order order) const {
  if (step.params.count(runtime::kBatchedParam) > 0) {
    const runtime::Step* one = &step;
    run_batched({&one, 1}, {reinterpret_cast<std::byte* const*>(buffers), step.operands.size()}, order);
    return;
  }
  std::vector<ptx::GlobalMemory::Range> memory;
  add_operands(step, buffers, memory);
  std::vector<void*> arguments;
  for (size_t k = 0; k < step.operands.size(); ++k) arguments.push_back(const_cast<char**>(&buffers[k]));
  launch(step, step.units, std::move(arguments), std::move(memory), order);
}

void PtxKernels::run_batched(std::span<const runtime::Step* const> steps, std::span<std::byte* const> addresses,
                             ptx::Order order) const {
  std::vector<int64_t> table = runtime::launch_table(steps, addresses);
  std::vector<ptx::GlobalMemory::Range> memory = {{reinterpret_cast<uint64_t>(table.data()), table.size() * 8}};
  int64_t blocks = 0;
  char* const* buffers = reinterpret_cast<char* const*>(addresses.data());
  for (const runtime::Step* step : steps) {
    blocks += step->units;
    add_operands(*step, buffers, memory);
    buffers += step->operands.size();
  }
  int64_t* at = table.data();
  launch(*steps[0], blocks, {&at}, std::move(memory), order);
}

void PtxKernels::launch(const runtime::Step& step, int64_t blocks, std::vector<void*> arguments,
                        std::vector<ptx::GlobalMemory::Range> memory, ptx::Order order) const {
  if (blocks == 0) return;
  auto kernel = module_->kernel(step.name);
  PARTITA_CHECK(kernel.ok(), std::string(kernel.status().message()));
  const auto threads = static_cast<uint32_t>(std::get<int64_t>(step.params.at("threads")));
  const absl::Status status = ptx::launch(*module_, **kernel, {{static_cast<uint32_t>(blocks)}, {threads}, 0},
                                          arguments.data(), std::move(memory), {.order = order});
  PARTITA_CHECK(status.ok(), std::string(status.message()));
}

}  // namespace partita
