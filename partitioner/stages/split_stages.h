// Cuts the program of a rank into those of a pipeline's stages, with what they send to each other.
#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "partitioner/localize/local_program.h"
#include "partitioner/stages/assign_stages.h"

namespace partita {

struct PipelineShape {
  PipelineSchedule schedule = PipelineSchedule::k1f1b;
  int64_t chunks = 1;             // of a stage
  std::vector<std::string> cuts;  // globs, as assign_stages() takes them
  int64_t overlapped = 1;         // micro-batches that take turns
};

// `local` is what localize() made for the ranks of one stage; `axis` of its mesh, along which nothing is split, counts
// the stages. The result has one program for each coordinate of that axis. Values go straight from the stage that makes
// them to each stage that reads them, also over several stages. A parameter that several stages read is sent by its
// owner at the start of a step; its gradients' sums are sent back to the owner, which adds them. Scalar outputs are
// known to all stages; what a stage has no part in is not among its states and outputs. Every stage takes all data
// inputs. With several chunks the model is cut into chunks x stages parts, of which stage s has s, s + stages, …
// What one of them makes and another one of the same stage reads stays in the micro-batch's memory.
// InvalidArgument where the model has too few parts or a cut is none.
absl::StatusOr<std::vector<LocalProgram>> split_stages(const LocalProgram& local, int axis, const PipelineShape& shape,
                                                       const StateOwners& owners = {});
// Which stage has which parameters and other states that only one has; for another graph over the same states.
StateOwners state_owners(const std::vector<LocalProgram>& stages);

}  // namespace partita
