// What an exporter lost: ties between weights, and names. Found so that the user can be told; nothing is changed.
#pragma once

#include <string>
#include <vector>

#include "ir/graph/graph.h"

namespace partita {

// A warning for each pair of trained matrices with the same values, straight or transposed (they were probably tied,
// and would now be trained apart), and one for trained parameters whose names an exporter made up.
std::vector<std::string> lost_name_warnings(const Graph& graph);

}  // namespace partita
