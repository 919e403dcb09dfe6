// Collectives whose result a micro-batch waits for travel while others compute. A pass is cut where it would wait, and
// micro-batches take turns there:
//
//   one after the other            compute | a1 | wait | a2 | wait | a3 | b1 | wait | b2 | …
//   two in turns                   compute | a1 | b1 | a2 | b2 | a3 | b3 |
//                                  travels      | a1·  | b1· | a2· | b2·
//
// as tensor-parallel sums do (Wang et al., Domino) and what goes to experts and back (DeepSeek-V3). Each micro-batch
// is computed as before, and their gradients are added up in the same order: the results are the same bits.
#pragma once

#include <vector>

#include "absl/status/status.h"
#include "partitioner/localize/local_program.h"

namespace partita {

// Cuts the passes of all stages, the last thing that is done with their order. Micro-batches stay one after the other
// where nothing is waited for within a pass. InvalidArgument where a step has one micro-batch, or a state changes with
// each while another pass reads what it was.
absl::Status overlap_micro_batches(std::vector<LocalProgram>& stages, int64_t overlapped);

}  // namespace partita
