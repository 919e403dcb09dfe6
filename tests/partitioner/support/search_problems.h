// Small problems for the search: profiles, clusters, a transformer's workload.
#pragma once

#include <string>

#include "partitioner/planner/search/search.h"

namespace partita {

const ProfileLibrary& library();

// Nodes of one built-in device.
Cluster cluster(int64_t nodes, int64_t per_node, const std::string& device);

// A transformer of `blocks` blocks: d wide, s long, vocabulary v.
Workload transformer(int blocks, double d, double s, double v);

Problem problem(const Workload& w, const Cluster& c, int64_t batch);

}  // namespace partita
