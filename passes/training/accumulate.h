#pragma once

#include <string>

#include "ir/graph/builder.h"

namespace partita {

// The sum of `term` over a step's micro-batches, through a state "accumulate/NAME" of `parameter` ("": of none). The
// node takes the builder's context.
ValueId accumulate(Builder& b, const std::string& name, const std::string& parameter, ValueId term);

}  // namespace partita
