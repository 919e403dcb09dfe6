#include "partitioner/planner/failures/failing_run.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <optional>
#include <queue>
#include <utility>

#include "base/math/philox.h"

namespace partita {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();
constexpr int kMostInVain = 1000;

// Times until events that come at a steady rate.
class Chance {
 public:
  explicit Chance(uint64_t seed) : seed_(seed) {}
  double next(double rate) {
    if (rate <= 0) return kNever;
    const auto words = philox(drawn_++, 0, seed_);
    const double share = (static_cast<double>(words[0]) + static_cast<double>(words[1]) * 0x1p32 + 0.5) * 0x1p-64;
    return -std::log(share) / rate;
  }

 private:
  uint64_t seed_, drawn_ = 0;
};

class Player {
 public:
  Player(const FailingRun& run, double interval, uint64_t seed)
      : run_(run), interval_(std::max(1.0, interval)), chance_(seed), up_(run.sizes[0].nodes + run.spare_nodes) {}

  PlayedRun play() {
    bool first = true;
    while (lasting_ < run_.steps && in_vain_ < kMostInVain) {
      const FailingRun::Size* size = largest();
      if (!size) {
        const double back = repairs_.top();
        out_.times.waiting += back - now_, now_ = back;
        continue;
      }
      failure_ = now_ + chance_.next(run_.node_failures() * static_cast<double>(size->nodes));
      const double ready = now_ + (first ? 0 : run_.rates.restart + run_.checkpoint_read);
      first = false;
      if (failure_ < ready) {
        out_.times.down += failure_ - now_, now_ = failure_;
        fail();
        continue;
      }
      out_.times.down += ready - now_, now_ = ready;
      train(*size);
    }
    if (lasting_ < run_.steps) out_.times.lost = kNever;
    return out_;
  }

 private:
  // The largest plan that the nodes suffice for; null: none.
  const FailingRun::Size* largest() {
    while (!repairs_.empty() && repairs_.top() <= now_) repairs_.pop(), ++up_;
    for (const FailingRun::Size& s : run_.sizes) {
      if (s.nodes <= up_) return &s;
    }
    return nullptr;
  }

  double next_back() const { return repairs_.empty() ? kNever : repairs_.top(); }

  void lose_node() {
    --up_;
    repairs_.push(now_ + run_.rates.repair);
  }

  void fail() {
    ++out_.failures, ++in_vain_;
    out_.times.down += run_.rates.detect, now_ += run_.rates.detect;
    lose_node();
  }

  // The steps up to a checkpoint last once it is complete.
  void keep(double steps, const RunTimes& times) {
    for (const auto& [name, time] : kRunTimes) out_.times.*time += times.*time;
    lasting_ = steps, in_vain_ = 0;
  }

  // From the last complete checkpoint until a failure, until nodes for a larger plan are back or a straggler is found
  // at a checkpoint, or until the run's end.
  void train(const FailingRun::Size& size) {
    const double whole = run_.sizes[0].step_seconds, nodes = static_cast<double>(size.nodes);
    const double slow_rate = run_.rates.straggler_mtbf > 0 ? nodes / run_.rates.straggler_mtbf : 0;
    double slow_from = now_ + chance_.next(slow_rate), done = lasting_;
    struct Written {
      double complete, steps;
      RunTimes times;
    };
    std::optional<Written> writing;  // the next checkpoint waits for it
    auto settle = [&](double time) {
      if (writing && writing->complete <= time) keep(writing->steps, writing->times), writing.reset();
    };
    while (true) {
      const bool slow = slow_from <= now_;
      // Intervals in which nothing happens, but for the last of them, in one go.
      const double each = interval_ * size.step_seconds + run_.checkpoint_wait;
      const double until = std::min({failure_, slow_from, &size != run_.sizes.data() ? next_back() : kNever});
      const double quiet = std::floor(std::min((until - now_) / each, (run_.steps - done) / interval_)) - 2;
      if (!slow && quiet > 0 && run_.checkpoint_write < each - run_.checkpoint_wait) {
        settle(kNever);
        done += quiet * interval_, now_ += quiet * each;
        keep(done, {.training = quiet * interval_ * whole,
                    .checkpoints = quiet * run_.checkpoint_wait,
                    .smaller = quiet * interval_ * (size.step_seconds - whole)});
      }
      const double count = std::min(interval_, run_.steps - done);
      const double step = size.step_seconds * (slow ? run_.rates.straggler_slowdown : 1),
                   computed = now_ + count * step,
                   end = std::max(computed, writing ? writing->complete : 0) + run_.checkpoint_wait;
      if (failure_ < end) {
        settle(failure_);
        double lost = failure_ - now_;
        if (writing) lost += writing->times.total();
        out_.times.lost += lost, now_ = failure_;
        return fail();
      }
      settle(end);
      done += count;
      writing = {end + run_.checkpoint_write,
                 done,
                 {.training = count * whole,
                  .checkpoints = end - computed,
                  .smaller = count * (size.step_seconds - whole),
                  .slowed = count * (step - size.step_seconds)}};
      now_ = end;
      const bool found = slow && now_ >= slow_from + run_.rates.straggler_noticed;
      if (done < run_.steps && !found && largest() == &size) continue;
      // It leaves with the checkpoint complete. (A failure while it is written is as likely as it is short.)
      if (done < run_.steps) out_.times.checkpoints += run_.checkpoint_write, now_ += run_.checkpoint_write;
      settle(kNever);
      if (found) ++out_.stragglers, lose_node();
      return;
    }
  }

