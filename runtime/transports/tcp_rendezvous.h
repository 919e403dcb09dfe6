// How the ranks of a TCP run find each other.
//
// Rank 0 listens on the master's port. Every other rank listens on a port of its own, connects to rank 0 (its control
// connection, kept for the whole run) and says hello: rank, world size, port, job. When all have come rank 0 sends
// everybody the table of addresses; then each rank connects to all lower ranks and accepts all higher ones (data
// connections). Connections that say something else are dropped. Who is missing at the deadline is named on every rank
// that came.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "runtime/communicate/collective.h"
#include "runtime/transports/tcp_socket.h"

namespace partita::runtime {

struct TcpWorld {
  int rank = 0;
  int size = 1;
  TcpEndpoint master;  // of rank 0, as all ranks reach it
  std::string job_id;  // the same on all ranks; keeps processes of another run out
};

struct TcpMesh {
  std::vector<Fd> data;     // by rank; the own one is invalid
  std::vector<Fd> control;  // by rank; on rank 0 one to every other rank, elsewhere only control[0]
};

absl::StatusOr<TcpMesh> open_tcp_mesh(const TcpWorld& world, std::chrono::milliseconds timeout);

}  // namespace partita::runtime
