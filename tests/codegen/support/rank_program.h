// A graph's program for a GPU with its claims, as the verifier has them.
#pragma once

#include <string>

#include "gtest/gtest.h"
#include "tests/codegen/support/interpreter.h"
#include "tools/verify/bundle/bundle.h"
#include "tools/verify/steps/check_steps.h"

namespace partita {

inline verifier::RankProgram rank_program(const Graph& graph, const std::string& gpu) {
  PassRun run = PassRun::unchecked();
  auto emitted = emit_programs({local_program(graph)}, {.gpu = gpu}, EmitUntil::kCode, run);
  EXPECT_TRUE(emitted.ok()) << emitted.status();
  EmittedProgram& e = emitted->front();
  verifier::RankProgram p{.rank = e.claims.graph, .claims = e.claims.steps, .program = std::move(e.program)};
  EXPECT_TRUE(verifier::expand_rank(p).ok());
  p.nests = *parse_kernels(print_kernels(e.claims.nests));
  return p;
}

// What the verifier makes of its steps.
inline absl::Status proved(const verifier::RankProgram& p) {
  return verifier::check_steps(p.code, p.program, p.claims, p.nests, p.roundings).status();
}

}  // namespace partita
