// The part of a plan's page about what its ranks send each other.
#pragma once

#include <string>

#include "partitioner/planner/report/planned_step.h"

namespace partita {

// A table of the axes with what a rank sends and waits for, and a matrix of bytes from rank to rank (from block of
// ranks to block of ranks where there are many), coloured by the axis that sends most and by bytes; as HTML.
std::string traffic_section(const Plan& plan, const PlannedStep& step);

// CSS that it needs.
extern const char* const kTrafficStyle;

}  // namespace partita
