// The serial program as ranks compute it where their states are padded: dimensions that a mesh axis does not divide are
// longer on the ranks than in files. It is derived from the serial program and the placements alone, and refused unless
// the ops' definitions say that padding changes nothing.
#pragma once

#include "absl/status/statusor.h"
#include "ir/graph/graph.h"
#include "runtime/program/program.h"

namespace partita::verifier {

struct PaddedSerial {
  Graph graph;               // the serial program, longer where states are padded
  runtime::Program program;  // the same interface, over the longer states
};

// Aborted: the state or the node that padding would change, or to which it cannot be followed.
absl::StatusOr<PaddedSerial> pad_serial(const Graph& serial, const runtime::Program& program);

}  // namespace partita::verifier
