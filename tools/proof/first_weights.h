// The first weights of a bundle, held against its programs.
#pragma once

#include "absl/status/status.h"
#include "runtime/program/bundle_files.h"
#include "tools/verify/bundle/bundle.h"

namespace partita {

// initial.safetensors has every state that a program of training reads from it, in its type and shape, and nothing
// else. Aborted with the state, what was expected and what was found; DataLoss where the file is damaged.
absl::Status check_first_weights(const runtime::BundleFiles& files, const verifier::Bundle& bundle);

}  // namespace partita
