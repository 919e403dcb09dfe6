// Ways to break a bundle's programs that know what they break: faults of a compiler, and edits that look like one.
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

// Of the first program's steps, buffers and schedule, as a fault of code generation would leave them: each changes what
// is computed, but for a few that are known.
std::span<const Mutation> program_mutations();
// Edits of one program, its claims with it, that may or may not matter: steps, operands, groups, scales, states.
std::span<const Mutation> edit_mutations();

// Takes a step out of the first program, its claim too, as if it had never been there.
void remove_step(verifier::Bundle& bundle, uint32_t id);
// Does a step once more, straight behind it.
void repeat_step(verifier::Bundle& bundle, uint32_t id);

}  // namespace partita
