// Profiles as the YAML that ProfileLibrary::overlay reads, e.g. of a machine that was measured.
#pragma once

#include <string>
#include <vector>

#include "partitioner/planner/cluster/device_profile.h"

namespace partita {

struct ProfileSet {
  std::vector<DeviceProfile> devices;
  std::vector<LinkProfile> links;
  std::vector<NodePreset> presets;
};

// Every constant that decides times is written, so that what is read back predicts the same (six digits are kept).
std::string profile_text(const ProfileSet& profiles);

}  // namespace partita
