#include "runtime/communicator_factory.h"

#include <dlfcn.h>

#include <filesystem>

#include "absl/strings/str_join.h"
#include "base/cat.h"
#include "base/quote.h"
#include "base/status.h"
#include "runtime/collective_tcp.h"
#include "runtime/collective_threads.h"
#include "runtime/transport.h"
#include "runtime/transport_communicator.h"

namespace partita::runtime {
namespace {

constexpr std::string_view kMpiModule = "libpartita_comm_mpi.so";

absl::StatusOr<OpenTransportPlugin*> load_plugin(std::string_view file, const std::vector<std::string>& directories) {
  std::vector<std::string> reasons;
  for (const std::string& directory : directories) {
    const std::filesystem::path path = std::filesystem::path(directory) / file;
    std::error_code error;
    if (!std::filesystem::exists(path, error)) continue;
    // Global: Open MPI's own components look for its symbols. Never closed: MPI leaves threads and exit handlers
    // behind.
    void* module = ::dlopen(path.c_str(), RTLD_NOW | RTLD_GLOBAL);
    void* symbol = module == nullptr ? nullptr : ::dlsym(module, kTransportPluginSymbol);
    if (symbol != nullptr) return reinterpret_cast<OpenTransportPlugin*>(symbol);
    const char* reason = ::dlerror();
    reasons.emplace_back(reason == nullptr ? "unknown error" : reason);
  }
  if (!reasons.empty()) return absl::NotFoundError(cat("cannot load ", file, ": ", absl::StrJoin(reasons, "; ")));
  return absl::NotFoundError(cat(file, " is in none of ", absl::StrJoin(directories, ", ")));
}

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
  return open_tcp_communicator(world, options);
}

}  // namespace

std::vector<std::string> default_plugin_directories() {
  std::vector<std::string> directories;
  std::error_code error;
  if (const std::filesystem::path self = std::filesystem::read_symlink("/proc/self/exe", error); !error) {
    directories.push_back(self.parent_path());
    directories.push_back((self.parent_path() / "../lib").lexically_normal());
  }
  directories.emplace_back(PARTITA_PLUGIN_BUILD_DIR);
  return directories;
}

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
    const absl::StatusOr<OpenTransportPlugin*> plugin = load_plugin(kMpiModule, options.plugin_directories);
    if (plugin.ok()) return open_mpi(*plugin, launch, options);
    if (backend == "mpi" || launch.master_address.empty()) return plugin.status();
  }
  return open_tcp(launch, options);
}

}  // namespace partita::runtime
