// Collectives are started where programs start them: gathers by the rule of prefetch_gathers.h, sums where compute
// waits for them, and scatters as their bucket is full, of which two are under way at a time.
#include "partitioner/planner/cost/communication_lane.h"

#include <algorithm>

namespace partita {
namespace {

class Lane {
 public:
  explicit Lane(const LanePass& pass) : pass_(pass), turns_(static_cast<size_t>(pass.overlapped)) {}

  double run() {
    choose_starts();
    for (size_t u = 0; u < pass_.units.size(); ++u) {
      start_gathers(u);
      now_ = std::max(now_, gathered_[u]);
      compute(pass_.units[u]);
    }
    for (Turn& t : turns_) {
      if (t.waiting_bytes > 0) scatter(t, t.waiting_bytes);
    }
    return std::max(now_, free_);
  }

 private:
  // A micro-batch.
  struct Turn {
    double ready = 0;               // when what it waits for within a unit has ended
    double done = 0;                // share of the unit's compute
    double taken = 0;               // of the bytes that the unit scatters
    double waiting_bytes = 0;       // of gradients whose bucket is not full
    std::vector<double> scattered;  // when each has ended
  };

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

  // Each micro-batch gathers for itself.
  void start_gathers(size_t unit) {
    for (; next_gather_ < starts_.size() && starts_[next_gather_] <= unit; ++next_gather_)
      gathered_[next_gather_] = collective(pass_.units[next_gather_].gather * static_cast<double>(pass_.overlapped));
  }

  // Started now; when it ends.
  double collective(double seconds) { return seconds > 0 ? free_ = std::max(free_, now_) + seconds : now_; }

  void scatter(Turn& t, double bytes) {
    if (t.scattered.size() >= 2) now_ = std::max(now_, t.scattered[t.scattered.size() - 2]);
    t.scattered.push_back(collective(bytes * pass_.scatter_rate));
  }

  void compute(const LaneUnit& u) {
    for (int64_t k = 0; k <= u.sums; ++k) {
      for (Turn& t : turns_) {
        now_ = std::max(now_, t.ready);
        compute_until(u, static_cast<double>(k + 1) / static_cast<double>(u.sums + 1), t);
        if (k < u.sums) t.ready = collective(u.sum_seconds / static_cast<double>(u.sums));
      }
    }
    for (Turn& t : turns_) {
      t.waiting_bytes += u.scattered_bytes - t.taken;
      t.done = t.taken = 0;
    }
  }

  // Up to a share of the unit's compute; gradients leave as their bucket is full.
  void compute_until(const LaneUnit& u, double share, Turn& t) {
    auto until = [&](double at) { now_ += (at - t.done) * u.compute, t.done = at; };
    while (u.scattered_bytes > 0) {
      const double more = pass_.bucket_bytes - t.waiting_bytes, at = (t.taken + more) / u.scattered_bytes;
      if (at > share) break;
      until(at), scatter(t, pass_.bucket_bytes);
      t.taken += more, t.waiting_bytes = 0;
    }
    until(share);
  }

  const LanePass& pass_;
  std::vector<Turn> turns_;
  std::vector<size_t> starts_;
  std::vector<double> gathered_;  // when each has ended
  size_t next_gather_ = 0;
  double now_ = 0, free_ = 0;  // of compute; when the last collective ends
};

}  // namespace

double lane_seconds(const LanePass& pass) { return Lane(pass).run(); }

}  // namespace partita
