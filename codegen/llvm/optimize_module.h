// LLVM's scalar optimizations over generated kernels; the nests are vectors, or threads, already.
#pragma once

#include <string_view>

namespace llvm {
class Module;
class TargetMachine;
}  // namespace llvm

namespace partita {

// `last`: function passes that the target asks for after the common ones, as LLVM's pipelines are written.
void optimize_module(llvm::Module& module, llvm::TargetMachine& machine, std::string_view last);

}  // namespace partita
