#include "tools/launch/scheduler_commands.h"

#include <algorithm>
#include <filesystem>

#include "base/cat.h"
#include "runtime/launch/job_secret.h"
#include "runtime/launch/shell_words.h"

namespace partita {
namespace {

std::vector<std::string> with_command(std::vector<std::string> words, const LaunchJob& job) {
  words.insert(words.end(), job.command.begin(), job.command.end());
  // What starts again says the same words: they hold for the first start, too.
  words.insert(words.end(), job.resume.begin(), job.resume.end());
  return words;
}

std::string job_name(const LaunchJob& job) {
  return std::filesystem::path(job.command[0]).parent_path().filename().string();
}

// Between what the smallest plan needs and what the largest does: "2-8" where `between` is "-".
std::string nodes_of(const LaunchJob& job, int least, const char* between) {
  return least == job.nodes ? cat(least) : cat(least, between, job.nodes);
}

int least_nodes(const LaunchJob& job) {
  const int each = job.ranks / job.nodes;
  return job.plans.size() < 2 ? job.nodes : (job.plans.back() + each - 1) / each;
}

// torchrun starts a rank in each place of each node: the fewest nodes whose places a plan fills.
int least_full_nodes(const LaunchJob& job) {
  const int each = job.ranks / job.nodes;
  int least = job.nodes;
  for (const int ranks : job.plans) {
    if (ranks % each == 0) least = std::min(least, ranks / each);
  }
  return least;
}

// A value of an #SBATCH line, in which spaces end a word and '#' begins a comment.
std::string sbatch_word(const std::string& text) {
  if (shell_word(text) == text) return text;
  std::string quoted = "\"";
  for (char c : text) quoted += c == '"' || c == '\\' ? std::string("\\") + c : std::string(1, c);
  return quoted + "\"";
}

}  // namespace

std::vector<std::string> torchrun_command(const LaunchJob& job, const std::string& master, int node_rank,
                                          const std::string& address) {
  std::vector<std::string> words = {"torchrun", "--no-python", cat("--nproc-per-node=", job.ranks / job.nodes)};
  const int least = least_full_nodes(job);
  if (job.nodes == 1) {
    words.emplace_back("--standalone");
  } else if (least < job.nodes) {  // hosts come and go: they agree among themselves on who is there, and on numbers
    for (const std::string& word : {cat("--nnodes=", nodes_of(job, least, ":")), std::string("--rdzv-backend=c10d"),
                                    cat("--rdzv-endpoint=", master, ":", job.port), cat("--rdzv-id=", job_name(job))})
      words.push_back(word);
    if (!address.empty()) words.push_back(cat("--local-addr=", address));
    // A node that comes later never learns where rank 0 is, where that shares torchrun's own store (torch 2.4 to 2.15).
    words.insert(words.begin(), {"env", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1"});
  } else {
    for (const std::string& word : {cat("--nnodes=", job.nodes), cat("--node-rank=", node_rank),
                                    cat("--master-addr=", master), cat("--master-port=", job.port)})
      words.push_back(word);
  }
  words.push_back(cat("--max-restarts=", job.restarts.most));
  return with_command(std::move(words), job);
}

std::vector<std::string> mpirun_command(const LaunchJob& job, const std::vector<Host>& hosts, bool tcp) {
  std::vector<std::string> words = {"mpirun", "-n", cat(job.ranks), "--wdir", job.folder};
  std::string list;
  for (const Host& host : hosts) list += cat(list.empty() ? "" : ",", host.name, ":", host.slots);
  if (!list.empty()) words.insert(words.end(), {"--host", list});
  if (tcp && hosts.size() > 1) {
    words.insert(words.end(), {"-x", cat("MASTER_ADDR=", hosts[0].address), "-x", cat("MASTER_PORT=", job.port), "-x",
                               job.secret_file.empty() ? std::string(runtime::kSecretVariable)
                                                       : cat(runtime::kSecretFileVariable, "=", job.secret_file)});
  }
  return with_command(std::move(words), job);
}

std::string slurm_script(const LaunchJob& job, const std::string& name, const std::vector<std::string>& options) {
  std::string script = "#!/bin/bash\n";
  const int each = job.ranks / job.nodes;
  const bool elastic = job.plans.size() > 1;
  std::vector<std::string> lines = {cat("--job-name=", sbatch_word(name)),
                                    cat("--nodes=", nodes_of(job, least_nodes(job), "-"))};
  if (!elastic) lines.push_back(cat("--ntasks=", job.ranks));
  for (const std::string& line :
       {cat("--ntasks-per-node=", each), cat("--chdir=", sbatch_word(job.folder)), std::string("--requeue"),
        std::string("--open-mode=append"), std::string("--signal=B:USR1@120")})
    lines.push_back(line);
  lines.insert(lines.end(), options.begin(), options.end());
  for (const std::string& line : lines) append(script, "#SBATCH ", line, "\n");
  if (!job.secret_file.empty())
    append(script, "export ", runtime::kSecretFileVariable, "=", shell_word(job.secret_file), "\n");
  if (elastic) {
    append(script, "\n# The largest plan that the nodes of this start have room for.\nfor ranks in");
    for (int n : job.plans) append(script, " ", n);
    append(script, "; do\n  [ $ranks -le $((SLURM_JOB_NUM_NODES * ", each, ")) ] && break\ndone\n");
  }
  append(script, R"(
leaving=
leave() {  # the ranks save and leave
  leaving=yes
  scancel --signal=TERM "$SLURM_JOB_ID.0" 2>/dev/null
}
trap leave USR1 TERM

srun )",
         elastic ? "--ntasks=$ranks " : "", "--kill-on-bad-exit=1 --wait=60 ", shell_line(with_command({}, job)), R"( &
step=$!
wait $step
code=$?
while kill -0 $step 2>/dev/null; do  # a signal came first
  wait $step
  code=$?
done

# Codes of 128 and above are worth another start, but not of a job that Slurm is ending: somebody cancelled it.
if [ $code -ge 128 ] && [ "${SLURM_RESTART_COUNT:-0}" -lt )",
         job.restarts.most, R"( ]; then
  state=$(squeue --noheader --jobs="$SLURM_JOB_ID" --format=%T)
  if [ "${state:-RUNNING}" = RUNNING ]; then
    echo "partita: the ranks ended with $code${leaving:+, as they were told}; queued again"
    scontrol requeue "$SLURM_JOB_ID"
  else
    echo "partita: the ranks ended with $code; the job is $state and not queued again"
  fi
fi
exit $code
)");
  return script;
}

}  // namespace partita
