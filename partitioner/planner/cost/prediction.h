// What the cost model says of a layout.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "partitioner/planner/cost/memory/memory_model.h"
#include "partitioner/planner/cost/step_times.h"

namespace partita {

// Seconds of the step by what they go to, on the stage that binds.
struct Breakdown {
  double compute = 0, recompute = 0, tensor = 0, context = 0, expert = 0, gathers = 0;
  double bubble = 0, send = 0, tied = 0, gradients = 0, optimizer = 0, offload = 0, host = 0, stragglers = 0;
  double statistics = 0;  // sums over the batch
  double overlap = 0;     // compute that takes longer beside what travels
  void add(const PassTimes& parts, double times);
  // What units wait for within their passes.
  double within_passes() const { return tensor + context + expert + statistics; }
};
// In the order in which equal ones are told.
inline constexpr std::array<std::pair<std::string_view, double Breakdown::*>, 16> kBreakdownNames = {
    {{"compute", &Breakdown::compute},
     {"recompute", &Breakdown::recompute},
     {"tensor", &Breakdown::tensor},
     {"context", &Breakdown::context},
     {"expert", &Breakdown::expert},
     {"gathers", &Breakdown::gathers},
     {"bubble", &Breakdown::bubble},
     {"send", &Breakdown::send},
     {"tied", &Breakdown::tied},
     {"gradients", &Breakdown::gradients},
     {"statistics", &Breakdown::statistics},
     {"overlap", &Breakdown::overlap},
     {"optimizer", &Breakdown::optimizer},
     {"offload", &Breakdown::offload},
     {"host", &Breakdown::host},
     {"stragglers", &Breakdown::stragglers}}};

// Blocks of a stage that are computed again, or wait on the host, alike.
struct RecomputedBlocks {
  RecomputeMode mode = RecomputeMode::kNone;
  std::vector<int64_t> blocks;  // their numbers
  double bytes = 0;             // freed on a rank
  double seconds = 0;           // of compute, collectives and copies, added to a step
  double host_bytes = 0;        // of a rank that wait on its host, of all micro-batches in flight
};

// Of a step whose samples have one of several lengths.
struct LengthTime {
  int64_t length = 0;
  double step_seconds = 0;
};

// Where samples have several lengths, times are means over them, and memory is that of the length that needs most.
struct Prediction {
  double step_seconds = 0;
  std::vector<LengthTime> lengths;  // shortest first; empty: there is one
  bool fits = false;
  std::vector<MemoryUse> memory;  // of each stage
  std::vector<double> capacity;   // of each stage's device
  // Of each stage: bytes beside the reserve that the compiler's own program was allocated; empty: it was not.
  std::vector<double> program_bytes;
  int64_t worst_stage = 0;
  double missing_bytes = 0;  // on the worst stage; 0 where it fits
  Breakdown breakdown;
  double flops = 0;  // of the model in one step, without recompute
  double bubble_share = 0;
  std::string gradient_algorithm;  // of the sums of gradients: "ring", …

  // Bytes that a stage's device has beside the reserve.
  double room(size_t stage) const { return capacity[stage] - memory[stage].reserve; }
  // Bytes of the stage that has least room: of its program where it was allocated, else as they are counted.
  double most_memory() const {
    const size_t worst = static_cast<size_t>(worst_stage);
    return program_bytes.empty() ? memory[worst].total() : program_bytes[worst] + memory[worst].reserve;
  }
};

}  // namespace partita
