#include "runtime/program/sides.h"

namespace partita::runtime {

bool needs_device(const Program& program) { return program.target.starts_with("cuda:"); }

bool runs_on_host(const Program& program, const Step& step) {
  const bool computes = step.kind == StepKind::kKernel || step.kind == StepKind::kLibrary;
  return needs_device(program) && computes && step.device == DeviceTag::kHost;
}

bool in_host_memory(Region region) { return region == Region::kHostState || region == Region::kHostArena; }

}  // namespace partita::runtime
