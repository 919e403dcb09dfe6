// Stages are visited round after round; in each round a stage runs as many operations of its order as are ready. An
// operation is ready when the one it needs has ended: forward (c, m) of stage i needs forward (c, m) of stage i - 1 (of
// the last stage and chunk c - 1 for stage 0), backward the mirror of it; gradients of weights need nothing that has
// not run before on their stage.
#include "partitioner/planner/cost/simulate.h"

#include <algorithm>

namespace partita {

double micro_batches_of_group(const Simulation& s) {
  const int64_t groups = (s.micro_batches + s.overlapped - 1) / s.overlapped;
  return groups > 0 ? static_cast<double>(s.micro_batches) / static_cast<double>(groups) : 1;
}

Simulation in_groups(Simulation s) {
  if (s.overlapped == 1) return s;
  const double each = micro_batches_of_group(s);
  for (std::vector<StageTimes>& stage : s.chunks) {
    for (StageTimes& c : stage) c.forward *= each, c.backward *= each, c.weight *= each;
  }
  s.micro_batches = (s.micro_batches + s.overlapped - 1) / s.overlapped, s.overlapped = 1;
  return s;
}

Timeline simulate(const Simulation& each, bool keep_events) {
  const Simulation s = in_groups(each);
  int64_t stages = static_cast<int64_t>(s.chunks.size()), chunks = static_cast<int64_t>(s.chunks[0].size()),
          m = s.micro_batches;
  StageWork last = s.schedule == PipelineSchedule::kZeroBubble ? StageWork::kWeight : StageWork::kBackward;
  Timeline out;
  out.busy.assign(static_cast<size_t>(stages), 0);
  out.most_in_flight.assign(static_cast<size_t>(stages), 0);
  std::vector<std::vector<StageStep>> order;
  for (int64_t i = 0; i < stages; ++i) order.push_back(stage_order(s.schedule, stages, i, chunks, m));
  // When the result of each operation is where it is used, -1 while it has not run.
  std::vector<double> arrivals(static_cast<size_t>(2 * stages * chunks * m), -1);
  auto arrival_of = [&](StageWork kind, int64_t stage, int64_t chunk, int64_t mb) -> double& {
    return arrivals[static_cast<size_t>((((kind == StageWork::kBackward) * stages + stage) * chunks + chunk) * m + mb)];
  };
  std::vector<size_t> next(static_cast<size_t>(stages), 0);
  std::vector<double> free_at(static_cast<size_t>(stages), 0);
  std::vector<int64_t> in_flight(static_cast<size_t>(stages), 0);
  auto run = [&](size_t i, const StageStep& x, double start, double seconds) {
    free_at[i] = start + seconds;
    out.busy[i] += seconds;
    if (keep_events) out.events.push_back({x.kind, static_cast<int>(i), x.chunk, x.micro_batch, start, free_at[i]});
  };
  // When the operation's input is there; -1: not known yet.
  auto ready = [&](int64_t i, const StageStep& x) -> double {
    int64_t c = x.chunk;
    if (x.kind == StageWork::kWeight) return 0;
    if (x.kind == StageWork::kForward) {
      if (i == 0 && c == 0) return 0;
      return i > 0 ? arrival_of(x.kind, i - 1, c, x.micro_batch) : arrival_of(x.kind, stages - 1, c - 1, x.micro_batch);
    }
    if (i == stages - 1 && c == chunks - 1) return arrival_of(StageWork::kForward, i, c, x.micro_batch);
    return i < stages - 1 ? arrival_of(x.kind, i + 1, c, x.micro_batch) : arrival_of(x.kind, 0, c + 1, x.micro_batch);
  };
  // Messages from a stage to the next and to the one before (the same of two stages) are under way one at a time.
  std::vector<double> link_free(static_cast<size_t>(2 * stages), 0);
  auto pass_on = [&](int64_t i, const StageStep& x, double end) {
    const bool forward = x.kind == StageWork::kForward, last_chunk = x.chunk == (forward ? chunks - 1 : 0);
    const int64_t edge = forward ? stages - 1 : 0;
    if (stages == 1 || (i == edge && last_chunk)) return end;
    const int64_t to = (i + (forward ? 1 : stages - 1)) % stages;
    double& free = link_free[static_cast<size_t>(2 * i + (to == (i + 1) % stages))];
    const double start = std::max(end - s.send_waited, free);
    free = start + s.send_waited + s.send;
    if (keep_events)
      out.sends.push_back({x.kind, static_cast<int>(i), static_cast<int>(to), x.chunk, x.micro_batch, start, free});
    return free;
  };
  for (bool moved = true; moved;) {
    moved = false;
    for (size_t i = 0; i < order.size(); ++i) {
      while (next[i] < order[i].size()) {
        const StageStep& x = order[i][next[i]];
        double at = ready(static_cast<int64_t>(i), x);
        if (at < 0) break;
        const StageTimes& t = s.chunks[i][static_cast<size_t>(x.chunk)];
        run(i, x, std::max(at, free_at[i]),
            x.kind == StageWork::kForward    ? t.forward
            : x.kind == StageWork::kBackward ? t.backward
                                             : t.weight);
        if (x.kind != StageWork::kWeight)
          arrival_of(x.kind, static_cast<int64_t>(i), x.chunk, x.micro_batch) =
              pass_on(static_cast<int64_t>(i), x, free_at[i]);
        in_flight[i] += x.kind == StageWork::kForward ? 1 : x.kind == last ? -1 : 0;
        out.most_in_flight[i] = std::max(out.most_in_flight[i], in_flight[i]);
        ++next[i];
        moved = true;
      }
    }
  }
  for (double end : free_at) out.seconds = std::max(out.seconds, end);
  return out;
}

}  // namespace partita
