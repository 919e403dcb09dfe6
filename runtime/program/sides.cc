#include "runtime/program/sides.h"

#include <algorithm>

namespace partita::runtime {

bool needs_device(const Program& program) { return program.target.starts_with("cuda:"); }

bool runs_on_host(const Program& program, const Step& step) {
  const bool computes = step.kind == StepKind::kKernel || step.kind == StepKind::kLibrary;
  return needs_device(program) && computes && step.device == DeviceTag::kHost;
}

bool in_host_memory(Region region) { return region == Region::kHostState || region == Region::kHostArena; }

bool copies_host_memory(const Step& step) {
  return step.kind == StepKind::kCopy && std::any_of(step.operands.begin(), step.operands.end(),
                                                     [](const Operand& o) { return in_host_memory(o.address.region); });
}

}  // namespace partita::runtime
