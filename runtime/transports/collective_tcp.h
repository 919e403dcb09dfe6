// The TCP back end: any hosts, no other software. A socket per pair of ranks for data, and one from each rank to rank 0
// over which a death or an abort reaches everybody at once, whatever they are waiting for.
//
// Ours and not Gloo's, which was tried (Debian's libgloo 0.0~git20220518): a rank hears of another's death only when it
// waits for that very rank (measured), a message longer than the receive ends the process (std::terminate on its event
// thread, measured), errors name addresses and not ranks, every message costs two notices, and it needs hiredis and
// ibverbs on every host. This one is part of the runner.
//
// Rank 0 stays up to 5 s for the others when it leaves. After that a death is heard of by those who wait for the dead
// rank.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "runtime/communicate/collective.h"
#include "runtime/transports/tcp_rendezvous.h"

namespace partita::runtime {

// Returns when all ranks are connected. InvalidArgument for an impossible world, FailedPrecondition where the port or
// the job is another's, Unavailable naming the ranks that did not come within the timeout.
absl::StatusOr<std::unique_ptr<Communicator>> open_tcp_communicator(const TcpWorld& world,
                                                                    const CommunicatorOptions& options = {});

}  // namespace partita::runtime
