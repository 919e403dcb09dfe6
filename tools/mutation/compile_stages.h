// A bundle in memory, from the graphs of its ranks as they are, or as they have been changed.
#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "codegen/emit_program.h"
#include "tools/flow/partition.h"
#include "tools/verify/bundle/bundle.h"

namespace partita {

// `stages`: the local programs of `partition`. Without what a run goes by (Bundle::run).
absl::StatusOr<verifier::Bundle> compile_stages(const Partition& partition, const std::vector<LocalProgram>& stages,
                                                const TargetOptions& target);

}  // namespace partita
