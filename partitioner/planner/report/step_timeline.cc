#include "partitioner/planner/report/step_timeline.h"

#include <algorithm>
#include <cmath>

#include "base/cat.h"
#include "base/quote.h"
#include "base/status.h"
#include "nlohmann/json.hpp"
#include "partitioner/planner/report/plan_file.h"

namespace partita {
namespace {

using Json = nlohmann::json;

constexpr int64_t kMostRanks = int64_t{1} << 20;
constexpr std::array<std::string_view, 3> kPasses = {"forward", "backward", "weight"};

Json parts_json(const PassParts& parts) {
  Json j = Json::object();
  for (size_t k = 0; k < kStepParts; ++k) {
    if (parts.seconds[k] > 0) j[std::string(kStepPartNames[k])] = parts.seconds[k];
  }
  if (parts.hidden_gathers > 0) j["hidden_gathers"] = parts.hidden_gathers;
  if (parts.hidden_reduce > 0) j["hidden_reduce"] = parts.hidden_reduce;
  return j;
}

// Reads what write_step wrote; anything else ends it with the place that it stands at.
class Reader {
 public:
  absl::Status status;

  const Json& member(const Json& j, std::string_view key, std::string_view what) {
    static const Json none;
    if (j.is_object() && j.contains(key)) return j[std::string(key)];
    fail(cat("expected ", what, " under ", quote(key), ", found none"));
    return none;
  }

  double number(const Json& j, std::string_view key) {
    const Json& v = member(j, key, "a number");
    if (v.is_number() && std::isfinite(v.get<double>()) && v.get<double>() >= 0) return v.get<double>();
    fail(cat(key, ": expected a number of at least 0, found ", quote(v.dump())));
    return 0;
  }

  int64_t count(const Json& v, std::string_view key) {
    if (v.is_number_integer() && v.get<int64_t>() >= 1 && v.get<int64_t>() <= kMostRanks) return v.get<int64_t>();
    fail(cat(key, ": expected an integer from 1 to ", kMostRanks, ", found ", quote(v.dump())));
    return 1;
  }

  std::string text(const Json& j, std::string_view key) {
    const Json& v = member(j, key, "a text");
    if (v.is_string()) return v.get<std::string>();
    fail(cat(key, ": expected a text, found ", quote(v.dump())));
    return "";
  }

  PassParts parts(const Json& j, std::string_view key) {
    PassParts out;
    const Json& all = member(j, key, "seconds by part");
    if (!all.is_object()) fail(cat(key, ": expected seconds by part, found ", quote(all.dump())));
    for (size_t k = 0; k < kStepParts && all.is_object(); ++k) {
      if (all.contains(kStepPartNames[k])) out.seconds[k] = number(all, kStepPartNames[k]);
    }
    if (all.contains("hidden_gathers")) out.hidden_gathers = number(all, "hidden_gathers");
    if (all.contains("hidden_reduce")) out.hidden_reduce = number(all, "hidden_reduce");
    return out;
  }

  Transfer transfer(const Json& j, int64_t stage_ranks) {
    Transfer t;
    const std::string kind = text(j, "kind");
    const auto at = std::find(kTrafficNames.begin(), kTrafficNames.end(), kind);
    if (at == kTrafficNames.end()) fail(cat("kind: unknown value ", quote(kind)));
    t.kind = static_cast<TrafficKind>(at - kTrafficNames.begin());
    t.collective = text(j, "collective"), t.algorithm = text(j, "algorithm"), t.bytes = number(j, "bytes");
    const Json &members = member(j, "members", "axes"), &levels = member(j, "levels", "sizes");
    if (!members.is_array() || members.empty() || members.size() > 2 || !levels.is_array() || levels.empty())
      fail("members, levels: expected one or two axes, and sizes of levels");
    for (size_t k = 0; status.ok() && k < members.size(); ++k) {
      if (!members[k].is_array() || members[k].size() != 2) fail("members: expected [size, stride]");
      if (status.ok()) t.members[k] = {count(members[k][0], "members"), count(members[k][1], "members")};
      if (stage_ranks % t.members[k].size != 0 || stage_ranks / t.members[k].size % t.members[k].stride != 0)
        fail(cat("members: ", members[k].dump(), " is no axis of ", stage_ranks, " ranks"));
    }
    int64_t all = 1;
    for (const Json& level : levels) t.levels.push_back(count(level, "levels")), all *= t.levels.back();
    if (status.ok() && (all != t.ranks() || t.ranks() > stage_ranks))
      fail(cat("levels: ", levels.dump(), " do not make groups of ", t.ranks()));
    return t;
  }

