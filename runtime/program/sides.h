// Which side of a program for a device its steps and regions are on: the device's, or the host's.
#pragma once

#include "runtime/program/program.h"

namespace partita::runtime {

// Whether a program's target has memory of its own.
bool needs_device(const Program& program);
// Whether a kernel or library step of such a program is the host's.
bool runs_on_host(const Program& program, const Step& step);
// Whether a region of such a program lies in the host's memory alone.
bool in_host_memory(Region region);
// Whether a step is a copy to or from such a region.
bool copies_host_memory(const Step& step);

}  // namespace partita::runtime
