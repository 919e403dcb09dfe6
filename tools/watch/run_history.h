// What a run has told so far: a metrics file as it grows, or the numbers that a run serves.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace partita {

class RunHistory {
 public:
  // One line of a .jsonl file. Of a step that was there already (a resumed run takes it again) the later line counts.
  // InvalidArgument for what is no such line.
  absl::Status add_line(std::string_view line);
  // What a run answers at /metrics, in Prometheus' text form.
  absl::Status add_scrape(std::string_view text);

  struct Point {
    int64_t step = 0;
    double loss = 0;  // NaN where it is not finite
  };
  const std::vector<Point>& losses() const { return losses_; }               // by step, rising
  const std::map<std::string, double>& newest() const { return newest_; }    // the last step's, by name; finite ones
  const std::vector<double>& rank_seconds() const { return rank_seconds_; }  // as told last; else empty
  double evaluation_loss() const { return evaluation_loss_; }                // the last one; NaN before
  int64_t not_finite() const { return not_finite_; }                         // steps whose loss is not finite

 private:
  void add(std::map<std::string, double> values, bool finite);

  std::vector<Point> losses_;
  std::map<std::string, double> newest_;
  std::vector<double> rank_seconds_;
  double evaluation_loss_ = __builtin_nan("");
  int64_t not_finite_ = 0;
};

// Where a run's history comes from.
class RunSource {
 public:
  virtual ~RunSource() = default;
  // Takes in what is new. Unavailable where nothing is to be had now, and may be later.
  virtual absl::Status read(RunHistory& history) = 0;
  virtual const std::string& name() const = 0;
};

// `where`: a .jsonl file of `--metrics`, a folder (its newest such file), or http://HOST:PORT of `--listen-metrics`.
// NotFound, InvalidArgument.
absl::StatusOr<std::unique_ptr<RunSource>> open_run_source(const std::string& where);

}  // namespace partita
