// A sweep as text, as CSV and as a chart.
#pragma once

#include <string>

#include "partitioner/planner/report/sweep.h"

namespace partita {

// `tokens` 0: no days or dollars.
std::string sweep_table(const Sweep& s, double tokens);
std::string sweep_csv(const Sweep& s);
// A chart of throughput against devices, both axes logarithmic.
std::string sweep_svg(const Sweep& s, double tokens_per_step);

}  // namespace partita
