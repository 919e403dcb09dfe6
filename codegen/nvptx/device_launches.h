// Which kernels a GPU program needs, and how its steps launch them.
#pragma once

#include <vector>

#include "codegen/llvm/object_code.h"
#include "runtime/program/program.h"

namespace partita {

// Kernel steps of the GPU learn their launch: blocks as units, and params[threads]. Those that go together with others
// (runtime/program/batched_launches.h) get a kernel for that in place of their own, and params[points]. `kernels`,
// named as the steps are, becomes those that some step still needs.
void choose_launches(runtime::Program& program, std::vector<NamedNest>& kernels);

}  // namespace partita
