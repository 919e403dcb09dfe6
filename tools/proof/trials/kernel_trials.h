// Whether a bundle's machine code and the runtime's library kernels compute what they stand for, on operands that are
// drawn: ordinary numbers, and those that a run hardly meets.
#pragma once

#include "absl/status/statusor.h"
#include "tools/verify/bundle/bundle.h"
#include "tools/verify/certificate.h"

namespace partita {

// Runs each distinct kernel of the bundle's programs for the host, on operands that lie to one another as its step has
// them, unit by unit in reverse: generated code against the meaning of its loop nest (nest_meaning.h), a library step
// with its parameters against the definition of its op (library_meaning.h). Of large ones some units, rows and columns
// are compared. Aborted where an element is another than rounding can make of it, or one is written that the step has
// none of. The code runs in this process.
absl::StatusOr<verifier::KernelTrials> try_kernels(const verifier::Bundle& bundle);

}  // namespace partita
