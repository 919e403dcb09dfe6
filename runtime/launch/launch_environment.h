// Which rank this process is, as its launcher says in the environment.
#pragma once

#include <map>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace partita::runtime {

enum class LaunchKind { kSingle, kTorchrun, kOpenMpi, kPmi, kSlurm, kTfConfig };
std::string_view launch_kind_name(LaunchKind kind);

struct LaunchEnvironment {
  LaunchKind kind = LaunchKind::kSingle;
  int rank = 0;
  int world_size = 1;
  int local_rank = 0;  // among the ranks of this host; picks the device
  int local_size = 1;
  std::string master_address;       // rank 0's host; empty where the launcher does not tell
  int master_port = 0;              // 0 where master_address is empty
  std::string job_id;               // the same on all ranks of a run and, where the launcher has one, of this run alone
  std::string secret, secret_file;  // PARTITA_JOB_SECRET and PARTITA_JOB_SECRET_FILE (job_secret.h); empty: not set
  std::string error_file;           // where torchrun's agent looks for why this rank failed; empty: nowhere
  int device = 0;                   // of this host; that of its local_rank, unless a supervisor of ours says another
  std::string searcher;             // the `partita` that looks for values that are not finite; empty: none
  int record = -1;                  // the descriptor of its flight record, from a supervisor of ours
  // Where all ranks are processes of this host.
  bool one_host() const { return local_size == world_size; }
};

using EnvironmentMap = std::map<std::string, std::string>;

// The first launcher found, in this order:
//   torchrun   RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE
//   Open MPI   OMPI_COMM_WORLD_RANK, _SIZE, _LOCAL_RANK, _LOCAL_SIZE
//   PMI        PMI_RANK, PMI_SIZE, MPI_LOCALRANKID, MPI_LOCALNRANKS; PMIX_RANK with Slurm's count of tasks
//   Slurm      SLURM_PROCID, SLURM_STEP_NUM_TASKS or SLURM_NTASKS, SLURM_LOCALID, SLURM_*TASKS_PER_NODE, SLURM_NODEID
//   TF_CONFIG  chief (or master) first, then the workers
// and a single process where there is none. MASTER_ADDR and MASTER_PORT win over what the launcher implies (Slurm:
// first host of SLURM_STEP_NODELIST or SLURM_JOB_NODELIST, else SLURM_LAUNCH_NODE_IPADDR; a single host: 127.0.0.1).
// Under a torchrun whose agent holds MASTER_PORT itself (TORCHELASTIC_USE_AGENT_STORE), the port above it is used.
// Empty variables count as unset. InvalidArgument, naming the variable, for a number that is none, a rank outside its
// size, or a missing companion.
absl::StatusOr<LaunchEnvironment> parse_launch_environment(const EnvironmentMap& environment);

// The variable with LaunchEnvironment::record.
inline constexpr const char* kRecordVariable = "PARTITA_FLIGHT_RECORD";
// And those with `device` and `searcher`.
inline constexpr const char *kDeviceVariable = "PARTITA_DEVICE", *kSearcherVariable = "PARTITA_SEARCHER";

// This process's environment variables.
EnvironmentMap read_environment();

// Whether the user has chosen the instruction set of oneDNN, which reads these variables itself.
bool chooses_onednn_instructions(const EnvironmentMap& environment);

// Whether the user has said where the threads of OpenMP run, which reads these variables itself.
bool binds_threads(const EnvironmentMap& environment);

// The first host of a Slurm node list: "gpu[03-07,9],login1" -> "gpu03". InvalidArgument where it is malformed.
absl::StatusOr<std::string> first_slurm_host(std::string_view node_list);

// The tasks of node `node` in Slurm's "4(x2),3". InvalidArgument where it is malformed or too short.
absl::StatusOr<int> slurm_tasks_on_node(std::string_view tasks_per_node, int node);

}  // namespace partita::runtime
