// Bodies for the f64 functions that ScalarMath takes from libm on processors that have one: exp, log, pow, sin, fmod
// and the like, within some ulp.
#pragma once

#include "absl/status/status.h"
#include "llvm/IR/Module.h"

namespace partita {

// Defines what `module` declares of them, as functions of its own. Unimplemented for a function that has no body here.
absl::Status define_device_math(llvm::Module& module);

}  // namespace partita
