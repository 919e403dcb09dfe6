// The Communicator over a Transport: one progress thread per rank that runs the operations in issue order.
#pragma once

#include <functional>
#include <memory>

#include "absl/status/statusor.h"
#include "runtime/communicate/collective.h"
#include "runtime/communicate/transport.h"

namespace partita::runtime {

using TransportFactory = std::function<absl::StatusOr<std::unique_ptr<Transport>>()>;

// Calls `open` on the new progress thread, which makes every later call to the transport too, and returns its error.
absl::StatusOr<std::unique_ptr<Communicator>> open_transport_communicator(TransportFactory open,
                                                                          const CommunicatorOptions& options);

}  // namespace partita::runtime
