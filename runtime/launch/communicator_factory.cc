#include "runtime/launch/communicator_factory.h"

#include "base/cat.h"
#include "base/quote.h"
#include "base/status.h"
#include "runtime/communicate/transport.h"
#include "runtime/communicate/transport_communicator.h"
#include "runtime/launch/job_secret.h"
#include "runtime/transports/collective_tcp.h"
#include "runtime/transports/collective_threads.h"

namespace partita::runtime {
namespace {

constexpr size_t kLeastEarlyBytes = size_t{16} << 20;

absl::StatusOr<std::unique_ptr<Communicator>> open_mpi(OpenTransportPlugin* plugin, const LaunchEnvironment& launch,
                                                       const OpenOptions& options) {
  const auto open = [plugin, launch, timeout = options.timeout]() -> absl::StatusOr<std::unique_ptr<Transport>> {
    std::string error;
    std::unique_ptr<Transport> transport(plugin(kTransportPluginVersion, timeout.count(), &error));
    if (transport == nullptr) return absl::UnavailableError(cat("MPI does not start: ", error));
    if (transport->size() != launch.world_size || transport->rank() != launch.rank) {
      return absl::FailedPreconditionError(cat("MPI says rank ", transport->rank(), " of ", transport->size(), ", the ",
                                               launch_kind_name(launch.kind), " environment rank ", launch.rank, " of ",
                                               launch.world_size,
                                               "; start with mpirun or srun --mpi=pmix, or use the tcp back end"));
    }
    return transport;
  };
  return open_transport_communicator(open, options);
}

absl::StatusOr<std::unique_ptr<Communicator>> open_tcp(const LaunchEnvironment& launch, const OpenOptions& options) {
  TcpWorld world;
  world.rank = launch.rank;
  world.size = launch.world_size;
  world.master.address = launch.master_address;
  world.master.port = static_cast<uint16_t>(launch.master_port);
  world.job_id = launch.job_id;
  world.one_host = launch.one_host();
  if (!world.one_host) {
    PARTITA_ASSIGN_OR_RETURN(world.secret, read_job_secret(launch));
    world.encrypt = options.encrypt;
    world.interface = options.interface;
  }
  // A sender may be a step ahead.
  if (options.expected > 0) world.early_bytes = kLeastEarlyBytes + 2 * static_cast<size_t>(options.expected);
  return open_tcp_communicator(world, options);
}

}  // namespace

absl::StatusOr<std::unique_ptr<Communicator>> open_communicator(const LaunchEnvironment& launch,
                                                                std::string_view backend, const OpenOptions& options) {
  if (backend != "auto" && backend != "mpi" && backend != "tcp") {
    return absl::InvalidArgumentError(cat("communication back end ", quote(backend), " is none of auto, mpi, tcp"));
  }
  if (launch.world_size < 1 || launch.rank < 0 || launch.rank >= launch.world_size) {
    return absl::InvalidArgumentError(cat("rank ", launch.rank, " in a world of ", launch.world_size));
  }
  if (backend == "auto" && launch.world_size == 1) return ThreadWorld(1, options).communicator(0);
  const bool by_mpi = launch.kind == LaunchKind::kOpenMpi || launch.kind == LaunchKind::kPmi;
  if (backend == "mpi" || (backend == "auto" && by_mpi)) {
    if (options.encrypt && !launch.one_host())
      return absl::FailedPreconditionError("MPI does not encrypt; say --backend tcp with --encrypt");
    const absl::StatusOr<void*> plugin = load_plugin(kMpiModule, kTransportPluginSymbol, options.plugins);
    if (plugin.ok()) return open_mpi(reinterpret_cast<OpenTransportPlugin*>(*plugin), launch, options);
    if (backend == "mpi" || launch.master_address.empty()) return plugin.status();
  }
  return open_tcp(launch, options);
}

}  // namespace partita::runtime
