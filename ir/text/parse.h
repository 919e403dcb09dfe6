// Reads the text form of a graph (print.h).
#pragma once

#include <string_view>

#include "absl/status/statusor.h"
#include "ir/graph/graph.h"

namespace partita {

// InvalidArgument "line 3, column 7: expected …, found …" where the text is not well-formed, where a value is not
// defined exactly once and before it is read, where ids are not 0, 1, 2, … without a gap, or where a node's use of its
// op is unsound. What verify checks beyond that (states, segments) is not checked. Safe on any bytes: time and memory
// are linear in the text and the tensors that it spells out.
absl::StatusOr<Graph> parse_graph(std::string_view text);

}  // namespace partita
