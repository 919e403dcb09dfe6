#include "codegen/nvptx/device_code.h"

#include <charconv>
#include <map>
#include <mutex>

#include "base/cat.h"
#include "base/quote.h"
#include "base/status.h"
#include "codegen/llvm/optimize_module.h"
#include "codegen/nvptx/assembler.h"
#include "codegen/nvptx/device_emitter.h"
#include "codegen/nvptx/device_math.h"
#include "codegen/nvptx/device_module.h"
#include "ir/nest/device_schedule.h"
#include "llvm/IR/LegacyPassManager.h"
#include "llvm/IR/Verifier.h"
#include "llvm/MC/TargetRegistry.h"
#include "llvm/Support/TargetSelect.h"
#include "llvm/Support/raw_ostream.h"
#include "llvm/Target/TargetMachine.h"

namespace partita {
namespace {

constexpr const char* kTriple = "nvptx64-nvidia-cuda";
constexpr int kOldest = 80;        // that the module has kernels for (runtime/cuda/kernels)
constexpr int kNewestOfLlvm = 90;  // PTX for it runs on everything newer

void initialize_llvm() {
  static std::once_flag once;
  std::call_once(once, [] {
    LLVMInitializeNVPTXTargetInfo();
    LLVMInitializeNVPTXTarget();
    LLVMInitializeNVPTXTargetMC();
    LLVMInitializeNVPTXAsmPrinter();
  });
}

absl::StatusOr<int> parse_architecture(const std::string& name) {
  int number = 0;
  const char *begin = name.data() + std::min<size_t>(3, name.size()), *end = name.data() + name.size();
  auto [rest, fault] = std::from_chars(begin, end, number);
  if (name.rfind("sm_", 0) != 0 || fault != std::errc() || rest != end || number < kOldest)
    return absl::InvalidArgumentError(
        cat("GPU architecture ", quote(name), ": expected sm_80, sm_90, sm_100 or another from sm_", kOldest, " on"));
  return number;
}

absl::StatusOr<std::unique_ptr<llvm::TargetMachine>> make_machine(int architecture) {
  initialize_llvm();
  std::string fault;
  const llvm::Target* target = llvm::TargetRegistry::lookupTarget(kTriple, fault);
  if (target == nullptr) return absl::InternalError(cat("LLVM has no NVPTX: ", fault));
  llvm::TargetOptions options;
  options.AllowFPOpFusion = llvm::FPOpFusion::Standard;
  std::unique_ptr<llvm::TargetMachine> machine(target->createTargetMachine(
      kTriple, cat("sm_", std::min(architecture, kNewestOfLlvm)), "+ptx80", options, llvm::Reloc::PIC_));
  if (machine == nullptr) return absl::InternalError("LLVM cannot make code for NVPTX");
  return machine;
}

// LLVM counts the calls of a whole process in comments; equal nests are equal text without them.
std::string without_call_numbers(std::string text) {
  constexpr std::string_view kComment = " // callseq ";
  for (size_t at = 0; (at = text.find(kComment, at)) != std::string::npos;) text.erase(at, text.find('\n', at) - at);
  return text;
}

absl::StatusOr<std::string> make_text(std::span<const NamedNest> nests, int architecture) {
  PARTITA_ASSIGN_OR_RETURN(auto machine, make_machine(architecture));
  llvm::LLVMContext context;
  PARTITA_ASSIGN_OR_RETURN(auto module, make_device_module(context, nests));
  module->setTargetTriple(kTriple);
  module->setDataLayout(machine->createDataLayout());
  optimize_module(*module, *machine, "separate-const-offset-from-gep,early-cse,adce");
  llvm::SmallVector<char, 0> text;
  llvm::raw_svector_ostream stream(text);
  llvm::legacy::PassManager passes;
  if (machine->addPassesToEmitFile(passes, stream, nullptr, llvm::CodeGenFileType::AssemblyFile))
    return absl::InternalError("LLVM cannot write PTX");
  passes.run(*module);
  return without_call_numbers(std::string(text.begin(), text.end()));
}

}  // namespace

absl::StatusOr<std::unique_ptr<llvm::Module>> make_device_module(llvm::LLVMContext& context,
                                                                 std::span<const NamedNest> nests) {
  auto module = std::make_unique<llvm::Module>("partita", context);
  for (const NamedNest& nest : nests) {
    LoopNest whole = device_nest(*nest.nest);
    emit_device_nest(*module, whole, device_schedule(whole), nest.name, nest.batched);
  }
  PARTITA_RETURN_IF_ERROR(define_device_math(*module));
  std::string fault;
  llvm::raw_string_ostream stream(fault);
  PARTITA_CHECK(!llvm::verifyModule(*module, &stream), stream.str());
  return module;
}

absl::StatusOr<std::string> device_text(std::span<const NamedNest> nests, const std::string& architecture) {
  PARTITA_ASSIGN_OR_RETURN(int number, parse_architecture(architecture));
  return make_text(nests, number);
}

absl::StatusOr<DeviceCode> compile_device_nests(std::span<const NamedNest> nests, const DeviceTarget& target) {
  PARTITA_ASSIGN_OR_RETURN(int number, parse_architecture(target.architecture));
  DeviceCode code;
  PARTITA_ASSIGN_OR_RETURN(code.ptx, make_text(nests, number));
  if (target.assembler.empty()) return code;
  PARTITA_ASSIGN_OR_RETURN(Assembled assembled, assemble_ptx(code.ptx, target));
  if (std::string roomy = ask_for_one_block(code.ptx, assembled.kernels); roomy != code.ptx) {
    PARTITA_ASSIGN_OR_RETURN(assembled, assemble_ptx(roomy, target));
    code.ptx = std::move(roomy);
  }
  code.cubin = std::move(assembled.cubin);
  code.kernels = std::move(assembled.kernels);
  return code;
}

}  // namespace partita
