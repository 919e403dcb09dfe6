#include "codegen/llvm/object_code.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <memory>
#include <mutex>
#include <thread>

#include "absl/strings/str_join.h"
#include "base/cat.h"
#include "base/fault.h"
#include "base/quote.h"
#include "base/status.h"
#include "base/temporary_folder.h"
#include "codegen/llvm/nest_emitter.h"
#include "codegen/llvm/optimize_module.h"
#include "lld/Common/Driver.h"
#include "llvm/Analysis/TargetTransformInfo.h"
#include "llvm/Config/llvm-config.h"
#include "llvm/IR/LegacyPassManager.h"
#include "llvm/IR/Verifier.h"
#include "llvm/MC/MCSubtargetInfo.h"
#include "llvm/MC/TargetRegistry.h"
#include "llvm/Support/ErrorHandling.h"
#include "llvm/Support/TargetSelect.h"
#include "llvm/Support/raw_ostream.h"
#include "llvm/Target/TargetMachine.h"
#include "llvm/TargetParser/Host.h"
#include "llvm/TargetParser/X86TargetParser.h"

LLD_HAS_DRIVER(elf)

namespace partita {
namespace {

constexpr const char* kTriple = "x86_64-unknown-linux-gnu";

struct Cpu {
  std::string name, features;
  VectorTarget vectors;
};

void initialize_llvm() {
  static std::once_flag once;
  std::call_once(once, [] {
    llvm::install_fatal_error_handler(
        [](void*, const char* reason, bool) { stop_with_fault(cat("internal fault in LLVM: ", reason)); });
    llvm::install_bad_alloc_error_handler([](void*, const char*, bool) { stop_with_fault("out of memory", true); });
    LLVMInitializeX86TargetInfo();
    LLVMInitializeX86Target();
    LLVMInitializeX86TargetMC();
    LLVMInitializeX86AsmPrinter();
  });
}

absl::StatusOr<std::unique_ptr<llvm::TargetMachine>> make_machine(const Cpu& cpu) {
  std::string fault;
  const llvm::Target* target = llvm::TargetRegistry::lookupTarget(kTriple, fault);
  if (target == nullptr) return absl::InternalError(cat("LLVM has no x86-64: ", fault));
  llvm::TargetOptions options;
  options.AllowFPOpFusion = llvm::FPOpFusion::Standard;
  std::unique_ptr<llvm::TargetMachine> machine(target->createTargetMachine(kTriple, cpu.name, cpu.features, options,
                                                                           llvm::Reloc::PIC_, llvm::CodeModel::Small,
                                                                           llvm::CodeGenOptLevel::Default));
  if (machine == nullptr) return absl::InternalError("LLVM cannot make code for x86-64");
  return machine;
}

// In the order of their names, which is the same on every machine.
std::string host_features() {
  std::vector<std::string> features;
  for (const auto& f : llvm::sys::getHostCPUFeatures()) features.push_back(cat(f.second ? "+" : "-", f.first().str()));
  std::sort(features.begin(), features.end(), [](const auto& a, const auto& b) { return a.substr(1) < b.substr(1); });
  return absl::StrJoin(features, ",");
}

absl::StatusOr<Cpu> resolve_cpu(const std::string& target) {
  initialize_llvm();
  const std::string exact = exact_target(target);
  const size_t space = exact.find(' ');
  const std::string name = exact.substr(0, space);
  Cpu cpu{name, space == exact.npos ? "" : exact.substr(space + 1), {}};
  if (target != "host" && llvm::X86::parseArchX86(name) == llvm::X86::CK_None) {
    return absl::InvalidArgumentError(
        cat("unknown CPU ", quote(name), "; expected host, x86-64-v3, x86-64-v4 or another name that LLVM knows"));
  }
  PARTITA_ASSIGN_OR_RETURN(auto machine, make_machine(cpu));
  const llvm::MCSubtargetInfo* info = machine->getMCSubtargetInfo();
  bool fma = info->checkFeatures("+fma") && info->checkFeatures("+avx2"),
       wide = info->checkFeatures("+avx512vl") && info->checkFeatures("+avx512dq") && info->checkFeatures("+avx512bw");
  if (!fma)
    return absl::InvalidArgumentError(cat("CPU ", cpu.name, " has no AVX2 and FMA; expected x86-64-v3 or newer"));
  cpu.vectors.bytes = wide ? 64 : 32;
  if (wide) append(cpu.features, cpu.features.empty() ? "" : ",", "-prefer-256-bit");
  return cpu;
}

// Checks and optimizes a module that has its target.
void finish_module(llvm::Module& module, const Cpu& cpu, llvm::TargetMachine& machine) {
  for (llvm::Function& f : module) {
    if (f.isDeclaration()) continue;
    f.addFnAttr("target-cpu", cpu.name);
    f.addFnAttr("target-features", cpu.features);
    if (cpu.vectors.bytes == 64) f.addFnAttr("prefer-vector-width", "512");
  }
  std::string fault;
  llvm::raw_string_ostream stream(fault);
  PARTITA_CHECK(!llvm::verifyModule(module, &stream), stream.str());
  optimize_module(module, machine, "adce");
}

std::unique_ptr<llvm::Module> make_module(llvm::LLVMContext& context, std::span<const NamedNest> nests, const Cpu& cpu,
                                          llvm::TargetMachine& machine) {
  auto module = std::make_unique<llvm::Module>("partita", context);
  module->setTargetTriple(kTriple);
  module->setDataLayout(machine.createDataLayout());
  for (const NamedNest& nest : nests) emit_nest(*module, *nest.nest, nest.name, cpu.vectors);
  finish_module(*module, cpu, machine);
  return module;
}

absl::StatusOr<llvm::SmallVector<char, 0>> write_object(llvm::Module& module, llvm::TargetMachine& machine) {
  llvm::SmallVector<char, 0> bytes;
  llvm::raw_svector_ostream stream(bytes);
  llvm::legacy::PassManager passes;
  if (machine.addPassesToEmitFile(passes, stream, nullptr, llvm::CodeGenFileType::ObjectFile))
    return absl::InternalError("LLVM cannot write objects for x86-64");
  passes.run(module);
  return bytes;
}

absl::StatusOr<llvm::SmallVector<char, 0>> make_object(std::span<const NamedNest> nests, const Cpu& cpu) {
  PARTITA_ASSIGN_OR_RETURN(auto machine, make_machine(cpu));
  llvm::LLVMContext context;
  return write_object(*make_module(context, nests, cpu, *machine), *machine);
}

absl::StatusOr<std::vector<uint8_t>> link(const std::vector<llvm::SmallVector<char, 0>>& objects) {
  static std::mutex one;  // lld keeps its state in globals
  std::lock_guard<std::mutex> lock(one);
  PARTITA_ASSIGN_OR_RETURN(TemporaryFolder scratch, TemporaryFolder::create("the linker's files"));
  std::string result = scratch.file("kernels.so");
  std::vector<std::string> arguments = {
      "ld.lld", "-shared", "--hash-style=gnu", "--build-id=none", "-z", "noseparate-code", "--strip-all", "--threads=1",
      "-o",     result};
  for (size_t k = 0; k < objects.size(); ++k) {
    arguments.push_back(scratch.file(cat(k, ".o")));
    std::ofstream out(arguments.back(), std::ios::binary);
    out.write(objects[k].data(), static_cast<std::streamsize>(objects[k].size()));
    if (!out.flush())
      return absl::ResourceExhaustedError(
          cat("cannot write the linker's input to ", scratch.path(), ": is the disk full?"));
  }
  std::vector<const char*> pointers;
  for (const std::string& a : arguments) pointers.push_back(a.c_str());
  std::string said;
  llvm::raw_string_ostream stream(said);
  lld::Result outcome = lld::lldMain(pointers, stream, stream, {{lld::Gnu, &lld::elf::link}});
  if (outcome.retCode != 0) return absl::InternalError(cat("lld: ", stream.str()));
  std::ifstream in(result, std::ios::binary);
  std::vector<uint8_t> bytes((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
  if (bytes.empty())
    return absl::ResourceExhaustedError(
        cat("cannot read the linked kernels back from ", scratch.path(), ": is the disk full?"));
  return bytes;
}

}  // namespace

absl::StatusOr<std::vector<uint8_t>> compile_nests(std::span<const NamedNest> nests, const std::string& name) {
  PARTITA_ASSIGN_OR_RETURN(Cpu cpu, resolve_cpu(name));
  // Dealt out by turns, so that both halves take about as long.
  constexpr size_t kModules = 2;
  std::vector<NamedNest> parts[kModules];
  for (size_t k = 0; k < nests.size(); ++k) parts[nests.size() < 8 ? 0 : k % kModules].push_back(nests[k]);
  std::vector<absl::StatusOr<llvm::SmallVector<char, 0>>> made;
  for (size_t k = 0; k < kModules; ++k) made.emplace_back(absl::InternalError(""));
  std::thread other([&] {
    if (!parts[1].empty()) made[1] = make_object(parts[1], cpu);
  });
  made[0] = make_object(parts[0], cpu);
  other.join();
  std::vector<llvm::SmallVector<char, 0>> objects;
  for (size_t k = 0; k < kModules; ++k) {
    if (parts[k].empty()) continue;
    if (!made[k].ok()) return made[k].status();
    objects.push_back(*std::move(made[k]));
  }
  return link(objects);
}

absl::StatusOr<std::vector<uint8_t>> compile_module(llvm::Module& module, const std::string& name) {
  PARTITA_ASSIGN_OR_RETURN(Cpu cpu, resolve_cpu(name));
  PARTITA_ASSIGN_OR_RETURN(auto machine, make_machine(cpu));
  module.setTargetTriple(kTriple);
  module.setDataLayout(machine->createDataLayout());
  finish_module(module, cpu, *machine);
  PARTITA_ASSIGN_OR_RETURN(auto object, write_object(module, *machine));
  return link({std::move(object)});
}

std::string exact_target(const std::string& cpu) {
  return cpu == "host" ? cat(llvm::sys::getHostCPUName().str(), " ", host_features()) : cpu;
}

std::string compiler_name() { return "partita " PARTITA_VERSION ", LLVM " LLVM_VERSION_STRING; }

std::string target_name(const std::string& cpu) {
  auto resolved = resolve_cpu(cpu);
  return cat("cpu:", resolved.ok() ? resolved->name : cpu);
}

}  // namespace partita
