// Layouts that differ from one in when things travel, and not in what is computed where.
#pragma once

#include <vector>

#include "partitioner/planner/cost/cost_model.h"
#include "partitioner/planner/search/candidate.h"
#include "partitioner/planner/space/layout_space.h"

namespace partita {

// Layouts that are faster than the candidate as they wait less for gathers, or for what units send within a pass: what
// `space` leaves open of that. None where even without any such waits a step would take `fastest` seconds or more.
std::vector<Layout> waiting_less(CostModel& model, const Space& space, const Candidate& candidate, double fastest);

// Whether the candidate may take less than `fastest` seconds with its states stored once in each group of its ranks:
// then gathers and scatters stay within a group, and what is left of a gradient is summed over all.
bool may_wait_less_in_groups(const CostModel& model, const Space& space, const Candidate& candidate, double fastest);

// The size of such groups that exchanges least, behind the largest one near it, which leaves less in memory; none where
// groups save nothing. Of all layouts of the same axes and stage of ZeRO.
std::vector<int64_t> group_sizes(CostModel& model, const Layout& layout);

// Has micro-batches of a pipeline take turns, where they may wait less within their passes and `space` leaves it open.
// Such layouts stand beside those without, as their fastest divide the work in another way: each is looked at twice,
// which models of very many units are left without. False: the layout stays as it is.
bool take_turns(const Problem& problem, const Space& space, Layout& layout);

}  // namespace partita