  void fail(const std::string& what) {
    if (status.ok()) status = absl::InvalidArgumentError(cat("plan: ", what, "; make the plan again"));
  }
};

}  // namespace

void write_step(Json& plan, const StepParts& parts, const PlanTraffic& traffic, const Cluster& cluster) {
  for (size_t s = 0; s < parts.chunks.size(); ++s) {
    Json& stage = plan["stages"][s];
    for (size_t k = 0; k < parts.chunks[s].size(); ++k) {
      const ChunkParts& c = parts.chunks[s][k];
      stage["chunks"][k]["parts"] = {{kPasses[0], parts_json(c.forward)},
                                     {kPasses[1], parts_json(c.backward)},
                                     {kPasses[2], parts_json(c.weight)}};
    }
    stage["update"] = parts_json(parts.updates[s]);
    stage["traffic"] = Json::array();
    for (const Transfer& t : traffic.stages[s].transfers) {
      Json members = Json::array();
      for (const RankAxis& axis : t.members) {
        if (axis.size > 1 || members.empty()) members.push_back({axis.size, axis.stride});
      }
      stage["traffic"].push_back({{"kind", kTrafficNames[static_cast<size_t>(t.kind)]},
                                  {"collective", t.collective},
                                  {"algorithm", t.algorithm},
                                  {"members", members},
                                  {"levels", t.levels},
                                  {"bytes", t.bytes}});
    }
  }
  plan["after_update"] = parts_json(parts.after);
  plan["boundary_bytes"] = traffic.boundary_bytes;
  plan["nodes"] = Json::array();
  for (const DeviceGroup& g : cluster.groups)
    plan["nodes"].push_back({{"nodes", g.nodes}, {"devices_per_node", g.devices_per_node}, {"device", g.device.name}});
}

absl::StatusOr<PlannedStep> read_step(const Json& plan) {
  PlannedStep out;
  PARTITA_ASSIGN_OR_RETURN(out.simulation, plan_simulation(plan));
  PARTITA_ASSIGN_OR_RETURN(PinRecipe pins, plan_pins(plan));
  const size_t stages = out.simulation.chunks.size();
  if (pins.axis("pipeline").value_or(1) != static_cast<int64_t>(stages) ||
      (!pins.stages.empty() && pins.stages.size() != stages))
    return absl::InvalidArgumentError(cat("plan: expected ", stages, " stages under \"pin\", as under \"stages\""));
  Reader r;
  out.traffic.micro_batches = out.simulation.micro_batches;
  out.traffic.chunks = static_cast<int64_t>(out.simulation.chunks[0].size());
  out.traffic.boundary_bytes = r.number(plan, "boundary_bytes");
  const Json& predicted = r.member(plan, "predicted", "predictions");
  out.predicted_seconds = r.number(predicted, "step_seconds");
  const Json& breakdown = r.member(predicted, "breakdown", "seconds by part");
  if (!breakdown.is_object()) r.fail(cat("breakdown: expected seconds by part, found ", quote(breakdown.dump())));
  for (const auto& [part, seconds] : breakdown.items()) {
    if (breakdown.is_object()) r.number(breakdown, part);
  }
  for (size_t s = 0; s < stages && r.status.ok(); ++s) {
    const Json& stage = plan["stages"][s];
    auto axis = [&](const char* name) -> int64_t {
      if (pins.stages.empty()) return pins.axis(name).value_or(1);
      const auto at = pins.stages[s].find(name);
      return at == pins.stages[s].end() ? 1 : at->second;
    };
    const Layout::StageAxes axes{axis("data"), axis("tensor"), axis("context"), axis("expert")};
    const double devices = static_cast<double>(axes.data) * static_cast<double>(axes.tensor) *
                           static_cast<double>(axes.context) * static_cast<double>(axes.expert);
    if (devices * static_cast<double>(stages) > static_cast<double>(kMostRanks))
      return absl::InvalidArgumentError(cat("plan: expected at most ", kMostRanks, " ranks"));
    const Json& memory = r.member(stage, "memory", "bytes");
    out.stages.push_back({out.ranks(), axes, r.number(memory, "total"), r.number(memory, "activations")});
    PlanTraffic::Stage& sent = out.traffic.stages.emplace_back();
    sent.ranks = axes.devices();
    const Json& transfers = r.member(stage, "traffic", "what ranks send");
    for (size_t k = 0; transfers.is_array() && k < transfers.size() && r.status.ok(); ++k)
      sent.transfers.push_back(r.transfer(transfers[k], sent.ranks));
    std::vector<ChunkParts>& chunks = out.parts.chunks.emplace_back();
    for (const Json& chunk : stage["chunks"]) {
      const Json& parts = r.member(chunk, "parts", "seconds by pass");
      chunks.push_back({r.parts(parts, kPasses[0]), r.parts(parts, kPasses[1]), r.parts(parts, kPasses[2])});
    }
    out.parts.updates.push_back(r.parts(stage, "update"));
  }
  if (r.status.ok()) out.parts.after = r.parts(plan, "after_update");
  const Json& nodes = r.member(plan, "nodes", "the cluster's nodes");
  for (size_t k = 0; nodes.is_array() && k < nodes.size() && r.status.ok(); ++k) {
    const Json& n = nodes[k];
    out.nodes.push_back({r.count(r.member(n, "nodes", "a count"), "nodes"),
                         r.count(r.member(n, "devices_per_node", "a count"), "devices_per_node"), r.text(n, "device")});
  }
  PARTITA_RETURN_IF_ERROR(r.status);
  return out;
}

int64_t PlannedStep::stage_of(int64_t rank) const {
  size_t s = stages.size() - 1;
  while (s > 0 && stages[s].first_rank > rank) --s;
  return static_cast<int64_t>(s);
}

std::string rank_name(const PlannedStep& step, int64_t rank) {
  const int64_t stage = step.stage_of(rank);
  const PlannedStep::Stage& at = step.stages[static_cast<size_t>(stage)];
  int64_t place = rank - at.first_rank;
  std::string text = cat("stage ", stage), inner;
  for (auto [name, size] : {std::pair{"tensor", at.axes.tensor},
                            {"context", at.axes.context},
                            {"expert", at.axes.expert},
                            {"data", at.axes.data}}) {
    if (size > 1) inner = cat(", ", name, " ", place % size, inner);
    place /= size;
  }
  text += inner;
  int64_t device = rank, node = 0;
  for (const PlannedStep::Nodes& n : step.nodes) {
    if (device < n.nodes * n.devices_per_node)
      return cat(text, "; node ", node + device / n.devices_per_node, ", device ", device % n.devices_per_node, " (",
                 n.device, ")");
    device -= n.nodes * n.devices_per_node, node += n.nodes;
  }
  return text;
}

std::string_view stream_name(Stream stream) {
  constexpr std::array<std::string_view, kStreams> kNames = {"compute",
                                                             "tensor collectives",
                                                             "context exchanges",
                                                             "expert exchanges",
                                                             "batch statistics",
                                                             "parameter gathers, gradient scatters",
                                                             "gradient sums, updated parameters",
                                                             "gathers between stages that differ",
                                                             "update",
                                                             "host copies",
                                                             "host",
                                                             "waiting"};
  return kNames[static_cast<size_t>(stream)];
}

Stream stream_of(StepPart part) {
  switch (part) {
    case StepPart::kTensor:
      return Stream::kTensor;
    case StepPart::kContext:
      return Stream::kContext;
    case StepPart::kExpert:
      return Stream::kExpert;
    case StepPart::kStatistics:
      return Stream::kStatistics;
    case StepPart::kGathers:
      return Stream::kGathers;
    case StepPart::kReduce:
    case StepPart::kUpdated:
      return Stream::kReduce;
    case StepPart::kRelayout:
      return Stream::kRelayout;
    case StepPart::kOptimizer:
      return Stream::kUpdate;
    case StepPart::kToHost:
    case StepPart::kFromHost:
      return Stream::kCopies;
    case StepPart::kHost:
      return Stream::kHost;
    case StepPart::kStragglers:
      return Stream::kWait;
    default:
      return Stream::kCompute;
  }
}

namespace {

// One part after the other from `start` on. What compute hides of gathers goes on beside it, and of gradient sums has
// begun before; neither leaves [low, high].
double lay_out(const PassParts& parts, int64_t pass, double start, double low, double high, std::vector<Slice>& to) {
  double at = start;
  for (size_t k = 0; k < kStepParts; ++k) {
    const StepPart part = static_cast<StepPart>(k);
    double from = at, end = at + parts.seconds[k];
    at = end;
    if (part == StepPart::kGathers) end = end + parts.hidden_gathers;
    if (part == StepPart::kReduce) from = std::max(low, from - parts.hidden_reduce);
    end = std::min(end, high);
    if (end > from && part != StepPart::kSend) to.push_back({part, pass, from, end});
  }
  return at;
}

}  // namespace

StepTimeline step_timeline(const PlannedStep& step) {
  StepTimeline out;
  out.passes = simulate(step.simulation, true);
  out.slices.resize(step.stages.size());
  for (size_t k = 0; k < out.passes.events.size(); ++k) {
    const Event& e = out.passes.events[k];
    const ChunkParts& c = step.parts.chunks[static_cast<size_t>(e.stage)][static_cast<size_t>(e.chunk)];
    const PassParts& parts = e.kind == StageWork::kForward    ? c.forward
                             : e.kind == StageWork::kBackward ? c.backward
                                                              : c.weight;
    lay_out(parts, static_cast<int64_t>(k), e.start, e.start, e.end, out.slices[static_cast<size_t>(e.stage)]);
  }
  constexpr double kEver = 1e300;
  double updated = out.passes.seconds;
  for (size_t s = 0; s < out.slices.size(); ++s)
    updated = std::max(updated, lay_out(step.parts.updates[s], -1, out.passes.seconds, 0, kEver, out.slices[s]));
  for (std::vector<Slice>& slices : out.slices) out.seconds = lay_out(step.parts.after, -1, updated, 0, kEver, slices);
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
