#include "runtime/program/communicators.h"

#include <set>
#include <utility>

#include "runtime/program/params.h"

namespace partita::runtime {
Communicators communicators(const Program& program) {
  std::set<int64_t> groups;
  std::set<std::pair<int64_t, int64_t>> sends, receives;  // group and peer
  for (const ProgramSegment& segment : program.segments) {
    for (const Step& step : segment.steps) {
      if (step.kind != StepKind::kCollectiveStart) continue;
      const int64_t group = int_param(step.params, "group", 0);
      int64_t ranks = 1;
      for (int32_t axis : program.groups[static_cast<size_t>(group)].axes)
        ranks *= program.mesh[static_cast<size_t>(axis)].size;
      if (ranks == 1) continue;
      const bool moves = step.name == "permute";
      const int64_t peer = moves ? int_param(step.params, "shift", 0) : int_param(step.params, "peer", 0);
      if (moves || step.name == "send") sends.insert({group, peer});
      if (moves || step.name == "recv") receives.insert({group, peer});
      if (!moves && step.name != "send" && step.name != "recv") groups.insert(group);
    }
  }
  return {static_cast<int64_t>(groups.size()), static_cast<int64_t>(sends.size()),
          static_cast<int64_t>(receives.size())};
}

}  // namespace partita::runtime
