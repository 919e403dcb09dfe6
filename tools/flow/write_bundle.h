// A compiled model as a folder that `partita run` and `partita verify` read.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "tools/flow/compile.h"

namespace partita {

// Writes program.partita (the image), rank (the runner), lib/ (the shared libraries beside it), initial.safetensors,
// verify/ (the evidence that `partita verify` reads) and, last, manifest.json with the hashes of all of them into a new
// folder, all or nothing. FailedPrecondition where `folder` exists and is not a bundle.
absl::Status write_bundle(const Compiled& compiled, const std::string& runner, const std::string& folder);

}  // namespace partita
