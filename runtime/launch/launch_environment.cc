#include "runtime/launch/launch_environment.h"

#include <unistd.h>

#include <cctype>
#include <nlohmann/json.hpp>
#include <optional>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "base/cat.h"
#include "base/quote.h"
#include "base/status.h"

namespace partita::runtime {
namespace {

constexpr int kDefaultPort = 29500;  // torchrun's
constexpr int kMaxRanks = 1 << 20;
constexpr size_t kMaxTfConfigBytes = 1 << 20;

template <typename... Parts>
absl::Status bad(const Parts&... parts) {
  return absl::InvalidArgumentError(cat(parts...));
}

class Variables {
 public:
  explicit Variables(const EnvironmentMap& environment) : environment_(environment) {}

  bool has(const std::string& name) const { return !text(name).empty(); }
  std::string text(const std::string& name) const {
    const auto found = environment_.find(name);
    return found == environment_.end() ? "" : found->second;
  }
  absl::StatusOr<int> number(const std::string& name, int least, int most) const {
    int value = 0;
    if (!has(name)) return bad(name, " is not set");
    if (!absl::SimpleAtoi(text(name), &value)) return bad(name, "=", quote(text(name)), " is not a number");
    if (value < least || value > most) return bad(name, "=", value, " is outside ", least, " to ", most);
    return value;
  }
  absl::StatusOr<int> number_or(const std::string& name, int least, int most, int otherwise) const {
    if (!has(name)) return otherwise;
    return number(name, least, most);
  }
  // The first of `names` that is set, or the last.
  std::string first(const std::vector<std::string>& names) const {
    for (const std::string& name : names) {
      if (has(name)) return name;
    }
    return names.back();
  }

