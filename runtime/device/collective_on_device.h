// Host buffers for a communicator of device memory: each operation's inputs are written there before it starts, and its
// outputs read once it is waited for. So that a device's collectives can be checked as all others are.
#pragma once

#include <memory>

#include "runtime/communicate/collective.h"
#include "runtime/device/device.h"

namespace partita::runtime {

// Over device.communicator(control). `device` and `control` outlive it; one thread uses it.
absl::StatusOr<std::unique_ptr<Communicator>> open_on_device(Device& device, Communicator& control);

}  // namespace partita::runtime
