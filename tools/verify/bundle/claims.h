// What a program's steps say that they compute, as the bundle carries it: a line "NODE: VALUE VALUE …" for each step,
// by id. A claim is where the verifier looks, never what it believes.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "ir/graph/graph.h"
#include "runtime/program/claim.h"

namespace partita::verifier {

std::string print_claims(const std::vector<Claim>& claims);
// DataLoss "line N: …" where a line is not well-formed or names what `graph` does not have.
absl::StatusOr<std::vector<Claim>> parse_claims(std::string_view text, const Graph& graph);

}  // namespace partita::verifier
