// Training that goes on step by step, with batches that the process around it hands over.
#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "runtime/data/sample_feed.h"
#include "runtime/launch/launch_environment.h"
#include "runtime/metrics/metrics.h"
#include "runtime/program/bundle_files.h"
#include "runtime/run_flags.h"

namespace partita::runtime {

// All ranks of a bundle as threads of this process; where a launcher started this process as one of several, its rank
// alone, and the others' sessions take every step with it.
class Session {
 public:
  // `inputs`: names of the columns that step() is given, in their order. Flags are those of a run; --data and --steps
  // have no say. The ranks start at once; what goes wrong in them is the error of the step or close() that waits for
  // them. Errors: the bundle's and the launcher's.
  static absl::StatusOr<std::unique_ptr<Session>> open(const std::string& folder, const RunFlags& flags,
                                                       std::vector<std::string> inputs);
  // As close(), its status dropped.
  ~Session();

  // One optimizer step on a global batch, whose memory is not looked at afterwards. What it reports; a rank of a
  // launcher's, what it knows of that. FailedPrecondition after close() or an error.
  absl::StatusOr<StepMetrics> step(SampleFeed::Columns columns);
  // Ends training, with the last checkpoint where the flags have a folder for them. Does nothing the second time.
  absl::Status close();

 private:
  class Sink;
  Session() = default;
  absl::Status train(const std::shared_ptr<const BundleFiles>& bundle, const BundleFiles& plan,
                     const LaunchEnvironment& launch);

  RunFlags flags_;
  std::shared_ptr<SampleFeed> feed_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::optional<StepMetrics> metrics_;  // of the step at hand, when it is done
  std::optional<absl::Status> ended_;
  std::thread thread_;
};

}  // namespace partita::runtime
