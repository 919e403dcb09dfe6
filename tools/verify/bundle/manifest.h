// What of a bundle's manifest follows from its programs and the serial program.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "ir/graph/graph.h"
#include "nlohmann/json.hpp"
#include "runtime/program/program.h"
#include "tools/verify/bundle/bundle.h"

namespace partita::verifier {

// Bytes that one program takes, by region of memory as the manifest names them.
std::map<std::string, int64_t> memory_bytes(const runtime::Program& p);

// Version, model, target, ranks, mesh, samples, inputs, parameters, FLOPs of the model, steps and memory; of several
// stages the memory of each. `stages`: in their order. `serial`: the serial training graph.
nlohmann::json derived_manifest(const std::vector<const runtime::Program*>& stages, const Graph& serial);

// Whether the manifest says that, and of data, seed and evaluation what stands above the serial graph. Aborted with the
// key, what was expected and what was found; a key that is none of a manifest's is refused too.
absl::Status check_manifest(const nlohmann::json& manifest, const Bundle& bundle);

}  // namespace partita::verifier