  const FailingRun& run_;
  const double interval_;
  Chance chance_;
  PlayedRun out_;
  int64_t up_;  // nodes that work
  std::priority_queue<double, std::vector<double>, std::greater<>> repairs_;
  double now_ = 0, failure_ = kNever;
  double lasting_ = 0;  // steps in a complete checkpoint
  int in_vain_ = 0;     // failures since the last one
};

}  // namespace

double FailingRun::node_failures() const {
  auto rate = [](double mtbf) { return mtbf > 0 ? 1 / mtbf : 0; };
  return rate(rates.node_mtbf) + devices_per_node * rate(rates.device_mtbf);
}

PlayedRun play(const FailingRun& run, double interval, uint64_t seed) { return Player(run, interval, seed).play(); }

ExpectedRun expected(const FailingRun& run, double interval, int replays, uint64_t seed) {
  ExpectedRun out;
  out.interval = interval;
  std::vector<double> seconds;
  const double share = 1.0 / replays;
  for (int k = 0; k < replays; ++k) {
    const PlayedRun one = play(run, interval, seed + static_cast<uint64_t>(k));
    for (const auto& [name, time] : kRunTimes) out.times.*time += share * (one.times.*time);
    out.failures += share * one.failures, out.stragglers += share * one.stragglers;
    seconds.push_back(one.times.total());
  }
  std::sort(seconds.begin(), seconds.end());
  auto at = [&](double quantile) { return seconds[static_cast<size_t>(quantile * (replays - 1) + 0.5)]; };
  out.low = at(0.05), out.high = at(0.95);
  return out;
}

double best_interval(const FailingRun& run, int replays, uint64_t seed) {
  const double step = run.sizes[0].step_seconds, rate = run.node_failures() * static_cast<double>(run.sizes[0].nodes);
  if (rate <= 0) return run.steps;
  // Where nothing is waited for, one after the other is best: as often as they are complete.
  const double least = std::max(1.0, std::ceil(run.checkpoint_write / step));
  const double middle = std::max(daly_interval(run.checkpoint_wait, 1 / rate) / step, least);
  std::vector<std::pair<double, double>> tried;  // interval, seconds
  double shortest = kNever;
  for (int k = -8; k <= 16; ++k) {  // by steps of 2^(1/3)
    const double interval = std::min(run.steps, std::max(1.0, std::round(middle * std::pow(2, k / 3.0))));
    if (!tried.empty() && interval == tried.back().first) continue;
    tried.emplace_back(interval, expected(run, interval, replays, seed).times.total());
    shortest = std::min(shortest, tried.back().second);
  }
  if (std::isinf(shortest)) return std::min(run.steps, middle);
  constexpr double kAsGood = 1.001;
  return std::find_if(tried.rbegin(), tried.rend(), [&](const auto& t) { return t.second <= kAsGood * shortest; })
      ->first;
}

double young_interval(double wait, double mtbf) { return std::sqrt(2 * wait * mtbf); }

