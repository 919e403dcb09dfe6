// What the report page says of a run of its plan, as JSON.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "nlohmann/json_fwd.hpp"
#include "partitioner/planner/space/layout_space.h"
#include "tools/calibrate/measured_groups.h"

namespace partita {

// Seconds of a training step by class of work, of each group of devices: as the cost model has them, and as the trace
// (`train --profile`) does.
nlohmann::json measured_json(const Problem& problem, const Layout& layout, const std::vector<MeasuredGroup>& groups,
                             const std::string& trace);

// The learning curve of a metrics file (`train --metrics FILE.jsonl`), steps counted from 1; of a step that was taken
// again after a resume, the later one. NotFound; InvalidArgument where it is no such file, or has no loss.
absl::StatusOr<nlohmann::json> learning_json(const std::string& metrics);

// What certificate.json (`verify`) says was proved. NotFound; InvalidArgument where it is none.
absl::StatusOr<nlohmann::json> proof_json(const std::string& certificate);

}  // namespace partita
