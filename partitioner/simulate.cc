// Stages are visited round after round; in each round a stage runs as many operations of its order as are ready. An
// operation is ready when the one it needs has ended: forward (c, m) of stage i needs forward (c, m) of stage i - 1 (of
// the last stage and chunk c - 1 for stage 0), backward the mirror of it.
#include "partitioner/simulate.h"

#include <algorithm>

namespace partita {
namespace {

// Micro-batch and chunk of the k-th forward (or backward) of an interleaved stage: groups of `stages` micro-batches run
// through chunk 0, then chunk 1, …
Slot interleaved_slot(StepKind kind, int64_t k, int64_t stages, int64_t chunks) {
  int64_t group = k / (stages * chunks), within = k % (stages * chunks);
  int64_t chunk = within / stages;
  if (kind == StepKind::kBackward) chunk = chunks - 1 - chunk;
  return {kind, static_cast<int>(chunk), group * stages + within % stages};
}

}  // namespace

std::vector<Slot> stage_order(PipelineSchedule schedule, int64_t stages, int64_t stage, int64_t chunks, int64_t m) {
  std::vector<Slot> order;
  int64_t total = m * chunks, warm = total;
  if (schedule == PipelineSchedule::k1f1b || schedule == PipelineSchedule::kZeroBubble) warm = stages - stage - 1;
  if (schedule == PipelineSchedule::kInterleaved)
    warm = chunks == 1 ? stages - stage - 1 : (stages - stage - 1) * 2 + (chunks - 1) * stages;
  warm = std::min(warm, total);
  auto slot = [&](StepKind kind, int64_t k) {
    if (chunks > 1 && m % stages == 0) return interleaved_slot(kind, k, stages, chunks);
    int64_t chunk = k / m;
    if (kind == StepKind::kBackward) chunk = chunks - 1 - chunk;
    return Slot{kind, static_cast<int>(chunk), k % m};
  };
  order.reserve(static_cast<size_t>(2 * total));
  for (int64_t k = 0; k < warm; ++k) order.push_back(slot(StepKind::kForward, k));
  for (int64_t k = warm; k < total; ++k) {
    order.push_back(slot(StepKind::kForward, k));
    order.push_back(slot(StepKind::kBackward, k - warm));
  }
  for (int64_t k = total - warm; k < total; ++k) order.push_back(slot(StepKind::kBackward, k));
  return order;
}

Timeline simulate(const Simulation& s, bool keep_events) {
  int64_t stages = static_cast<int64_t>(s.chunks.size()), chunks = static_cast<int64_t>(s.chunks[0].size()),
          m = s.micro_batches;
  bool split_weights = s.schedule == PipelineSchedule::kZeroBubble;
  Timeline out;
  out.busy.assign(static_cast<size_t>(stages), 0);
  out.most_in_flight.assign(static_cast<size_t>(stages), 0);
  std::vector<std::vector<Slot>> order;
  for (int64_t i = 0; i < stages; ++i) order.push_back(stage_order(s.schedule, stages, i, chunks, m));
  // End of each operation, -1 while it has not run.
  std::vector<double> ends(static_cast<size_t>(2 * stages * chunks * m), -1);
  auto end_of = [&](StepKind kind, int64_t stage, int64_t chunk, int64_t mb) -> double& {
    return ends[static_cast<size_t>((((kind == StepKind::kBackward) * stages + stage) * chunks + chunk) * m + mb)];
  };
  std::vector<size_t> next(static_cast<size_t>(stages), 0);
  std::vector<double> free_at(static_cast<size_t>(stages), 0);
  std::vector<int64_t> in_flight(static_cast<size_t>(stages), 0);
  std::vector<std::vector<Slot>> weights(static_cast<size_t>(stages));  // owed
  std::vector<size_t> paid(static_cast<size_t>(stages), 0);
  auto run = [&](size_t i, const Slot& x, double start, double seconds) {
    free_at[i] = start + seconds;
    out.busy[i] += seconds;
    if (keep_events) out.events.push_back({x.kind, static_cast<int>(i), x.chunk, x.micro_batch, start, free_at[i]});
  };
  auto pay_weight = [&](size_t i) {
    Slot x = weights[i][paid[i]++];
    x.kind = StepKind::kWeight;
    run(i, x, free_at[i], s.chunks[i][static_cast<size_t>(x.chunk)].weight);
  };
  // When the operation's input is there; -1: not known yet.
  auto ready = [&](int64_t i, const Slot& x) -> double {
    int64_t c = x.chunk;
    if (x.kind == StepKind::kForward) {
      if (i == 0 && c == 0) return 0;
      double e = i > 0 ? end_of(x.kind, i - 1, c, x.micro_batch) : end_of(x.kind, stages - 1, c - 1, x.micro_batch);
      return e < 0 ? -1 : e + (stages > 1 ? s.send : 0);
    }
    if (i == stages - 1 && c == chunks - 1) return end_of(StepKind::kForward, i, c, x.micro_batch);
    double e = i < stages - 1 ? end_of(x.kind, i + 1, c, x.micro_batch) : end_of(x.kind, 0, c + 1, x.micro_batch);
    return e < 0 ? -1 : e + (stages > 1 ? s.send : 0);
  };
  for (bool moved = true; moved;) {
    moved = false;
    for (size_t i = 0; i < order.size(); ++i) {
      while (next[i] < order[i].size()) {
        const Slot& x = order[i][next[i]];
        double at = ready(static_cast<int64_t>(i), x);
        if (at < 0) break;
        // A gap is filled with owed weight gradients that fit into it.
        while (split_weights && paid[i] < weights[i].size()) {
          double w = s.chunks[i][static_cast<size_t>(weights[i][paid[i]].chunk)].weight;
          if (free_at[i] + w > at + 1e-12) break;
          pay_weight(i);
        }
        const StageTimes& t = s.chunks[i][static_cast<size_t>(x.chunk)];
        run(i, x, std::max(at, free_at[i]), x.kind == StepKind::kForward ? t.forward : t.backward);
        end_of(x.kind, static_cast<int64_t>(i), x.chunk, x.micro_batch) = free_at[i];
        in_flight[i] += x.kind == StepKind::kForward ? 1 : -1;
        out.most_in_flight[i] = std::max(out.most_in_flight[i], in_flight[i]);
        if (split_weights && x.kind == StepKind::kBackward) weights[i].push_back(x);
        // As many weight gradients as forwards are in flight may wait: the memory of 1f1b.
        while (split_weights && weights[i].size() - paid[i] > static_cast<size_t>(stages)) pay_weight(i);
        ++next[i];
        moved = true;
      }
    }
  }
  for (size_t i = 0; i < order.size(); ++i) {
    while (split_weights && paid[i] < weights[i].size()) pay_weight(i);
    out.seconds = std::max(out.seconds, free_at[i]);
  }
  return out;
}

}  // namespace partita
