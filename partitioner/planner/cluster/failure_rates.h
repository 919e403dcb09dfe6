// How often machines fail, and how long it takes until a run goes on: `failures:` of a cluster or of a device's
// profile.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "ir/yaml/yaml_document.h"

namespace partita {

// Mean times, in seconds. 0 where a thing does not happen.
struct FailureRates {
  std::string source;
  double device_mtbf = 0;  // of one device in use
  double node_mtbf = 0;    // of one node in use, beside its devices: host, network, software
  double repair = 0;       // until a failed node can be used again
  double detect = 0;       // from a failure until the last rank has ended
  double restart = 0;      // until all ranks run again, without what they read
  // A node that is only slow holds up all others: each step takes `straggler_slowdown` times as long, until it is
  // noticed and its place is taken.
  double straggler_mtbf = 0, straggler_slowdown = 1, straggler_noticed = 0;
  double checkpoint_bandwidth = 0;  // bytes/s of a node, to where checkpoints are kept and back
};

// Sets the keys of `node` over what `out` has. Errors "line:column: path: expected …, found …".
absl::Status parse_failure_rates(const YamlNode& node, const std::string& path, FailureRates& out);

}  // namespace partita
