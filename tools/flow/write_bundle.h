// A compiled model as a folder that `partita run` and `partita verify` read.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "tools/flow/compile.h"

namespace partita {

// Writes program.partita (the image), rank (runner and image in one executable), lib/ (the shared libraries beside the
// runner), initial.safetensors, manifest.json and verify/ (the evidence that `partita verify` reads) into a new folder,
// all or nothing. FailedPrecondition where `folder` exists and is not a bundle.
absl::Status write_bundle(const Compiled& compiled, const std::string& runner, const std::string& folder);

}  // namespace partita
