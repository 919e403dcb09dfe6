// Nests as an LLVM module of GPU kernels.
#pragma once

#include <memory>
#include <span>

#include "absl/status/statusor.h"
#include "codegen/llvm/object_code.h"
#include "llvm/IR/Module.h"

namespace partita {

// Not optimized, for no target yet. Unimplemented where a nest needs a function that GPU code has not.
absl::StatusOr<std::unique_ptr<llvm::Module>> make_device_module(llvm::LLVMContext& context,
                                                                 std::span<const NamedNest> nests);

}  // namespace partita
