// A campaign: thousands of changes of a bundle's programs, each refused, rejected, or run.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"
#include "tools/mutation/blind_mutation.h"
#include "tools/verify/bundle/bundle.h"

namespace partita {

struct CampaignOptions {
  int mutations = 100;
  uint32_t seed = 1;
  int steps = 2;        // of a run
  double seconds = 20;  // that a run may take
  bool blind = true, knowing = true;
};

struct Hole {
  int mutation = 0;
  std::string kind, what, outcome;
  bool in_kernel = false;  // nothing changed but which generated code a step calls, for what units, and in which order
                           // it has its operands
};

struct CampaignReport {
  int unchanged = 0;  // the program was what it had been
  int refused = 0;    // by who loads the image
  int rejected = 0;   // by the verifier
  int equal = 0;      // accepted, and the run ended with the same bits
  std::map<std::string, int> equal_kinds;
  std::vector<Hole> holes;  // accepted, and it did not

  int mutations() const { return unchanged + refused + rejected + equal + static_cast<int>(holes.size()); }
};
nlohmann::json to_json(const CampaignReport& report);

// The verifier's answer is that of check_bundle() in this process; what it accepts is trained for some steps on
// synthetic samples, with evaluation where the bundle has it, in a process of its own: metrics and all states must be
// those of the bundle as it was, to the bit. The caller has started no threads. Errors: those of reading the bundle;
// FailedPrecondition where the bundle itself is rejected or does not run.
absl::StatusOr<CampaignReport> run_campaign(const std::string& bundle, const CampaignOptions& options);

}  // namespace partita
