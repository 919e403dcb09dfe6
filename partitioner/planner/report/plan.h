// plan.json as plain data (tools/schema/plan.json): the chosen layout as pins, what is predicted of it, and what lost.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "ir/recipe/recipe.h"
#include "partitioner/planner/cost/memory/memory_model.h"
#include "partitioner/planner/cost/prediction.h"
#include "partitioner/planner/cost/simulate.h"
#include "partitioner/planner/cost/step_times.h"
#include "partitioner/planner/cost/traffic.h"

namespace partita {

// Seconds, bytes and FLOPs are doubles where they are estimates. What is optional, older plans lack.
struct Plan {
  static constexpr int kVersion = 1;

  // Where a plan comes from, so that explain can plan again.
  struct Inputs {
    std::string model, train, cluster;  // paths as given; cluster: its text
    std::string cluster_path;
    std::string profiles;  // as given beside them; empty: none
    std::optional<Precision> precision;
    std::vector<std::string> like, pins, sets;
    std::string refined;  // the trace that its profiles were corrected by, where nobody wrote them down
  };

  // Consecutive units of the model that a stage has.
  struct Chunk {
    int64_t first_unit = 0, units = 0;
    StageTimes times;
    std::optional<ChunkTimes> by_kind;  // what those times are made of
  };
  struct Stage {
    int64_t first_rank = 0, ranks = 0;  // ranks 0: not known (older plans)
    std::string device;
    std::vector<Chunk> chunks;
    MemoryUse memory;                              // of one rank
    double capacity = 0;                           // bytes of the device
    std::optional<PassTimes> update;               // after the last pass, once a step
    std::optional<std::vector<Transfer>> traffic;  // what each rank's groups of ranks exchange in a step
    std::vector<RecomputedBlocks> recompute;       // by mode; empty: nothing is
  };
  // Nodes of one kind; ranks are numbered through them.
  struct Nodes {
    int64_t nodes = 1, devices_per_node = 1;
    std::string device;
  };
  // A distinct piece of the model.
  struct Unit {
    std::string name;
    int64_t count = 0;
    double forward_flops = 0, backward_flops = 0;  // of one sample
    double parameters = 0, saved_elements = 0;
    std::string tensor_split;     // how the tensor axis splits it, in words
    double grouped_matrices = 0;  // that rows choose from; 0: none
  };
  struct Predicted {
    double step_seconds = 0;
    bool fits = false;
    std::vector<int64_t> memory_bytes, program_bytes;  // by stage, of one rank; program_bytes: where it was allocated
    int64_t missing_bytes = 0;
    Breakdown breakdown;
    double bubble_share = 0, tokens_per_second = 0, model_flops = 0, mfu = 0, price_per_hour = 0;
    std::string gradient_collective;
    std::vector<LengthTime> lengths;  // where samples have several, of which the times are means
  };
  struct Search {
    int64_t considered = 0, bounded = 0, unfit = 0, allocated = 0;
    double gap = 0;
  };
  // A layout beside the plan's.
  struct Other {
    std::string layout;
    PinRecipe pin;
    double step_seconds = 0;
    bool fits = true;
    double memory_bytes = 0;  // of the stage with least room
    Breakdown breakdown;
    std::string reason;  // why it is not the plan
  };
  // A well-known layout that was asked for.
  struct Compared {
    std::string like, error;
    std::optional<Other> found;  // where there is no error
  };

  Inputs inputs;
  int64_t devices = 1;
  std::string hardware, links;
  int64_t global_batch = 1;
  std::string layout;  // in words
  PinRecipe pin;       // every choice of it
  std::optional<Compression> compress;
  std::optional<BatchNormGroup> batch_statistics;
  int64_t micro_batches = 1;
  double send_seconds = 0, send_waited_seconds = 0;  // of a message to a stage beside: after its pass, and within it
  std::vector<Stage> stages;                         // one at least, each with a chunk at least
  std::vector<Unit> units;
  Predicted predicted;
  Search search;
  std::vector<Other> candidates;  // the best of other families
  std::vector<Compared> compared;
  // What simulate replays beside the times of chunks.
  std::optional<double> boundary_bytes;  // of one micro-batch, from all ranks of a stage to the next
  std::vector<PlanTraffic::Shared> shared;
  std::optional<PassTimes> after_update;
  std::optional<std::vector<Nodes>> nodes;

  // Bytes that the program of each stage may take: a device's memory without the reserve. None where the plan was
  // written though it does not fit.
  std::vector<double> room() const;
  // The stage whose devices have least memory left, or lack most.
  size_t fullest_stage() const;
};

}  // namespace partita
