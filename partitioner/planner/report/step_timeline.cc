#include "partitioner/planner/report/step_timeline.h"

#include <algorithm>
#include <array>

namespace partita {

std::string_view stream_name(Stream stream) {
  constexpr std::array<std::string_view, kStreams> kNames = {"compute",
                                                             "tensor collectives",
                                                             "context exchanges",
                                                             "expert exchanges",
                                                             "batch statistics",
                                                             "parameter gathers, gradient scatters",
                                                             "gradient sums, updated parameters",
                                                             "gathers and tied parameters between stages",
                                                             "update",
                                                             "host copies",
                                                             "host",
                                                             "waiting"};
  return kNames[static_cast<size_t>(stream)];
}

Stream stream_of(TimeKind part) {
  switch (part) {
    case TimeKind::kTensor:
      return Stream::kTensor;
    case TimeKind::kContext:
      return Stream::kContext;
    case TimeKind::kExpert:
      return Stream::kExpert;
    case TimeKind::kStatistics:
      return Stream::kStatistics;
    case TimeKind::kGathers:
      return Stream::kGathers;
    case TimeKind::kReduce:
    case TimeKind::kUpdated:
      return Stream::kReduce;
    case TimeKind::kRelayout:
    case TimeKind::kTied:
      return Stream::kRelayout;
    case TimeKind::kOptimizer:
      return Stream::kUpdate;
    case TimeKind::kToHost:
    case TimeKind::kFromHost:
      return Stream::kCopies;
    case TimeKind::kHost:
      return Stream::kHost;
    case TimeKind::kStragglers:
      return Stream::kWait;
    default:
      return Stream::kCompute;
  }
}

namespace {

// One part after the other from `start` on. What compute hides of gathers goes on beside it, and of gradient sums and
// copies to the host and back has begun before; nothing leaves [low, high].
double append_slices(const PassTimes& times, int64_t pass, double start, double low, double high,
                     std::vector<Slice>& to) {
  double at = start;
  for (size_t k = 0; k < kTimeKinds; ++k) {
    const TimeKind part = static_cast<TimeKind>(k);
    double from = at, end = at + times.seconds[k];
    at = end;
    if (part == TimeKind::kGathers) end = end + times.hidden_gathers;
    if (part == TimeKind::kReduce) from = std::max(low, from - times.hidden_reduce);
    if (part == TimeKind::kToHost) from = std::max(low, from - times.hidden_to_host);
    if (part == TimeKind::kFromHost) from = std::max(low, from - times.hidden_from_host);
    end = std::min(end, high);
    if (end > from && part != TimeKind::kSend) to.push_back({part, pass, from, end});
  }
  return at;
}

}  // namespace

StepTimeline step_timeline(const PlannedStep& step) {
  StepTimeline out;
  out.passes = simulate(step.simulation, true);
  out.slices.resize(step.stages.size());
  const double in_group = micro_batches_of_group(step.simulation);
  for (size_t k = 0; k < out.passes.events.size(); ++k) {
    const Event& e = out.passes.events[k];
    const ChunkTimes& c = step.times.chunks[static_cast<size_t>(e.stage)][static_cast<size_t>(e.chunk)];
    const PassTimes& times = e.kind == StageWork::kForward    ? c.forward
                             : e.kind == StageWork::kBackward ? c.backward
                                                              : c.weight;
    append_slices(times.scaled(in_group), static_cast<int64_t>(k), e.start, e.start, e.end,
                  out.slices[static_cast<size_t>(e.stage)]);
  }
  constexpr double kEver = 1e300;
  double updated = out.passes.seconds;
  for (size_t s = 0; s < out.slices.size(); ++s)
    updated = std::max(updated, append_slices(step.times.updates[s], -1, out.passes.seconds, 0, kEver, out.slices[s]));
  for (std::vector<Slice>& slices : out.slices)
    out.seconds = append_slices(step.times.after, -1, updated, 0, kEver, slices);
  return out;
}

StageSeconds stage_seconds(const PlannedStep& step, const StepTimeline& t, size_t stage) {
  StageSeconds out;
  const auto add = [&](const PassTimes& pass, double times) {
    out.spent.add(pass, times);
    out.hidden_gathers += times * pass.hidden_gathers, out.hidden_reduce += times * pass.hidden_reduce,
        out.hidden_sums += times * pass.hidden_sums,
        out.hidden_copies += times * (pass.hidden_to_host + pass.hidden_from_host);
  };
  const double micro = static_cast<double>(step.simulation.micro_batches);
  for (const ChunkTimes& c : step.times.chunks[stage]) {
    for (const PassTimes* pass : {&c.forward, &c.backward, &c.weight}) add(*pass, micro);
  }
  add(step.times.updates[stage], 1), add(step.times.after, 1);
  // For other stages, before they pass something on and until the last of them has updated.
  out.spent.bubble = t.seconds - t.passes.busy[stage] - step.times.updates[stage].total() - step.times.after.total();
  return out;
}

// They grow with each forward pass, and go with the last pass that needs them.
std::vector<std::pair<double, double>> kept_activations(const PlannedStep& step, const Timeline& passes, size_t stage) {
  const double each =
      step.stages[stage].activations / static_cast<double>(std::max<int64_t>(1, passes.most_in_flight[stage]));
  const StageWork last =
      step.simulation.schedule == PipelineSchedule::kZeroBubble ? StageWork::kWeight : StageWork::kBackward;
  std::vector<std::pair<double, double>> out = {{0, 0}};
  int64_t held = 0;
  auto change = [&](double at, int by) { held += by, out.emplace_back(at, each * static_cast<double>(held)); };
  for (const Event& e : passes.events) {
    if (e.stage != static_cast<int>(stage)) continue;
    if (e.kind == StageWork::kForward) change(e.start, 1);
    if (e.kind == last) change(e.end, -1);
  }
  return out;
}

}  // namespace partita