double daly_interval(double wait, double mtbf) {
  if (wait >= 2 * mtbf) return mtbf;
  const double x = std::sqrt(wait / (2 * mtbf));
  return young_interval(wait, mtbf) * (1 + x / 3 + x * x / 9) - wait;
}

double daly_time(double work, double interval, double wait, double restart, double mtbf) {
  return mtbf * std::exp(restart / mtbf) * std::expm1((interval + wait) / mtbf) * work / interval;
}

namespace {

// Who writes a checkpoint: of ranks that hold the same, the lowest.
class Writers {
 public:
  explicit Writers(const PinRecipe& layout) {
    auto axis = [&](const char* name) { return layout.axis(name).value_or(1); };
    inner_ = axis("tensor"), context_ = axis("context"), samples_ = axis("data") * axis("expert");
    sharded_ = layout.zero.value_or(0) >= 1;
    if (!sharded_) {
      copies_ = axis("data") * context_, holders_ = axis("expert");
    } else {
      const int64_t group = layout.zero_group.value_or(0);
      copies_ = group > 0 ? std::max<int64_t>(1, samples_ / group) : 1, holders_ = samples_ / copies_;
    }
  }

  // How many ranks hold the same.
  int64_t copies() const { return copies_; }
  // The most that a node of so many devices has, of `nodes` whose first rank is `first`.
  int64_t on_a_node(int64_t first, int64_t nodes, int64_t devices) const {
    int64_t most = 0;
    for (int64_t node = 0; node < nodes; ++node, first += devices) {
      int64_t here = 0;
      for (int64_t rank = first; rank < first + devices; ++rank) here += writes(rank);
      most = std::max(most, here);
    }
    return most;
  }

 private:
  bool writes(int64_t rank) const {
    const int64_t position = rank / inner_ % context_, sample = rank / inner_ / context_ % samples_;
    return sample < holders_ && (sharded_ || position == 0);
  }

  int64_t context_ = 1, samples_ = 1, inner_ = 1, copies_ = 1;
  int64_t holders_ = 1;  // ranks along the samples' axes that hold one copy
  bool sharded_ = false;
};

}  // namespace

FailingRun failing_run(const Cluster& cluster, double step_seconds, double steps, double parameters,
                       const PinRecipe& layout) {
  constexpr double kStateBytes = 12;
  const Writers writers(layout);
  const double all = static_cast<double>(cluster.devices()) / static_cast<double>(writers.copies()),
               rank_bytes = kStateBytes * parameters / std::max(1.0, all);
  FailingRun out;
  int64_t nodes = 0, rank = 0;
  double device_failures = 0, node_failures = 0, devices = 0;
  out.rates = cluster.groups[0].device.failures;
  for (const DeviceGroup& g : cluster.groups) {
    const FailureRates& r = g.device.failures;
    const double n = static_cast<double>(g.nodes), d = static_cast<double>(g.devices());
    nodes += g.nodes, out.spare_nodes += g.spare_nodes, devices += d;
    out.spares_per_hour += g.price_per_hour * static_cast<double>(g.spare_nodes * g.devices_per_node);
    if (r.device_mtbf > 0) device_failures += d / r.device_mtbf;
    if (r.node_mtbf > 0) node_failures += n / r.node_mtbf;
    const double node_bytes = rank_bytes * static_cast<double>(writers.on_a_node(rank, g.nodes, g.devices_per_node));
    rank += g.devices();
    if (r.checkpoint_bandwidth > 0)
      out.checkpoint_write = std::max(out.checkpoint_write, node_bytes / r.checkpoint_bandwidth);
    if (g.device.host_bandwidth > 0)
      out.checkpoint_wait = std::max(out.checkpoint_wait, rank_bytes / g.device.host_bandwidth);
  }
  out.checkpoint_read = out.checkpoint_write;
  out.sizes = {{nodes, step_seconds}};
  out.steps = steps;
  out.devices_per_node = devices / static_cast<double>(nodes);
  out.rates.device_mtbf = device_failures > 0 ? devices / device_failures : 0;
  out.rates.node_mtbf = node_failures > 0 ? static_cast<double>(nodes) / node_failures : 0;
  return out;
}

}  // namespace partita
