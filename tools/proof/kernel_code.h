// Whether the machine code of a bundle is that of its kernels' nests, which `verify` proves things of.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "tools/verify/bundle/bundle.h"

namespace partita {

struct KernelCode {
  int64_t compiled = 0;  // kernels whose code was made again and is the same to the byte
  std::string unknown;   // why that of others is not known to be; empty: there are no others
};

// Compiles the nests of all programs again, of a bundle that check_bundle accepts. Aborted where this compiler makes
// other bytes of them than the bundle has.
absl::StatusOr<KernelCode> compile_again(const verifier::Bundle& bundle);

}  // namespace partita
