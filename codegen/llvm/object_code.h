// Nests to machine code: LLVM functions, optimized and linked (lld, in process) into one shared object that needs
// nothing but libm's symbols from its process.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "ir/nest/loop_nest.h"

namespace llvm {
class Module;
}

namespace partita {

struct NamedNest {
  std::string name;  // a C identifier
  const LoopNest* nest = nullptr;
  bool batched = false;  // a GPU's: for several launches at once (codegen/nvptx/device_emitter.h)
};

// `cpu`: "host", or an LLVM name such as "x86-64-v3", "x86-64-v4", or what exact_target says. InvalidArgument where
// LLVM does not know it or it has no FMA.
absl::StatusOr<std::vector<uint8_t>> compile_nests(std::span<const NamedNest> nests, const std::string& cpu);

// Any module of functions, likewise; it gets this target.
absl::StatusOr<std::vector<uint8_t>> compile_module(llvm::Module& module, const std::string& cpu);

// "x86-64-v4" and the like for "host": what Program::target says.
std::string target_name(const std::string& cpu);
// The same processor for compile_nests on any machine: its name, and, for "host", a space and its features.
std::string exact_target(const std::string& cpu);
// What the steps of GPU programs that run on the host are compiled for: every machine with such a GPU has it.
inline constexpr const char* kHostOfGpus = "x86-64-v3";
// What compiles, and its version.
std::string compiler_name();

}  // namespace partita
