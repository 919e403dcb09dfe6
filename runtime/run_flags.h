// The flags of a run, the same for `partita run`, `partita train` and a rank's own executable, and the bundle that they
// act on.
#pragma once

#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "nlohmann/json_fwd.hpp"
#include "runtime/metrics/metrics.h"
#include "runtime/train/trainer.h"

namespace CLI {
class App;
}

namespace partita::runtime {

class BundleFiles;
class SampleFeed;
struct BundleTrust;

// `--data`: a path, or a path of raw ids and their element type, "ids.bin:uint16", in place of the paths of `config` or
// of synthetic samples. InvalidArgument for another type.
absl::Status take_data_flag(const std::string& flag, DataConfig& config);

struct RunFlags {
  std::string data, save, save_gradients, profile, tune, trust_key;
  std::vector<std::string> metrics;
  std::optional<int64_t> steps;
  int64_t epochs = 0;     // passes over the data; 0: as the data have it
  int64_t log_every = 0;  // steps from one line to the next; 0: chosen
  std::string checkpoint, checkpoint_to, init, init_optimizer, listen_metrics;
  Renaming renaming;                  // of the two
  std::optional<std::string> resume;  // "": from --checkpoint's newest
  bool new_pass = false;              // TrainOptions'
  std::string on_nonfinite;           // empty: as the recipe says
  std::string loss_spike;             // FACTOR[,WINDOW[,ACTION]], "off"; empty: likewise
  int find_bad_value = 600;           // seconds
  int64_t every = 0, audit = 0;
  MirrorOptions mirror;
  int keep = 3, keep_best = 0;
  int64_t patience = 0;
  double min_gain = 0;
  bool fast_dev_run = false;
  int threads = 0;
  std::string bind = "none";  // BindMode; the flag's default is "auto"
  double peak_flops = 0;      // a second, of one rank's device; 0: as the plan says
  DataCache cache;
  bool shuffle = false, quiet = false, require_certificate = false;
  std::shared_ptr<SampleFeed> feed;  // no flag: batches come from there, in place of data, until it is closed
  std::string log_folder;
  std::vector<std::string> timeouts;  // "PHASE=SECONDS"
  std::string progress = "auto";      // "bar", "lines"; "auto": a bar where stderr is a terminal

  void add(CLI::App& app);
  // What they ask of the bundle before it is run.
  BundleTrust trust() const;
  // Options for a bundle: its manifest's data settings and seed, its first weights, then these flags. InvalidArgument,
  // DataLoss.
  absl::StatusOr<TrainOptions> options(const BundleFiles& bundle) const;
  absl::StatusOr<CheckpointOptions> checkpoint_options() const;
  absl::Status add_evaluation(const BundleFiles& bundle, TrainOptions& options) const;
  absl::Status add_ramp(const BundleFiles& bundle, TrainOptions& options) const;
  absl::Status add_lengths(const BundleFiles& bundle, TrainOptions& options) const;
  // `run`: the recipe's `run` as the manifest has it; an object.
  absl::StatusOr<DivergenceOptions> divergence_options(const nlohmann::json& run) const;
  // For runs whose numbers are looked at: whatever goes wrong, they go on.
  void only_warn();
  // Threads of each of so many ranks of this host, by --threads or its cores.
  int threads_of(int ranks_here) const;
  // The command line again that says these flags.
  std::vector<std::string> arguments() const;
  // The console and every --metrics file. `total`: steps, 0 where not known. `console`: where output goes beside a log.
  absl::StatusOr<std::unique_ptr<MetricsSink>> sink(int64_t total, std::FILE* console = nullptr) const;
  absl::StatusOr<Timeouts> limits(const nlohmann::json& run) const;
  // The folder of the ranks' flight records; empty: in memory alone.
  std::string records() const;
};

}  // namespace partita::runtime
