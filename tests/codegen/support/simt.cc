#include "tests/codegen/support/simt.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <random>

#include "base/cat.h"
#include "base/status.h"
#include "codegen/nvptx/device_code.h"
#include "codegen/nvptx/device_module.h"
#include "ir/nest/device_schedule.h"
#include "llvm/IR/IRBuilder.h"
#include "llvm/IR/IntrinsicsNVPTX.h"
#include "runtime/program/batched_launches.h"
#include "tests/support/thread_block.h"

namespace partita {
namespace {

constexpr int kMostThreads = 1024;
static_assert(kWarp == ThreadBlock::kWarpSize);

int64_t the_block = 0;  // its number

// What the lowered intrinsics call.
uint32_t thread_number() { return static_cast<uint32_t>(ThreadBlock::instance().number()); }
uint32_t block_number() { return static_cast<uint32_t>(the_block); }
void barrier() { ThreadBlock::instance().barrier(); }
uint32_t shuffle(uint32_t mask, uint32_t word, uint32_t distance, uint32_t clamp) {
  PARTITA_CHECK(mask == 0xffffffff && clamp == kWarp - 1 && distance < kWarp, "a shuffle out of the warp");
  ThreadBlock& block = ThreadBlock::instance();
  block.exchange({word}, static_cast<int>(distance));
  return static_cast<uint32_t>(block.received((block.number() % kWarp) ^ static_cast<int>(distance))[0]);
}
void warp_barrier(uint32_t mask) { shuffle(mask, 0, 0, kWarp - 1); }

void* const kTable[] = {reinterpret_cast<void*>(thread_number), reinterpret_cast<void*>(block_number),
                        reinterpret_cast<void*>(barrier), reinterpret_cast<void*>(shuffle),
                        reinterpret_cast<void*>(warp_barrier)};

// Which entry of the table an intrinsic becomes; -1: it stays.
int entry_of(llvm::Intrinsic::ID id) {
  switch (id) {
    case llvm::Intrinsic::nvvm_read_ptx_sreg_tid_x:
      return 0;
    case llvm::Intrinsic::nvvm_read_ptx_sreg_ctaid_x:
      return 1;
    case llvm::Intrinsic::nvvm_barrier0:
      return 2;
    case llvm::Intrinsic::nvvm_shfl_sync_bfly_i32:
      return 3;
    case llvm::Intrinsic::nvvm_bar_warp_sync:
      return 4;
    default:
      return -1;
  }
}

void lower(llvm::Module& module) {
  llvm::LLVMContext& context = module.getContext();
  auto* table_type = llvm::ArrayType::get(llvm::PointerType::get(context, 0), std::size(kTable));
  auto* table = new llvm::GlobalVariable(module, table_type, false, llvm::GlobalValue::ExternalLinkage,
                                         llvm::ConstantAggregateZero::get(table_type), "simt_table");
  std::vector<llvm::Function*> intrinsics, kernels;
  for (llvm::Function& f : module) {
    if (f.isIntrinsic() && entry_of(f.getIntrinsicID()) >= 0) intrinsics.push_back(&f);
    if (!f.isDeclaration() && !f.hasInternalLinkage()) kernels.push_back(&f);
  }
  for (llvm::Function* f : intrinsics) {
    while (!f->use_empty()) {
      auto* call = llvm::cast<llvm::CallInst>(f->user_back());
      llvm::IRBuilder<> b(call);
      llvm::Value* entry =
          b.CreateConstInBoundsGEP2_64(table_type, table, 0, static_cast<uint64_t>(entry_of(f->getIntrinsicID())));
      std::vector<llvm::Value*> arguments(call->args().begin(), call->args().end());
      llvm::Value* made = b.CreateCall(f->getFunctionType(), b.CreateLoad(b.getPtrTy(), entry), arguments);
      call->replaceAllUsesWith(made);
      call->eraseFromParent();
    }
    f->eraseFromParent();
  }
  // Each kernel as a KernelFunction, whose units are of no interest.
  for (llvm::Function* f : kernels) {
    llvm::IRBuilder<> b(context);
    auto* type = llvm::FunctionType::get(b.getVoidTy(), {b.getPtrTy(), b.getInt64Ty(), b.getInt64Ty()}, false);
    auto* host = llvm::Function::Create(type, llvm::Function::ExternalLinkage, "host_" + f->getName().str(), module);
    b.SetInsertPoint(llvm::BasicBlock::Create(context, "entry", host));
    std::vector<llvm::Value*> arguments;
    for (llvm::Argument& a : f->args()) {
      llvm::Value* p = b.CreateConstInBoundsGEP1_64(b.getPtrTy(), host->getArg(0), a.getArgNo());
      arguments.push_back(b.CreateAddrSpaceCast(b.CreateLoad(b.getPtrTy(), p), a.getType()));
    }
    b.CreateCall(f, arguments);
    b.CreateRetVoid();
  }
  for (llvm::GlobalVariable& g : module.globals()) g.setLinkage(llvm::GlobalValue::ExternalLinkage);
}

}  // namespace

SimtModule::SimtModule(std::span<const NamedNest> nests) {
  llvm::LLVMContext context;
  auto module = make_device_module(context, nests);
  PARTITA_CHECK(module.ok(), std::string(module.status().message()));
  for (const NamedNest& nest : nests) {
    if (auto* shared = (*module)->getGlobalVariable(nest.name + "_shared", true))
      shared_bytes_[nest.name] =
          static_cast<int64_t>(llvm::cast<llvm::ArrayType>(shared->getValueType())->getNumElements());
  }
  lower(**module);
  auto object = compile_module(**module, "host");
  PARTITA_CHECK(object.ok(), std::string(object.status().message()));
  auto code = runtime::KernelModule::load(*object);
  PARTITA_CHECK(code.ok(), std::string(code.status().message()));
  code_ = *std::move(code);
  std::memcpy(reinterpret_cast<void*>(*code_->find("simt_table")), kTable, sizeof kTable);
}

void SimtModule::run(const runtime::Step& step, char* const* buffers, SimtOrder order) const {
  if (step.params.count(runtime::kBatchedParam) > 0) {
    const runtime::Step* one = &step;
    run_batched({&one, 1}, {reinterpret_cast<std::byte* const*>(buffers), step.operands.size()}, order);
    return;
  }
  launch(step.name, step.units, std::get<int64_t>(step.params.at("threads")), buffers, order);
}

void SimtModule::run_batched(std::span<const runtime::Step* const> steps, std::span<std::byte* const> addresses,
                             SimtOrder order) const {
  std::vector<int64_t> table = runtime::launch_table(steps, addresses);
  int64_t blocks = 0;
  for (const runtime::Step* step : steps) blocks += step->units;
  char* argument = reinterpret_cast<char*>(table.data());
  launch(steps[0]->name, blocks, std::get<int64_t>(steps[0]->params.at("threads")), &argument, order);
}

void SimtModule::launch(const std::string& name, int64_t units, int64_t count, char* const* buffers,
                        SimtOrder order) const {
  PARTITA_CHECK(count % kWarp == 0 && count <= kMostThreads, "threads of a block");
  runtime::KernelFunction body = *code_->find("host_" + name);
  auto bytes = shared_bytes_.find(name);
  void* shared = bytes == shared_bytes_.end() ? nullptr : reinterpret_cast<void*>(*code_->find(name + "_shared"));
  std::vector<int> threads(static_cast<size_t>(count));
  std::iota(threads.begin(), threads.end(), 0);
  std::vector<int64_t> blocks(static_cast<size_t>(units));
  std::iota(blocks.begin(), blocks.end(), 0);
  std::mt19937 engine(7);
  if (order == SimtOrder::kBackward) {
    std::reverse(threads.begin(), threads.end());
    std::reverse(blocks.begin(), blocks.end());
  } else if (order == SimtOrder::kShuffled) {
    std::shuffle(threads.begin(), threads.end(), engine);
    std::shuffle(blocks.begin(), blocks.end(), engine);
  }
  for (int64_t block : blocks) {
    if (shared != nullptr) std::memset(shared, 0xff, static_cast<size_t>(bytes->second));
    the_block = block;
    ThreadBlock::instance().run(threads, [&] { body(buffers, 0, 0); });
  }
}

}  // namespace partita
