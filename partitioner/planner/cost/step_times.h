// What a step's time goes to, kind by kind, so that views can show the time of each stream and not only its sum.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <string_view>
#include <vector>

namespace partita {

// In the order in which the kinds of one pass, or of what follows the last one, come after each other. The cost model
// knows the sum of each over the layers of a pass; layers take turns within it.
enum class TimeKind : uint8_t {
  kRelayout,    // samples gathered that came from a stage with other ranks
  kHost,        // launches and what else the host does
  kStash,       // a copy of the weights (pipedream)
  kGathers,     // of sharded parameters, and their gradients scattered: what compute does not hide
  kCompute,     // of the pass itself
  kRecompute,   // of values that backward needs again
  kSlowed,      // by what communicates beside
  kTensor,      // partial sums
  kContext,     // exchanges of attention
  kExpert,      // tokens to experts and back
  kStatistics,  // sums over the batch
  kReduce,      // of gradients: what backward does not hide
  kToHost,      // gradients, where the host updates; activations that wait there
  kOptimizer,   // the update itself
  kFromHost,    // updated parameters; activations
  kUpdated,     // gathered for all that share them
  kTied,        // parameters that several stages read, sent to them, and their gradients sent back
  kSend,        // to a stage beside: what is waited for
  kStragglers,  // waited for
};
inline constexpr size_t kTimeKinds = static_cast<size_t>(TimeKind::kStragglers) + 1;
inline constexpr std::array<std::string_view, kTimeKinds> kTimeKindNames = {
    "relayout",   "host",   "stash",   "gathers",   "compute",   "recompute", "slowed", "tensor", "context",   "expert",
    "statistics", "reduce", "to_host", "optimizer", "from_host", "updated",   "tied",   "send",   "stragglers"};

// Seconds.
struct PassTimes {
  std::array<double, kTimeKinds> seconds{};
  // Of kGathers and kReduce, what runs beside the compute after them (before them: kReduce) and is not in `seconds`.
  double hidden_gathers = 0, hidden_reduce = 0;
  // Of kTensor, kContext, kExpert and kStatistics, what runs beside the compute of other micro-batches.
  double hidden_sums = 0;
  // Of kToHost and kFromHost of activations, what runs beside the compute before them.
  double hidden_to_host = 0, hidden_from_host = 0;

  double& operator[](TimeKind p) { return seconds[static_cast<size_t>(p)]; }
  double operator[](TimeKind p) const { return seconds[static_cast<size_t>(p)]; }
  double total() const { return std::accumulate(seconds.begin(), seconds.end(), 0.0); }
  PassTimes scaled(double times) const {
    PassTimes out = *this;
    for (double& s : out.seconds) s *= times;
    out.hidden_gathers *= times, out.hidden_reduce *= times, out.hidden_sums *= times;
    out.hidden_to_host *= times, out.hidden_from_host *= times;
    return out;
  }
  void operator+=(const PassTimes& other) {
    for (size_t k = 0; k < kTimeKinds; ++k) seconds[k] += other.seconds[k];
    hidden_gathers += other.hidden_gathers, hidden_reduce += other.hidden_reduce;
    hidden_sums += other.hidden_sums;
    hidden_to_host += other.hidden_to_host, hidden_from_host += other.hidden_from_host;
  }
};

// Of one chunk of a stage, for one micro-batch. `weight` is empty where backward does it too.
struct ChunkTimes {
  PassTimes forward, backward, weight;
};

// Of a step: passes of each stage's chunks, and after the last pass what each stage does once.
struct StepTimes {
  std::vector<std::vector<ChunkTimes>> chunks;  // [stage][chunk]
  std::vector<PassTimes> updates;               // [stage]; empty where each pass updates
  PassTimes after;                              // of all stages, when the last update has ended
};

}  // namespace partita
