// What a training step reports, and where it goes.
#pragma once

#include <cstdint>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace partita::runtime {

// What is known of a run's steps before they are taken. 0: it is not.
struct StepFigures {
  double flops = 0;       // of the model's products, of one step over all ranks; what is computed again is not counted
  double peak_flops = 0;  // a second, of all ranks' devices
  double planned_seconds = 0;  // of a step, as the plan predicted
  int64_t planned_bytes = 0;   // of a rank's memory, likewise
  double price_per_hour = 0;   // of all devices, in $
};

// Values that were not measured stay unset; NaN and infinity are values (a diverged loss).
struct StepMetrics {
  int64_t step = 0;    // from 0
  double seconds = 0;  // wall time of the step
  std::optional<double> loss, lr, grad_norm;
  std::optional<double> samples_per_second, tokens_per_second;
  std::optional<double> flops_per_second, mfu;  // the model's FLOPs, over all ranks; mfu: of the devices' peak, 0 to 1
  std::optional<double> dollars;                // since the run began
  std::optional<double> input_stall_seconds;    // part of `seconds` spent waiting for input
  std::optional<double> communication_stall_seconds;  // likewise for other ranks; of programs on hosts
  std::optional<double> checkpoint_stall_seconds;     // between the step before and this one, for a checkpoint
  std::vector<double> rank_seconds;     // by rank: what its own work of a step takes, now and then; else empty
  std::optional<int64_t> memory_bytes;  // peak on this rank's device
  std::optional<double> loss_scale;
  std::optional<double> evaluation_loss;
  std::optional<int64_t> length;  // of the step's samples, where a run has several
  std::optional<double> padding;  // share of the step's positions, 0 to 1, where samples have lengths of their own
  bool skipped = false;           // the update was dropped (fp16 overflow)
  // The recipe's metrics and terms of the loss, then those of an evaluation, "evaluation_NAME"; in every step the same.
  std::vector<std::pair<std::string, std::optional<double>>> named;
  std::vector<std::pair<std::string, double>> extra;
};

// The fields of `metrics` that are set, in a fixed order, under the names they have in every sink ("loss", "grad_norm",
// …); step and skipped (0 or 1) included.
std::vector<std::pair<std::string, double>> metric_values(const StepMetrics& metrics);

// Not thread-safe: one rank writes.
class MetricsSink {
 public:
  virtual ~MetricsSink() = default;
  // Errors: ResourceExhausted when the disk is full, naming the file.
  virtual absl::Status write(const StepMetrics& metrics) = 0;
  // Flushes; the last call.
  virtual absl::Status close() { return absl::OkStatus(); }
};

struct ConsoleOptions {
  bool bar = false;         // for a terminal: one line that is drawn over, with a progress bar and the time that is
                            // left; else plain lines
  bool quiet = false;       // nothing at all
  int64_t total_steps = 0;  // 0 = unknown: no bar
  int64_t every = 1;        // plain lines: each n-th step, the first and the last
};
// Writes to `out` (usually stderr), which must outlive the sink.
std::unique_ptr<MetricsSink> make_console_sink(std::FILE* out, const ConsoleOptions& options);
// The line without its end: "step 12/100  loss 2.3026  lr 1e-3  …"
std::string console_line(const StepMetrics& metrics, int64_t total_steps);

// `append`: go on with an existing file (a resumed run) instead of replacing it; a last line without its end goes.
// CSV: a header line, then one line a step; the columns are those of the fixed list and the named ones, empty where
// unset. InvalidArgument from write() where a file that is gone on with has others; their order is the file's.
absl::StatusOr<std::unique_ptr<MetricsSink>> make_csv_sink(const std::string& path, bool append = false);
// JSON lines: one object a step, flushed at once, always with step, loss and grad_norm; doubles in the fewest digits
// that read back exactly; null for what is unset, NaN or infinite.
absl::StatusOr<std::unique_ptr<MetricsSink>> make_json_lines_sink(const std::string& path, bool append = false);
// TensorBoard: a new events file in `folder`, which is made if missing; tags are "train/loss" and so on.
absl::StatusOr<std::unique_ptr<MetricsSink>> make_tensorboard_sink(const std::string& folder);
// Prometheus text format for node_exporter's textfile collector: gauges partita_loss{labels} …, the file replaced
// atomically at most once in `interval_seconds`, and at close.
absl::StatusOr<std::unique_ptr<MetricsSink>> make_prometheus_sink(
    const std::string& path, std::vector<std::pair<std::string, std::string>> labels = {}, double interval_seconds = 1);

// The newest step for a Prometheus server to fetch, at http://ADDRESS/metrics, until the sink is gone. `address`: a
// port, of this host alone, or HOST:PORT. FailedPrecondition where it cannot listen there.
absl::StatusOr<std::unique_ptr<MetricsSink>> make_http_sink(const std::string& address);
// The name of a value there: "loss" -> "partita_loss".
std::string prometheus_name(std::string_view name);

// By the path's ending: .csv, .jsonl or .json, .prom; a folder or a path ending in "/" is TensorBoard's.
absl::StatusOr<std::unique_ptr<MetricsSink>> open_metrics_sink(const std::string& path, bool append = false);

// Hands each step to several sinks; the first error is returned after all were tried. A sink whose disk is full is told
// of on stderr and left: the steps to come are worth more than what is written of them.
class MetricsFanOut : public MetricsSink {
 public:
  void add(std::unique_ptr<MetricsSink> sink) { sinks_.push_back(std::move(sink)); }
  absl::Status write(const StepMetrics& metrics) override;
  absl::Status close() override;

 private:
  std::vector<std::unique_ptr<MetricsSink>> sinks_;
};

}  // namespace partita::runtime
