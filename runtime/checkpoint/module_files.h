// Parameters and optimizer states as a PyTorch module has them: the safetensors files of its state_dict, and one of the
// optimizer's state with tensors "PARAMETER.exp_avg" and the like, and "step".
#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "runtime/checkpoint/module_names.h"
#include "runtime/program/program.h"

namespace partita::runtime {

// "optimizer/fc.weight/exp_avg" of parameter "fc.weight" -> "fc.weight.exp_avg"; the name itself for other states.
std::string module_name(const std::string& state, StateKind kind, const std::string& parameter);

// A module's file, or a folder of its weights (is_module_folder()), and how its names come of the program's.
struct ModuleSource {
  std::string path;
  Renaming renaming;
};
// Whether a path is one of these, and not a checkpoint.
bool is_module_path(const std::string& path);

// Puts this rank's part of every parameter, and of the frozen and running values that are there, to the module's
// values, between float formats where they differ. `tensors`: those of all ranks, so that all see alike what is whose.
// Reads the boxes that this rank holds, some MB at a time. InvalidArgument lists parameters that the module lacks or
// that have another shape there. Gives notes, of tensors on one side alone and of tied ones.
absl::StatusOr<std::vector<std::string>> load_module(const Program& program, std::span<const int64_t> coordinates,
                                                     const std::vector<CheckpointTensor>& tensors,
                                                     const ModuleSource& from,
                                                     const std::function<std::span<std::byte>(const Operand&)>& memory);
// The same for all optimizer states, and the step where the file has it.
absl::Status load_module_optimizer(const Program& program, std::span<const int64_t> coordinates,
                                   const ModuleSource& from,
                                   const std::function<std::span<std::byte>(const Operand&)>& memory);

}  // namespace partita::runtime
