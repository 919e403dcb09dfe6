#include "tools/launch/kubernetes_manifest.h"

#include <cctype>
#include <sstream>

#include "base/cat.h"
#include "nlohmann/json.hpp"
#include "runtime/launch/job_secret.h"
#include "runtime/launch/shell_words.h"

namespace partita {
namespace {

using Json = nlohmann::ordered_json;

Json pod_of(const LaunchJob& job, const KubernetesJob& kubernetes) {
  Json container = {{"name", "ranks"},
                    {"image", kubernetes.image},
                    {"workingDir", job.folder},
                    {"command", {"/bin/sh", "-c", pod_script(job)}}};
  container["env"] = {
      {{"name", "MASTER_ADDR"}, {"value", cat(kubernetes.name, "-ranks-0-0.", kubernetes.name)}},
      {{"name", "MASTER_PORT"}, {"value", cat(job.port)}},
      {{"name", runtime::kSecretVariable},
       {"valueFrom", {{"secretKeyRef", {{"name", cat(kubernetes.name, "-secret")}, {"key", "secret"}}}}}}};
  if (kubernetes.gpus) container["resources"]["limits"]["nvidia.com/gpu"] = job.ranks / job.nodes;
  container["volumeMounts"] = {{{"name", "shared-memory"}, {"mountPath", "/dev/shm"}}};
  Json volumes = {{{"name", "shared-memory"}, {"emptyDir", {{"medium", "Memory"}}}}};
  for (const std::string& claim : kubernetes.claims) {
    const std::string name = claim.substr(0, claim.find(':'));
    container["volumeMounts"].push_back({{"name", name}, {"mountPath", claim.substr(name.size() + 1)}});
    volumes.push_back({{"name", name}, {"persistentVolumeClaim", {{"claimName", name}}}});
  }
  return {{"restartPolicy", "Never"},
          {"terminationGracePeriodSeconds", 150},
          {"containers", {container}},
          {"volumes", volumes}};
}

}  // namespace

std::string dns_label(const std::string& text) {
  std::string label;
  for (const unsigned char c : text) label += std::isalnum(c) != 0 ? static_cast<char>(std::tolower(c)) : '-';
  label = label.substr(0, 40);
  while (!label.empty() && label.back() == '-') label.pop_back();
  while (!label.empty() && std::isalpha(static_cast<unsigned char>(label[0])) == 0) label.erase(0, 1);
  return label.empty() ? "partita" : label;
}

std::string pod_script(const LaunchJob& job) {
  std::vector<std::string> words = job.command;
  words.insert(words.end(), job.resume.begin(), job.resume.end());
  const int here = job.ranks / job.nodes;
  return cat("ranks=\ntrap 'kill -TERM $ranks' TERM\nexport WORLD_SIZE=", job.ranks, " LOCAL_WORLD_SIZE=", here,
             "\nfor i in $(seq 0 ", here - 1, "); do\n  RANK=$((JOB_COMPLETION_INDEX * ", here, " + i)) LOCAL_RANK=$i ",
             shell_line(words), R"( &
  ranks="$ranks $!"
done
code=0
for rank in $ranks; do
  wait $rank
  mine=$?
  while kill -0 $rank 2>/dev/null; do  # a signal came first
    wait $rank
    mine=$?
  done
  # A mistake says more than the peers that were lost over it.
  if [ $mine -ne 0 ] && { [ $code -eq 0 ] || [ $mine -lt 128 ]; }; then code=$mine; fi
done
exit $code
)");
}

std::string kubernetes_manifest(const LaunchJob& job, const KubernetesJob& kubernetes) {
  const Json secret = {{"apiVersion", "v1"},
                       {"kind", "Secret"},
                       {"metadata", {{"name", cat(kubernetes.name, "-secret")}}},
                       {"stringData", {{"secret", kubernetes.secret}}}};
  Json ranks = {{"name", "ranks"}, {"replicas", 1}};
  Json mistake = {{"action", "FailJob"},
                  {"onExitCodes", {{"containerName", "ranks"}, {"operator", "In"}, {"values", {1, 2, 3, 4, 5}}}}};
  ranks["template"]["spec"] = {{"completionMode", "Indexed"},
                               {"completions", job.nodes},
                               {"parallelism", job.nodes},
                               {"backoffLimit", 0},
                               {"podFailurePolicy", {{"rules", Json::array({mistake})}}}};
  ranks["template"]["spec"]["template"]["spec"] = pod_of(job, kubernetes);
  const Json rule = {
      {"name", "mistake"}, {"action", "FailJobSet"}, {"onJobFailureReasons", Json::array({"PodFailurePolicy"})}};
  Json set = {
      {"apiVersion", "jobset.x-k8s.io/v1alpha2"}, {"kind", "JobSet"}, {"metadata", {{"name", kubernetes.name}}}};
  set["spec"] = {{"network", {{"enableDNSHostnames", true}, {"subdomain", kubernetes.name}}},
                 {"failurePolicy", {{"maxRestarts", job.restarts.most}, {"rules", Json::array({rule})}}},
                 {"replicatedJobs", Json::array({ranks})}};
  // JSON is YAML.
  return cat(secret.dump(2), "\n---\n", set.dump(2), "\n");
}

}  // namespace partita
