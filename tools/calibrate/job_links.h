// What joins the ranks of a job that a launcher started, over MPI, TCP or NCCL: measured between them.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "tools/calibrate/link_rates.h"

namespace partita {

// One of the job's ranks, this process. They are numbered node by node, so many on each.
struct JobRank {
  runtime::Communicator* control = nullptr;  // of the host's memory
  runtime::Communicator* data = nullptr;     // what is measured: the same, or the device's
  runtime::Device* device = nullptr;         // null: the rank works on the host
  const runtime::Program* program = nullptr;
  int per_node = 1, threads = 1;
};

struct JobLinks {
  // Between the ranks of a node; between nodes, each rank with those of its place on the other nodes, all at once. None
  // where there is one rank a node, or one node.
  std::optional<LinkFit> node, network;
  double error = 0;  // of predictions of collectives of all ranks by both; 0 where one of them joins all
  double noise = 0;  // the largest
};

// All ranks call it, with the same values, and get the same. `say` is told what is being measured.
absl::StatusOr<JobLinks> measure_job_links(const JobRank& rank, const LinkSizes& sizes, const TimingLimits& limits,
                                           const std::function<void(const std::string&)>& say);

}  // namespace partita
