// A job for Kubernetes, as a JobSet (jobset.sigs.k8s.io).
#pragma once

#include <string>
#include <vector>

#include "tools/launch/launch_job.h"

namespace partita {

struct KubernetesJob {
  std::string name;   // DNS label
  std::string image;  // holds the bundle at job.command's path
  std::string secret;
  bool gpus = false;                // one for each rank, of NVIDIA's
  std::vector<std::string> claims;  // volumes: "CLAIM:PATH"
};

// Two documents for `kubectl apply -f`: the secret, and a pod for each of job.nodes whose shell starts its ranks. When
// a pod is told to go they save and leave; codes worth another start start all pods again, at most job.restarts.most
// times, and a mistake ends the job.
std::string kubernetes_manifest(const LaunchJob& job, const KubernetesJob& kubernetes);

// What the shell of a pod runs.
std::string pod_script(const LaunchJob& job);

// A DNS label made of any text: "My Bundle" -> "my-bundle".
std::string dns_label(const std::string& text);

}  // namespace partita