 private:
  const EnvironmentMap& environment_;
};

struct Names {
  std::string rank, size, local_rank, local_size;
};

// Rank and size must be there; the local pair may be missing and then stays 0 of 1.
absl::Status read_ranks(const Variables& v, const Names& names, LaunchEnvironment& launch) {
  PARTITA_ASSIGN_OR_RETURN(launch.rank, v.number(names.rank, 0, kMaxRanks));
  if (!v.has(names.size)) return bad(names.rank, " is set but ", names.size, " is not");
  PARTITA_ASSIGN_OR_RETURN(launch.world_size, v.number(names.size, 1, kMaxRanks));
  if (launch.rank >= launch.world_size)
    return bad(names.rank, "=", launch.rank, " is not below ", names.size, "=", launch.world_size);
  PARTITA_ASSIGN_OR_RETURN(launch.local_rank, v.number_or(names.local_rank, 0, kMaxRanks, 0));
  PARTITA_ASSIGN_OR_RETURN(launch.local_size, v.number_or(names.local_size, 1, kMaxRanks, launch.local_rank + 1));
  if (launch.local_rank >= launch.local_size)
    return bad(names.local_rank, "=", launch.local_rank, " is not below ", names.local_size, "=", launch.local_size);
  if (launch.local_size > launch.world_size)
    return bad(names.local_size, "=", launch.local_size, " is above ", names.size, "=", launch.world_size);
  return absl::OkStatus();
}

bool is_this_host(std::string_view address) {
  return address == "localhost" || address == "::1" || address.starts_with("127.");
}

absl::Status read_torchrun(const Variables& v, LaunchEnvironment& launch) {
  launch.kind = LaunchKind::kTorchrun;
  PARTITA_RETURN_IF_ERROR(read_ranks(v, {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"}, launch));
  if (!v.has("LOCAL_RANK") && is_this_host(v.text("MASTER_ADDR"))) {  // started by hand, all on one host
    launch.local_rank = launch.rank;
    launch.local_size = launch.world_size;
  }
  // Not its TORCHELASTIC_RESTART_COUNT: each host's agent counts its own failures, one that came later from 0.
  if (v.has("TORCHELASTIC_RUN_ID")) launch.job_id = cat("torchrun ", v.text("TORCHELASTIC_RUN_ID"));
  return absl::OkStatus();
}

absl::Status read_open_mpi(const Variables& v, LaunchEnvironment& launch) {
  launch.kind = LaunchKind::kOpenMpi;
  launch.job_id = v.text(v.first({"PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid", "OMPI_MCA_orte_ess_jobid"}));
  return read_ranks(
      v, {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"},
      launch);
}

absl::StatusOr<int> slurm_local_size(const Variables& v, const LaunchEnvironment& launch) {
  const std::string list = v.first({"SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE"});
  if (v.has(list) && v.has("SLURM_NODEID")) {
    PARTITA_ASSIGN_OR_RETURN(const int node, v.number("SLURM_NODEID", 0, kMaxRanks));
    const absl::StatusOr<int> tasks = slurm_tasks_on_node(v.text(list), node);
    if (!tasks.ok()) return with_context(tasks.status(), list);
    return *tasks;
  }
  PARTITA_ASSIGN_OR_RETURN(const int nodes,
                           v.number_or(v.first({"SLURM_STEP_NUM_NODES", "SLURM_NNODES"}), 1, kMaxRanks, 0));
  if (nodes == 1) return launch.world_size;
  return v.number_or("SLURM_NTASKS_PER_NODE", 1, kMaxRanks, launch.local_rank + 1);
}

absl::Status read_slurm(const Variables& v, const std::string& rank_name, LaunchEnvironment& launch) {
  const std::string size_name = v.first({"SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"});
  PARTITA_RETURN_IF_ERROR(read_ranks(v, {rank_name, size_name, "SLURM_LOCALID", ""}, launch));
  PARTITA_ASSIGN_OR_RETURN(launch.local_size, slurm_local_size(v, launch));
  if (launch.local_rank >= launch.local_size)
    return bad("SLURM_LOCALID=", launch.local_rank, " is not below this node's ", launch.local_size, " tasks");
  launch.job_id =
      cat("slurm ", v.text("SLURM_JOB_ID"), ".", v.text("SLURM_STEP_ID"), " ", v.text("SLURM_RESTART_COUNT"));
  return absl::OkStatus();
}

absl::Status read_slurm_master(const Variables& v, LaunchEnvironment& launch) {
  const std::string list = v.first({"SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST"});
  if (v.has(list)) {
    absl::StatusOr<std::string> host = first_slurm_host(v.text(list));
    if (!host.ok()) return with_context(host.status(), list);
    launch.master_address = *std::move(host);
  } else {
    launch.master_address = v.text("SLURM_LAUNCH_NODE_IPADDR");
  }
  int64_t job = 0;
  if (absl::SimpleAtoi(v.text("SLURM_JOB_ID"), &job) && job >= 0)
    launch.master_port = static_cast<int>(20000 + job % 20000);
  return absl::OkStatus();
}

absl::Status read_pmi(const Variables& v, LaunchEnvironment& launch) {
  launch.kind = LaunchKind::kPmi;
  if (!v.has("PMI_RANK")) return read_slurm(v, "PMIX_RANK", launch);
  launch.job_id = v.text(v.first({"PMI_JOBID", "PMI_ID"}));
  if (!v.has("PMI_JOBID")) launch.job_id.clear();  // PMI_ID differs from rank to rank
  return read_ranks(v,
                    {"PMI_RANK", "PMI_SIZE", v.first({"MPI_LOCALRANKID", "PMI_LOCAL_RANK"}),
                     v.first({"MPI_LOCALNRANKS", "PMI_LOCAL_SIZE"})},
                    launch);
}

struct TfTask {
  std::string host;
  int port = 0;
};

absl::StatusOr<TfTask> parse_tf_task(const nlohmann::json& text) {
  if (!text.is_string()) return bad("TF_CONFIG: an address is not a string");
  const std::string address = text.get<std::string>();
  const size_t colon = address.rfind(':');
  TfTask task;
  if (colon == std::string::npos || colon == 0 || !absl::SimpleAtoi(address.substr(colon + 1), &task.port) ||
      task.port < 1 || task.port > 65535) {
    return bad("TF_CONFIG: ", quote(address), " is not host:port");
  }
  task.host = address.substr(0, colon);
  return task;
}

absl::StatusOr<std::vector<TfTask>> tf_tasks(const nlohmann::json& cluster, const char* type) {
  std::vector<TfTask> tasks;
  if (!cluster.contains(type)) return tasks;
  if (!cluster[type].is_array()) return bad("TF_CONFIG: cluster.", type, " is not a list");
  for (const nlohmann::json& text : cluster[type]) {
    PARTITA_ASSIGN_OR_RETURN(tasks.emplace_back(), parse_tf_task(text));
  }
  return tasks;
}

absl::Status read_tf_config(const Variables& v, LaunchEnvironment& launch) {
  launch.kind = LaunchKind::kTfConfig;
  const std::string text = v.text("TF_CONFIG");
  if (text.size() > kMaxTfConfigBytes) return bad("TF_CONFIG is longer than ", kMaxTfConfigBytes, " bytes");
  const nlohmann::json config = nlohmann::json::parse(text, nullptr, false);
  if (!config.is_object()) return bad("TF_CONFIG is not a JSON object");
  const nlohmann::json cluster = config.value("cluster", nlohmann::json());
  const nlohmann::json task = config.value("task", nlohmann::json());
  if (!cluster.is_object() || !task.is_object()) return bad("TF_CONFIG: \"cluster\" and \"task\" must be objects");
  const nlohmann::json type = task.value("type", nlohmann::json());
  const nlohmann::json index = task.value("index", nlohmann::json());
  if (!type.is_string()) return bad("TF_CONFIG: task.type is not a string");
  int64_t position = -1;
  if (index.is_number_integer()) position = index.get<int64_t>();
  if (index.is_string() && !absl::SimpleAtoi(index.get<std::string>(), &position)) position = -1;
  const std::string task_type = type.get<std::string>();
  std::vector<TfTask> all;
  for (const char* candidate : {"chief", "master", "worker"}) {
    PARTITA_ASSIGN_OR_RETURN(const std::vector<TfTask> tasks, tf_tasks(cluster, candidate));
    if (task_type == candidate) {
      if (position < 0 || position >= static_cast<int64_t>(tasks.size())) {
        return bad("TF_CONFIG: task.index is not an index of cluster.", candidate, ", which has ", tasks.size(),
                   " entries");
      }
      launch.rank = static_cast<int>(all.size()) + static_cast<int>(position);
    }
    all.insert(all.end(), tasks.begin(), tasks.end());
  }
  if (task_type != "chief" && task_type != "master" && task_type != "worker") {
    return bad("TF_CONFIG: task.type ", quote(task_type), " has no part in training; use chief or worker");
  }
  launch.world_size = static_cast<int>(all.size());
  const std::string& host = all[static_cast<size_t>(launch.rank)].host;
  launch.local_size = 0;
  for (int rank = 0; rank < launch.world_size; ++rank) {
    if (all[static_cast<size_t>(rank)].host != host) continue;
    if (rank < launch.rank) ++launch.local_rank;
    ++launch.local_size;
  }
  launch.master_address = all[0].host;
  launch.master_port = all[0].port;
  return absl::OkStatus();
}

absl::Status read_launcher(const Variables& v, LaunchEnvironment& launch) {
  const bool slurm_size = v.has("SLURM_STEP_NUM_TASKS") || v.has("SLURM_NTASKS");
  if (v.has("RANK")) return read_torchrun(v, launch);
  if (v.has("OMPI_COMM_WORLD_RANK")) return read_open_mpi(v, launch);
  if (v.has("PMI_RANK") || (v.has("PMIX_RANK") && slurm_size)) return read_pmi(v, launch);
  if (v.has("SLURM_PROCID") && slurm_size) {
    launch.kind = LaunchKind::kSlurm;
    return read_slurm(v, "SLURM_PROCID", launch);
  }
  if (v.has("TF_CONFIG")) return read_tf_config(v, launch);
  if (v.has("WORLD_SIZE")) {
    PARTITA_ASSIGN_OR_RETURN(const int size, v.number("WORLD_SIZE", 1, kMaxRanks));
    if (size > 1) return bad("WORLD_SIZE is set but RANK is not");
  }
  return absl::OkStatus();
}

absl::Status read_master(const Variables& v, LaunchEnvironment& launch) {
  if (launch.master_address.empty() && (launch.kind == LaunchKind::kSlurm || launch.kind == LaunchKind::kPmi)) {
    PARTITA_RETURN_IF_ERROR(read_slurm_master(v, launch));
  }
  if (v.has("MASTER_ADDR")) launch.master_address = v.text("MASTER_ADDR");
  if (launch.master_address.empty() && launch.local_size == launch.world_size) launch.master_address = "127.0.0.1";
  if (launch.master_address.empty()) return absl::OkStatus();
  if (launch.master_port == 0) launch.master_port = kDefaultPort;
  PARTITA_ASSIGN_OR_RETURN(launch.master_port, v.number_or("MASTER_PORT", 1, 65535, launch.master_port));
  if (launch.kind == LaunchKind::kTorchrun && absl::EqualsIgnoreCase(v.text("TORCHELASTIC_USE_AGENT_STORE"), "true")) {
    launch.master_port += launch.master_port < 65535 ? 1 : -1;
  }
  return absl::OkStatus();
}

}  // namespace

std::string_view launch_kind_name(LaunchKind kind) {
  switch (kind) {
    case LaunchKind::kSingle:
      return "single";
    case LaunchKind::kTorchrun:
      return "torchrun";
    case LaunchKind::kOpenMpi:
      return "openmpi";
    case LaunchKind::kPmi:
      return "pmi";
    case LaunchKind::kSlurm:
      return "slurm";
    case LaunchKind::kTfConfig:
      return "tf_config";
  }
  return "unknown";
}

absl::StatusOr<LaunchEnvironment> parse_launch_environment(const EnvironmentMap& environment) {
  const Variables variables(environment);
  LaunchEnvironment launch;
  PARTITA_RETURN_IF_ERROR(read_launcher(variables, launch));
  PARTITA_RETURN_IF_ERROR(read_master(variables, launch));
  launch.secret = variables.text("PARTITA_JOB_SECRET");
  launch.secret_file = variables.text("PARTITA_JOB_SECRET_FILE");
  launch.error_file = variables.text("TORCHELASTIC_ERROR_FILE");
  launch.searcher = variables.text(kSearcherVariable);
  PARTITA_ASSIGN_OR_RETURN(launch.device, variables.number_or(kDeviceVariable, 0, kMaxRanks, launch.local_rank));
  PARTITA_ASSIGN_OR_RETURN(launch.record, variables.number_or(kRecordVariable, 0, 1 << 20, -1));
  return launch;
}

EnvironmentMap read_environment() {
  EnvironmentMap environment;
  for (char** entry = ::environ; entry != nullptr && *entry != nullptr; ++entry) {
    const std::string_view text(*entry);
    const size_t equals = text.find('=');
    if (equals != std::string_view::npos && equals > 0)
      environment.emplace(text.substr(0, equals), text.substr(equals + 1));
  }
  return environment;
}

bool chooses_onednn_instructions(const EnvironmentMap& environment) {
  return environment.contains("ONEDNN_MAX_CPU_ISA") || environment.contains("DNNL_MAX_CPU_ISA");
}

bool binds_threads(const EnvironmentMap& environment) {
  return environment.contains("OMP_PROC_BIND") || environment.contains("OMP_PLACES") ||
         environment.contains("GOMP_CPU_AFFINITY");
}

absl::StatusOr<std::string> first_slurm_host(std::string_view node_list) {
  std::string host;
  for (size_t i = 0; i < node_list.size() && node_list[i] != ','; ++i) {
    const char c = node_list[i];
    if (c != '[') {
      if (!std::isalnum(static_cast<unsigned char>(c)) && c != '-' && c != '.' && c != '_') {
        return bad(quote(node_list), " is not a list of nodes");
      }
      host += c;
      continue;
    }
    const size_t close = node_list.find(']', i);
    const std::string_view ranges = close == std::string_view::npos ? "" : node_list.substr(i + 1, close - i - 1);
    const std::string_view number = ranges.substr(0, ranges.find_first_of(",-"));
    if (number.empty() || number.find_first_not_of("0123456789") != std::string_view::npos) {
      return bad(quote(node_list), " is not a list of nodes");
    }
    host += number;
    i = close;
  }
  if (host.empty()) return bad(quote(node_list), " is not a list of nodes");
  return host;
}

absl::StatusOr<int> slurm_tasks_on_node(std::string_view tasks_per_node, int node) {
  int64_t seen = 0;
  for (const std::string& part : std::vector<std::string>(absl::StrSplit(std::string(tasks_per_node), ','))) {
    const size_t open = part.find("(x");
    int tasks = 0, repeats = 1;
    bool good = absl::SimpleAtoi(part.substr(0, open), &tasks) && tasks > 0 && tasks <= kMaxRanks;
    if (open != std::string_view::npos) {
      const std::string count = part.substr(open + 2);
      good = good && absl::EndsWith(count, ")") && absl::SimpleAtoi(count.substr(0, count.size() - 1), &repeats) &&
             repeats > 0 && repeats <= kMaxRanks;
    }
    if (!good) break;
    seen += repeats;
    if (node < seen) return tasks;
  }
  return bad(quote(tasks_per_node), " does not give the tasks of node ", node);
}

}  // namespace partita::runtime
