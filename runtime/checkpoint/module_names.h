// Which tensor of a checkpoint, or of a program, is which of a module's weights, whose names may differ: a wrapper's
// prefix, an adapter's name, a weight that is tied to another and kept under that one's name.
#pragma once

#include <string>
#include <vector>

#include "runtime/checkpoint/checkpoint_manifest.h"
#include "runtime/files/module_weights.h"

namespace partita::runtime {

// What is taken from the front of a tensor's name where it has it, and put before it.
struct Renaming {
  std::string strip, add;

  std::string operator()(const std::string& name) const;
};

// A name as PEFT writes it to an adapter's file: without the adapter's own name ("lora_A.default.weight" is
// "lora_A.weight") and without "modules_to_save". Other names as they are.
std::string adapter_file_name(const std::string& name);

struct ModulePlaces {
  std::vector<const CheckpointTensor*> sources;   // for each entry of the module's, or nullptr: it is nobody's
  std::vector<const CheckpointTensor*> unplaced;  // trained parameters that go nowhere
  std::vector<std::string> tied;                  // "'lm_head.weight' as 'embed.weight'": no name says so
};

// An entry gets the tensor of its name and shape; else that of its name as adapter_file_name() has both; else, where
// its values are another entry's (a tied weight, saved twice), that one's. Last, where a single trained matrix has no
// place and a single entry has its shape and no tensor, they belong together: of tied weights, Hugging Face keeps one
// name and the exporter another. Of optimizer states and the like nothing is placed. Without `copies` no values
// are looked at: of a weight that is saved twice one has its tensor, which is enough to read it.
ModulePlaces place_in_module(const std::vector<CheckpointTensor>& tensors, const ModuleWeights& file,
                             const Renaming& renaming, bool copies = true);

// What makes the most of `places.unplaced` find a place, as flags for the command line: "--strip-prefix m. (86 of 86
// would)". Empty where nothing does.
std::string suggest_renaming(const std::vector<CheckpointTensor>& tensors, const ModuleWeights& file,
                             const ModulePlaces& places);

// InvalidArgument where trained parameters have no place: their names and shapes, those of the same name there, what
// would make them find one, and what the module has.
absl::Status check_all_placed(const std::vector<CheckpointTensor>& tensors, const ModuleWeights& file,
                              const Renaming& renaming, const ModulePlaces& places);

}  // namespace partita::runtime
