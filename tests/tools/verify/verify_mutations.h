// Ways to break a bundle, for the verifier's tests: each changes one thing that changes what is computed.
#pragma once

#include <random>
#include <span>
#include <string_view>

#include "tools/verify/bundle/bundle.h"

namespace partita {

struct Mutation {
  std::string_view name;
  // False where the bundle has nothing of the kind to break; it is unchanged then.
  bool (*apply)(verifier::Bundle& bundle, std::mt19937& rng);
};

// Of the rank's graph and the program's interface, as a fault of the transformation would leave them.
std::span<const Mutation> graph_mutations();
// Of the program's steps, buffers and schedule, as a fault of code generation would.
std::span<const Mutation> program_mutations();
// Of generated code, blindly: of its nests, and of what steps run it on.
std::span<const Mutation> kernel_mutations();

}  // namespace partita
