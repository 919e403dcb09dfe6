// Whether the graphs of all ranks are the serial program's, and which part of which of its values each of their values
// is.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "tools/verify/bundle/bundle.h"
#include "tools/verify/graph/check_graph.h"
#include "tools/verify/layout/serial_values.h"

namespace partita::verifier {

struct RankValues {
  SerialValues serial;  // longer than the set's serial program where ranks' states are padded
  GraphReport report;   // of the graph of all stages
  // Per stage and value of its rank graph: the value of the graph of all stages, which report.layouts are of. kNoValue:
  // none is known (a stage's terms of a sum over stages, what compression made).
  std::vector<std::vector<ValueId>> values = {};
  int64_t compressed_sums = 0;
  std::vector<int64_t> delays = {};  // as check_versions() has them; empty: none
};

// The graphs, the interfaces, and of stages the messages between them: Aborted with the first that is not as it must
// be. The steps that compute the graphs are not looked at. `fixed`: as check_graph() has it.
absl::StatusOr<RankValues> check_values(const ProgramSet& set, const std::string& compress, const FixedSums& fixed);

}  // namespace partita::verifier
