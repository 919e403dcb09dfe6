// Parameters and optimizer states as a PyTorch module has them: a safetensors file of its state_dict, and one of the
// optimizer's state with tensors "PARAMETER.exp_avg" and the like, and "step".
#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "runtime/program/program.h"

namespace partita::runtime {

// "optimizer/fc.weight/exp_avg" of parameter "fc.weight" -> "fc.weight.exp_avg"; the name itself for other states.
std::string module_name(const std::string& state, StateKind kind, const std::string& parameter);

// Puts this rank's part of every parameter, and of the frozen and running values that are there, to the file's values,
// between float formats where they differ. InvalidArgument lists parameters that the file lacks or that have another
// shape there.
absl::Status load_module(const Program& program, std::span<const int64_t> coordinates, const std::string& path,
                         const std::function<std::span<std::byte>(const Operand&)>& memory);
// The same for all optimizer states, and the step where the file has it.
absl::Status load_module_optimizer(const Program& program, std::span<const int64_t> coordinates,
                                   const std::string& path,
                                   const std::function<std::span<std::byte>(const Operand&)>& memory);

}  // namespace partita::runtime
