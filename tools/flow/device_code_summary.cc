#include "tools/flow/device_code_summary.h"

#include <algorithm>
#include <set>
#include <string>

#include "runtime/device/attention_scratch.h"
#include "runtime/program/batched_launches.h"
#include "runtime/program/params.h"
#include "runtime/program/sides.h"
#include "tools/flow/device_memory.h"

namespace partita {
namespace {

void add_device_code(const runtime::Program& program, DeviceCodeSummary& s) {
  if (!runtime::needs_device(program)) return;
  if (const runtime::LaunchCount count = runtime::count_launches(program); count.steps > s.steps)
    s.steps = count.steps, s.launches = count.launches;
  s.communicator_bytes = std::max(s.communicator_bytes, static_cast<int64_t>(communicator_bytes(program)));
  s.attention_scratch_bytes = std::max(s.attention_scratch_bytes, runtime::score_scratch_bytes(program));
  std::set<std::string> seen;
  for (const auto& segment : program.segments) {
    for (const runtime::Step& step : segment.steps) {
      if (step.kind != runtime::StepKind::kKernel || !step.params.count("threads")) continue;
      if (!seen.insert(step.name).second) continue;
      ++s.kernels;
      s.most_registers = std::max(s.most_registers, runtime::int_param(step.params, "registers", 0));
      int64_t spilled = runtime::int_param(step.params, "spilled_bytes", 0);
      s.spilling += spilled > 0;
      s.spilled_bytes += spilled;
    }
  }
}

}  // namespace

DeviceCodeSummary device_code(const std::vector<runtime::Program>& programs) {
  DeviceCodeSummary s;
  for (const runtime::Program& program : programs) add_device_code(program, s);
  return s;
}

}  // namespace partita
