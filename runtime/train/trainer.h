// The training loop of one rank, and of all ranks of one process.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "runtime/bind/bind_rank.h"
#include "runtime/checkpoint/checkpoint.h"
#include "runtime/communicate/collective.h"
#include "runtime/data/data_source.h"
#include "runtime/execute/executor.h"
#include "runtime/files/safetensors.h"
#include "runtime/launch/plugin.h"
#include "runtime/launch/rank_watch.h"
#include "runtime/launch/stop_signal.h"
#include "runtime/launch/timeouts.h"
#include "runtime/metrics/metrics.h"
#include "runtime/train/divergence.h"
#include "runtime/train/evaluator.h"
#include "runtime/train/step_programs.h"

namespace partita::runtime {

struct TrainOptions {
  int64_t steps = -1;  // -1: as many as the data have
  DataConfig data;
  std::shared_ptr<const SafetensorsFile> initial;  // the states whose InitialValue is "file"
  std::string save;  // not empty: parameters and running statistics after the last step, whole logical tensors under
                     // their own names
  bool save_optimizer = false;  // `save` has the optimizer's states and the step as well
  std::string save_gradients;   // not empty: the first step's outputs "grad/NAME", as NAME
  std::string profile;          // not empty: rank 0's Chrome trace goes here, others' beside it (trace_of_rank)
  bool profile_tables = true;   // and its tables to stderr
  bool tell = false;            // rank 0 says on stderr, before the first step, what the data are taken for
  std::string tune;             // not empty: file of tuned kernels, of programs for GPUs
  uint64_t seed = 0;            // of random first values
  std::map<std::string, std::string>
      recipe;  // keys that decide what a step does: a run that goes on under others says so
  StepFigures figures;
  std::vector<BatchPhase> ramp;     // where the global batch changes
  std::vector<LengthPart> lengths;  // of samples, where there are several
  EvaluateOptions evaluate;
  CheckpointOptions checkpoint;
  DivergenceOptions divergence;
  std::function<void(const Rollback&)> rolled_back;  // called on the first rank, for steps that were not finite
  // A run that goes on begins a pass over the data, if they are others than the checkpoint's, or used up.
  bool new_pass = false;
  std::vector<SkippedSamples> skipped;      // of the data, besides those that the checkpoint leaves out
  int64_t audit = 0;                        // steps from one audit to the next (runtime/audit/auditor.h); 0: none
  StepObserver* observer = nullptr;         // sees every rank's steps of training
  const std::atomic<bool>* stop = nullptr;  // set from outside: save a checkpoint and end; needs checkpoint.folder
  std::atomic<bool>* save_now = nullptr;    // set from outside, set back here: save one and go on; needs the same
  int device = 0;                           // of train_rank's; train_local takes one after the other
  PluginSource plugins = {};                // where a device's module comes from
  Timeouts timeouts = {};                   // of train_local's ranks
  std::string records;                      // not empty: folder of the flight records of train_local's ranks
  bool ends_process = false;                // where a rank of train_local does not come back after the run has failed
  RankWatch* watch = nullptr;               // of train_rank's; null: it has one of its own
  BindMode bind = BindMode::kNone;          // ranks to parts of their host's cores
  int threads = 0;                          // per rank; 0: its host's cores divided among its ranks

  void obey(StopSignal& signals) { stop = signals.stop(), save_now = signals.save(); }
};

// Trains with this rank's part of the program. Every rank calls it with the same options; a rank's `sink` (may be null)
// gets what that rank knows of each step: rank 0 all of it. An error on one rank ends the others with Unavailable.
// Errors: the data's, the files', ResourceExhausted (memory, disk), Unavailable (a peer is gone).
absl::Status train_rank(std::shared_ptr<const LoadedProgram> loaded, Communicator* communicator,
                        const TrainOptions& options, MetricsSink* sink);

// All ranks of the programs as threads of this process. The first rank that failed by itself gives the error; where
// ranks were lost to each other, stderr says who followed whom.
absl::Status train_local(const LoadedPrograms& loaded, const TrainOptions& options, MetricsSink* sink);

}  // namespace partita::runtime
