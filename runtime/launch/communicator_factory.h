// Opens the communicator that fits how this process was started.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "runtime/communicate/collective.h"
#include "runtime/launch/launch_environment.h"
#include "runtime/launch/plugin.h"

namespace partita::runtime {

inline constexpr const char* kMpiModule = "libpartita_comm_mpi.so";

struct OpenOptions : CommunicatorOptions {
  PluginSource plugins;   // of kMpiModule
  bool encrypt = false;   // what goes from host to host, data too
  std::string interface;  // of TcpWorld
  int64_t expected = 0;   // bytes that the program may receive in a step; 0: not known
};

// `backend`: "mpi"; "tcp" (see collective_tcp.h); "auto" = one rank: threads; started by mpirun or PMI and the MPI
// module loads: mpi; else tcp. The same value must be given on all ranks. InvalidArgument for another name or where
// rank 0's address is not known, NotFound without the module, FailedPrecondition where MPI counts other ranks than the
// launcher, Unavailable naming the ranks that did not come. Over TCP on several hosts the ranks prove to each other
// that they know the job's secret (job_secret.h): InvalidArgument without one. Encryption is TCP's: FailedPrecondition
// where it is asked of MPI.
absl::StatusOr<std::unique_ptr<Communicator>> open_communicator(const LaunchEnvironment& launch,
                                                                std::string_view backend = "auto",
                                                                const OpenOptions& options = {});

}  // namespace partita::runtime
