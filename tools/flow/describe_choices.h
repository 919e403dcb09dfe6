// What makes a compiled training differ from that of the plain model.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tools/flow/compile.h"

namespace partita {

// What the user chose that makes training differ from that of the plain model on one device, in lines; "" where
// nothing does.
std::string describe_choices(const Compiled& compiled);

// What a run begins with: model, parameters, precision, optimizer, layout, memory of a rank; then describe_choices().
std::string describe_training(const Compiled& compiled);

// Per stage of an asynchronous pipeline: versions of its weights that are stashed at a time, each with the micro-batch
// in flight that reads it, beside the current one.
std::vector<int64_t> weight_versions(const Compiled& compiled);

}  // namespace partita
