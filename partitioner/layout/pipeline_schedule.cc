#include "partitioner/layout/pipeline_schedule.h"

#include <algorithm>
#include <functional>
#include <map>
#include <queue>

#include "partitioner/layout/slot_classes.h"

namespace partita {
namespace {

// The k-th forward (or backward) of an interleaved stage: groups of `stages` micro-batches run through chunk 0, then
// chunk 1, …
StageStep interleaved(StageWork kind, int64_t k, int64_t stages, int64_t chunks) {
  int64_t group = k / (stages * chunks), within = k % (stages * chunks);
  int64_t chunk = within / stages;
  if (kind == StageWork::kBackward) chunk = chunks - 1 - chunk;
  return {kind, static_cast<int>(chunk), group * stages + within % stages};
}

// The lowest free slots side by side from `first` on, for groups of micro-batches, from a group's first forward in a
// chunk until its last operation there, for the chunks that are `in`. Returns how many it takes.
int64_t take_slots(std::vector<StageStep>& order, const std::vector<bool>& in, int64_t first, int64_t group) {
  std::map<std::pair<int, int64_t>, const StageStep*> last;
  for (const StageStep& x : order) last[{x.chunk, x.micro_batch / group}] = &x;
  std::map<std::pair<int, int64_t>, int64_t> taken;
  std::priority_queue<int64_t, std::vector<int64_t>, std::greater<>> free;
  int64_t groups = 0, count = 0;
  for (StageStep& x : order) {
    if (!in[static_cast<size_t>(x.chunk)]) continue;
    auto [at, fresh] = taken.try_emplace({x.chunk, x.micro_batch / group}, groups);
    if (fresh && free.empty()) {
      ++groups;
    } else if (fresh) {
      at->second = free.top();
      free.pop();
    }
    const int64_t slot = at->second * group + x.micro_batch % group;
    x.slot = first + slot;
    count = std::max(count, slot + 1);
    if (last.at({x.chunk, x.micro_batch / group}) != &x) continue;
    free.push(at->second);
    taken.erase(at);
  }
  return count;
}

// Of each group and chunk, the steps that take its slots and give them back.
std::vector<StageStep> first_and_last(const std::vector<StageStep>& order, int64_t group) {
  std::map<std::pair<int, int64_t>, std::pair<const StageStep*, const StageStep*>> ends;
  for (const StageStep& x : order) ends.try_emplace({x.chunk, x.micro_batch / group}, &x, &x).first->second.second = &x;
  std::vector<StageStep> out;
  for (const StageStep& x : order) {
    const auto& [first, last] = ends.at({x.chunk, x.micro_batch / group});
    if (&x == first || &x == last) out.push_back(x);
  }
  return out;
}

}  // namespace

std::vector<StageStep> stage_order(PipelineSchedule schedule, int64_t stages, int64_t stage, int64_t chunks,
                                   int64_t m) {
  bool apart = schedule == PipelineSchedule::kZeroBubble;
  int64_t total = m * chunks, ahead = stages - stage - 1, weights = 0;
  if (schedule == PipelineSchedule::kGpipe) ahead = total;
  if (schedule == PipelineSchedule::kInterleaved && chunks > 1) ahead = 2 * ahead + (chunks - 1) * stages;
  ahead = std::min(ahead, total);
  auto at = [&](StageWork kind, int64_t k) {
    return chunks > 1 ? interleaved(kind, k, stages, chunks) : StageStep{kind, 0, k};
  };
  std::vector<StageStep> order;
  order.reserve(static_cast<size_t>(3 * total));
  for (int64_t k = 0; k < ahead; ++k) order.push_back(at(StageWork::kForward, k));
  for (int64_t k = 0; k < total; ++k) {
    if (k + ahead < total) order.push_back(at(StageWork::kForward, k + ahead));
    order.push_back(at(StageWork::kBackward, k));
    // Stage s owes s gradients of weights: they fill its gap at the end, and as many micro-batches as stages are in
    // flight everywhere.
    if (apart && k >= stage) order.push_back(at(StageWork::kWeight, weights++));
  }
  while (apart && weights < total) order.push_back(at(StageWork::kWeight, weights++));
  take_slots(order, std::vector<bool>(static_cast<size_t>(chunks), true), 0, 1);
  return order;
}

std::vector<StageStep> take_turns(const std::vector<StageStep>& groups, int64_t group, int turns,
                                  int64_t micro_batches) {
  std::vector<StageStep> order;
  int chunks = 1;
  for (const StageStep& x : groups) {
    chunks = std::max(chunks, x.chunk + 1);
    const int64_t first = x.micro_batch * group, end = std::min(first + group, micro_batches);
    for (int turn = 0; turn < turns; ++turn) {
      for (int64_t m = first; m < end; ++m) order.push_back({x.kind, x.chunk, m, 0, turn});
    }
  }
  take_slots(order, std::vector<bool>(static_cast<size_t>(chunks), true), 0, group);
  return order;
}

int64_t slots_of(const std::vector<StageStep>& order) {
  int64_t most = 0;
  for (const StageStep& x : order) most = std::max(most, x.slot + 1);
  return most;
}

std::vector<SlotClass> divide_slots(std::vector<StageStep>& order, std::span<const int64_t> bytes, int64_t group) {
  const auto take = [&](std::vector<StageStep>& steps, std::span<const size_t> chunks, int64_t first) {
    std::vector<bool> in(bytes.size(), false);
    for (size_t c : chunks) in[c] = true;
    return take_slots(steps, in, first, group);
  };
  std::vector<StageStep> spans = first_and_last(order, group);
  const SlotClasses<int64_t> smallest =
      smallest_slots(bytes, [&](std::span<const size_t> chunks) { return take(spans, chunks, 0); });
  std::vector<SlotClass> classes(bytes.size());
  SlotClass of;
  size_t begin = 0;
  for (size_t end : smallest.ends) {
    const std::span<const size_t> chunks = std::span(smallest.chunks).subspan(begin, end - begin);
    const int64_t next = (of.first + of.count + group - 1) / group * group;
    of = {next, 0, bytes[chunks[0]], of.begin + (next - of.first) * of.bytes};
    of.count = take(order, chunks, of.first);
    for (size_t c : chunks) classes[c] = of;
    begin = end;
  }
  return classes;
}

}  // namespace partita
