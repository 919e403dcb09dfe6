// A training run of days played with failures, stragglers, checkpoints, restarts and spare nodes.
//
//   4 nodes, 1 spare   ─steps─C─steps─C─steps─x        a node fails: the steps since the last complete checkpoint are
//   lost
//                                          ─detect─restart─steps─C─ …   on the spare
//   no spare left      goes on with a plan for fewer nodes where there is one, and grows again; else waits for a repair
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

#include "ir/recipe/recipe.h"
#include "partitioner/planner/cluster/cluster.h"

namespace partita {

// Times are in seconds.
struct FailingRun {
  // A plan that the run can go on with.
  struct Size {
    int64_t nodes = 1;
    double step_seconds = 0;
  };
  std::vector<Size> sizes;  // most nodes first: the plan, and those for fewer nodes
  int64_t spare_nodes = 0;
  double spares_per_hour = 0;   // what they cost beside the nodes at work
  double steps = 0;             // that the run is to make; kMostSteps at most
  FailureRates rates;           // of one node and what lies in it
  double devices_per_node = 1;  // that can fail, on average
  double checkpoint_wait = 0;   // that training waits for each: the states are copied
  double checkpoint_write = 0;  // until it is complete after that, beside training
  double checkpoint_read = 0;   // of a start from one

  double node_failures() const;  // a second, of one node and its devices
  double undisturbed() const { return steps * sizes[0].step_seconds; }
};

// More than any run has; playing one takes time by its failures.
inline constexpr double kMostSteps = 1e9;

// What a run's time goes to.
struct RunTimes {
  double training = 0;     // steps that lasted, at the speed of the whole plan
  double checkpoints = 0;  // waited for
  double lost = 0;         // computed and lost
  double down = 0;         // from a failure until all ranks run again
  double waiting = 0;      // for a repair: too few nodes for any plan
  double smaller = 0;      // more than the whole plan would have taken
  double slowed = 0;       // by stragglers
  double total() const { return training + checkpoints + lost + down + waiting + smaller + slowed; }
};
inline constexpr std::array<std::pair<std::string_view, double RunTimes::*>, 7> kRunTimes = {
    {{"training", &RunTimes::training},
     {"checkpoints", &RunTimes::checkpoints},
     {"lost steps", &RunTimes::lost},
     {"detecting, restarting", &RunTimes::down},
     {"waiting for nodes", &RunTimes::waiting},
     {"fewer nodes", &RunTimes::smaller},
     {"stragglers", &RunTimes::slowed}}};

struct PlayedRun {
  RunTimes times;
  double failures = 0, stragglers = 0;
};

// One run, with a checkpoint each `interval` steps, that begins on all nodes. The same for the same seed. Rates must
// leave it time: one that makes no way for 1,000 failures in a row ends there, with infinite `times.lost`.
PlayedRun play(const FailingRun& run, double interval, uint64_t seed);

// Many of them.
struct ExpectedRun {
  double interval = 0;                  // steps between checkpoints
  RunTimes times;                       // mean
  double failures = 0, stragglers = 0;  // mean
  double low = 0, high = 0;             // seconds: 9 of 10 runs take between
  double goodput(const FailingRun& run) const { return run.undisturbed() / times.total(); }
};
ExpectedRun expected(const FailingRun& run, double interval, int replays, uint64_t seed);

// The most steps between checkpoints with which the run is as short as it can be, to 0.1 %, found by playing it; Daly's
// estimate is where it looks.
double best_interval(const FailingRun& run, int replays, uint64_t seed);

// Seconds of work between checkpoints that each take `wait`, where failures come every `mtbf` seconds:
// Young 1974, sqrt(2 wait mtbf); Daly 2006, its higher-order form.
double young_interval(double wait, double mtbf);
double daly_interval(double wait, double mtbf);
// Daly's expected time of `work` seconds with a checkpoint each `interval` seconds of it, `restart` after each failure.
double daly_time(double work, double interval, double wait, double restart, double mtbf);

// A run of `steps` steps on a cluster: its groups' nodes taken for alike, each with the mean of their rates. A
// checkpoint has 12 bytes for each of the model's parameters (f32, and Adam's moments). The ranks of one copy of the
// states write it: of all samples' ranks under ZeRO, else of one replica.
FailingRun failing_run(const Cluster& cluster, double step_seconds, double steps, double parameters,
                       const PinRecipe& layout);

}  // namespace partita
