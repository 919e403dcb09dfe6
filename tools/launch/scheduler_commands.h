// The command lines and scripts that start a job through schedulers' own tools.
#pragma once

#include <string>
#include <vector>

#include "tools/launch/hosts_file.h"
#include "tools/launch/launch_job.h"

namespace partita {

// torchrun on this host, the `node_rank`-th of job.nodes; `master`: the first one's address. Where the bundle has plans
// for fewer whole nodes, hosts may be lost, and come back or join later (--nnodes MIN:MAX); others reach this one by
// `address` then (empty: by its name).
std::vector<std::string> torchrun_command(const LaunchJob& job, const std::string& master, int node_rank,
                                          const std::string& address);

// Open MPI's mpirun, on these hosts, or where mpirun itself finds some. `tcp`: MPI starts the ranks and does not carry
// their messages.
std::vector<std::string> mpirun_command(const LaunchJob& job, const std::vector<Host>& hosts, bool tcp);

// A script for sbatch: srun starts the ranks. Two minutes before its time is over, and when it is cancelled, they save
// and leave; it is queued again then, and when ranks were lost, at most job.restarts.most times. `options`: further
// #SBATCH lines, such as "--partition=gpu".
std::string slurm_script(const LaunchJob& job, const std::string& name, const std::vector<std::string>& options);

}  // namespace partita
