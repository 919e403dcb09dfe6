// Collectives are started where programs start them: gathers by the rule of prefetch_gathers.h, sums where compute
// waits for them, and scatters as their bucket is full, of which two are under way at a time.
#include "partitioner/planner/cost/communication_lane.h"

#include <algorithm>

namespace partita {
namespace {

class Lane {
 public:
  explicit Lane(const LanePass& pass) : pass_(pass) {}

  double run() {
    choose_starts();
    for (size_t u = 0; u < pass_.units.size(); ++u) {
      start_gathers(u);
      now_ = std::max(now_, gathered_[u]);
      compute(pass_.units[u]);
    }
    if (waiting_bytes_ > 0) scatter(waiting_bytes_);
    return std::max(now_, free_);
  }

 private:
  // Before which unit each gather is started.
  void choose_starts() {
    const std::vector<LaneUnit>& units = pass_.units;
    double largest = 0, waiting = 0;
    for (const LaneUnit& u : units) largest = std::max(largest, u.gathered_bytes);
    const double most = pass_.prefetched > 0 ? (static_cast<double>(pass_.prefetched) + 1. / 16) * largest : 0;
    size_t oldest = 0;  // that waits for its use together with this one
    for (size_t u = 0; u < units.size(); ++u) {
      waiting += units[u].gathered_bytes;
      while (waiting > most && oldest <= u) waiting -= units[oldest++].gathered_bytes;
      starts_.push_back(oldest > 0 ? oldest - 1 : 0);
    }
    gathered_.resize(units.size());
  }

  void start_gathers(size_t unit) {
    for (; next_gather_ < starts_.size() && starts_[next_gather_] <= unit; ++next_gather_)
      gathered_[next_gather_] = collective(pass_.units[next_gather_].gather);
  }

  // Started now; when it ends.
  double collective(double seconds) { return seconds > 0 ? free_ = std::max(free_, now_) + seconds : now_; }

  void scatter(double bytes) {
    if (scattered_.size() >= 2) now_ = std::max(now_, scattered_[scattered_.size() - 2]);
    scattered_.push_back(collective(bytes * pass_.scatter_rate));
  }

  void compute(const LaneUnit& u) {
    double done = 0;  // share of its compute
    auto until = [&](double share) { now_ += (share - done) * u.compute, done = share; };
    double taken = 0;  // of what it scatters
    auto buckets_until = [&](double share) {
      while (u.scattered_bytes > 0) {
        const double more = pass_.bucket_bytes - waiting_bytes_, at = (taken + more) / u.scattered_bytes;
        if (at > share) break;
        until(at), scatter(pass_.bucket_bytes);
        taken += more, waiting_bytes_ = 0;
      }
    };
    for (int64_t k = 1; k <= u.sums; ++k) {
      const double share = static_cast<double>(k) / static_cast<double>(u.sums + 1);
      buckets_until(share), until(share);
      now_ = collective(u.sum_seconds / static_cast<double>(u.sums));
    }
    buckets_until(1), until(1);
    waiting_bytes_ += u.scattered_bytes - taken;
  }

  const LanePass& pass_;
  std::vector<size_t> starts_;
  std::vector<double> gathered_, scattered_;  // when each has ended
  size_t next_gather_ = 0;
  double now_ = 0, free_ = 0;  // of compute; when the last collective ends
  double waiting_bytes_ = 0;   // of gradients whose bucket is not full
};

}  // namespace

double lane_seconds(const LanePass& pass) { return Lane(pass).run(); }

}  // namespace partita
