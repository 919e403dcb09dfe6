// From what a search found to the plan that says it.
#pragma once

#include "partitioner/planner/report/plan.h"
#include "partitioner/planner/search/search.h"

namespace partita {

Plan make_plan(const Problem& problem, CostModel& model, const SearchResult& result, const Candidate& chosen,
               Plan::Inputs inputs);
// `best`: the plan's layout, which the candidate is held against; null: none.
Plan::Other other_layout(const Candidate& candidate, const Candidate* best);

}  // namespace partita
