// Whether a model was exported as for inference though its configuration trains it otherwise.
#pragma once

#include <string>
#include <vector>

#include "ir/graph/graph.h"

namespace partita {

// A warning where the graph draws no random numbers and the config.json beside the model (transformers') has dropout:
// the module was exported after eval(), which leaves it out. `model`: file or folder.
std::vector<std::string> lost_dropout(const std::string& model, const Graph& graph);

}  // namespace partita
