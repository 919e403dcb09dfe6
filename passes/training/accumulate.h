#pragma once

#include <string>
#include <vector>

#include "ir/graph/builder.h"
#include "passes/rewrite/pass.h"

namespace partita {

// The sum of `term` over a step's micro-batches, through a state "accumulate/NAME" of `parameter` ("": of none), in the
// order that `context` says. The node takes the builder's context.
ValueId accumulate(Builder& b, const PassContext& context, const std::string& name, const std::string& parameter,
                   ValueId term);

// What a run of the graph adds of its loss to a step's: a mean's part, or all of a sum's (loss.reduction).
double share_of_run(const PassContext& context);

// The loss and the metrics, the graph's outputs (attach_loss), of a step in place of a run.
std::vector<GraphOutput> reported_of_step(Builder& b, const PassContext& context);

}  // namespace partita
