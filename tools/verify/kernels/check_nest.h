// Whether a nest is one that code can be made of, as codegen/llvm and codegen/nvptx take nests: every field in range,
// types that fit, what is kept still there when it is read back. Says nothing of what it computes.
#pragma once

#include "absl/status/status.h"
#include "ir/nest/loop_nest.h"

namespace partita::verifier {

// Aborted with the node or store at fault.
absl::Status check_nest(const LoopNest& nest);

}  // namespace partita::verifier
