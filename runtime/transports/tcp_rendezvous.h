// How the ranks of a TCP run find each other.
//
// Rank 0 listens on the master's port. Every other rank connects to rank 0 (its control connection, kept for the whole
// run), listens on the address that it came from, and says hello: rank, world size, where it listens, job. When all
// have come rank 0 sends everybody the table of addresses; then each rank connects to all lower ranks and accepts all
// higher ones (data connections). Connections that say something else are dropped. Who is missing at the deadline is
// named on every rank that came. Then nobody listens any more.
//
// On one host all of this goes over Unix sockets, named by the master's port and the rank: no network reaches them, and
// the kernel says that the other end is the same user's. On several hosts every connection begins with a TLS handshake
// in which both ends prove that they know the job's secret (tls.h). Control connections stay under TLS; data do where
// encryption is asked for, and are plain bytes otherwise.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "runtime/communicate/collective.h"
#include "runtime/transports/channel.h"

namespace partita::runtime {

struct TcpWorld {
  int rank = 0;
  int size = 1;
  TcpEndpoint master;  // of rank 0, as all ranks reach it
  std::string job_id;  // the same on all ranks; keeps processes of another run out
  bool one_host = true;
  std::string secret;                      // the same on all ranks; of several hosts never empty
  bool encrypt = false;                    // data too, not control alone; on one host nothing is
  std::string interface;                   // where to listen: a name or an address; empty: on the route to rank 0
  size_t early_bytes = size_t{256} << 20;  // of messages held before their receive is posted; more is an error
};

struct TcpMesh {
  std::vector<Channel> data;     // by rank; the own one is invalid
  std::vector<Channel> control;  // by rank; on rank 0 one to every other rank, elsewhere only control[0]
};

absl::StatusOr<TcpMesh> open_tcp_mesh(const TcpWorld& world, std::chrono::milliseconds timeout);

}  // namespace partita::runtime
