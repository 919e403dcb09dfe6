// The best of a small space of layouts by plain loops over all of it.
#pragma once

#include <functional>

#include "partitioner/planner/cost/cost_model.h"

namespace partita {

inline bool counted_to_fit(const Layout&, const Prediction& p) { return p.fits; }

// Seconds of a step of the fastest layout that is allowed; 1e300 where none is.
double enumerate(const Problem& p,
                 const std::function<bool(const Layout&, const Prediction&)>& allowed = counted_to_fit);

}  // namespace partita
