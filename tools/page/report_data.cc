#include "tools/page/report_data.h"

#include <algorithm>
#include <cmath>

#include "nlohmann/json.hpp"
#include "partitioner/planner/report/explain.h"
#include "partitioner/planner/report/plan_file.h"
#include "partitioner/planner/report/step_timeline.h"
#include "tools/page/report_traffic.h"

namespace partita {
namespace {

using Json = nlohmann::json;

constexpr int64_t kShownPasses = 6000;  // about; a page of some 100 KB
constexpr size_t kShownStages = 64;
constexpr double kTicks = 1e6;  // of a step

// Of the start of a step: enough to see the rhythm. A multiple of the stages, as interleaved schedules need.
int64_t shown_micro_batches(const Simulation& s) {
  const int64_t stages = static_cast<int64_t>(s.chunks.size()), chunks = static_cast<int64_t>(s.chunks[0].size());
  const int64_t kinds = s.schedule == PipelineSchedule::kZeroBubble ? 3 : 2;
  const int64_t passes = kinds * chunks * std::min<int64_t>(stages, kShownStages);
  return std::min(s.micro_batches, std::max(kShownPasses / passes, 2 * stages) / stages * stages * s.overlapped);
}

Json timeline_json(const PlannedStep& step) {
  PlannedStep start = step;
  start.simulation.micro_batches = shown_micro_batches(step.simulation);
  const StepTimeline t = step_timeline(start);
  const double tick = t.seconds > 0 ? t.seconds / kTicks : 1;
  auto ticks = [&](double seconds) { return std::llround(seconds / tick); };
  const size_t stages = std::min(kShownStages, step.stages.size()), kinds = 3;
  std::vector<Json> passes(stages, Json::array());
  for (const Event& e : t.passes.events) {
    if (e.stage >= static_cast<int>(stages)) continue;
    Json& list = passes[static_cast<size_t>(e.stage)];
    for (int64_t n : {static_cast<int64_t>(e.kind) + static_cast<int64_t>(kinds) * e.chunk, e.micro_batch,
                      static_cast<int64_t>(ticks(e.start)), static_cast<int64_t>(ticks(e.end) - ticks(e.start))})
      list.push_back(n);
  }
  Json after = Json::array(), held = Json::array();
  for (size_t s = 0; s < stages; ++s) {
    Json& list = after.emplace_back(Json::array());
    for (const Slice& slice : t.slices[s]) {
      // What has begun beside the last passes is drawn from their end on.
      const double from = std::max(slice.start, t.passes.seconds);
      if (slice.pass >= 0 || slice.end <= from) continue;
      list.push_back(slice.part), list.push_back(ticks(from)), list.push_back(ticks(slice.end) - ticks(from));
    }
    const double each =
        step.stages[s].activations / static_cast<double>(std::max<int64_t>(1, t.passes.most_in_flight[s]));
    Json at = Json::array();
    for (auto [seconds, bytes] : kept_activations(start, t.passes, s))
      at.push_back(ticks(seconds)), at.push_back(each > 0 ? std::llround(bytes / each) : 0);
    held.push_back({{"each", each}, {"at", std::move(at)}});
  }
  return {{"seconds", t.seconds},
          {"tick", tick},
          {"micro_batches", start.simulation.micro_batches},
          {"planned", step.simulation.micro_batches},
          {"chunks", step.simulation.chunks[0].size()},
          {"parts", kTimeKindNames},
          {"events", passes},
          {"after", after},
          {"held", held}};
}

}  // namespace

Json report_data(const Plan& plan, const PlannedStep& step) {
  return {{"plan", plan_json(plan)},
          {"explanation", explanation(plan)},
          {"notes", departures(plan)},
          {"timeline", timeline_json(step)},
          {"traffic", traffic_json(plan, step)}};
}

Json what_if_json(const std::vector<WhatIf>& changes) {
  Json rows = Json::array();
  for (const WhatIf& w : changes) {
    Json row = {{"change", w.change}, {"note", w.note}};
    if (w.candidate) {
      row["step_seconds"] = w.candidate->prediction.step_seconds;
      row["layout"] = describe(w.candidate->layout);
    }
    rows.push_back(std::move(row));
  }
  return rows;
}

}  // namespace partita
