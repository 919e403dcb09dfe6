// A layout with what is predicted of it.
#pragma once

#include "partitioner/planner/cost/cost_model.h"

namespace partita {

struct Candidate {
  Layout layout;
  Prediction prediction;
};

}  // namespace partita
