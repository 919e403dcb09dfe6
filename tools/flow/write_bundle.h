// A compiled model as a folder that `partita run` and `partita verify` read.
#pragma once

#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "tools/flow/compile.h"
#include "tools/verify/bundle/bundle.h"

namespace partita {

// Writes program.partita (the image), rank (the runner), lib/ (the shared libraries beside it), initial.safetensors,
// verify/ (the evidence that `partita verify` reads) and, last, manifest.json with the hashes of all of them into a new
// folder, all or nothing. FailedPrecondition where `folder` exists and is not a bundle.
// `also`: the same training for other numbers of ranks, as plans within it.
absl::Status write_bundle(const Compiled& compiled, const std::string& runner, const std::string& folder,
                          const std::vector<Compiled>& also = {});

// What the verifier holds other plans against.
verifier::Bundle serial_part(const Compiled& compiled);

// A bundle at `place` in place of the one that may be there: `fill` is called with a new empty folder, which takes its
// place when that has ended well, and is gone otherwise. FailedPrecondition as above.
absl::Status replace_bundle(const std::string& place, absl::FunctionRef<absl::Status(const std::string& fresh)> fill);

}  // namespace partita
