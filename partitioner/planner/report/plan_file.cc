#include "partitioner/planner/report/plan_file.h"

#include <algorithm>
#include <map>

#include "base/cat.h"
#include "base/quote.h"
#include "base/status.h"
#include "base/text_file.h"
#include "fmt/format.h"
#include "nlohmann/json.hpp"
#include "partitioner/planner/report/missing.h"
#include "partitioner/planner/report/step_timeline.h"

namespace partita {
namespace {

using Json = nlohmann::json;

constexpr int64_t kMostPlanBytes = int64_t{64} << 20;

Json pins_json(const Layout& l) {
  Json j = {{"data", l.data},
            {"tensor", l.tensor},
            {"pipeline", l.pipeline},
            {"context", l.context},
            {"expert", l.expert},
            {"zero", l.zero},
            {"reshard_after_forward", l.reshard_after_forward},
            {"micro_batch", l.micro_batch},
            {"sequence_parallel", l.sequence_parallel},
            {"recompute", enum_name(l.recompute)},
            {"offload", enum_name(l.offload)},
            {"schedule", enum_name(l.schedule)},
            {"interleave", l.interleave}};
  if (l.zero_group > 0) j["zero_group"] = l.zero_group;
  if (!l.cut_names.empty()) j["cuts"] = l.cut_names;
  for (const Layout::StageAxes& s : l.stages)
    j["stages"].push_back({{"data", s.data}, {"tensor", s.tensor}, {"context", s.context}, {"expert", s.expert}});
  return j;
}

Json inputs_json(const PlanInputs& in) {
  Json j = {{"model", in.model}, {"train", in.train}, {"cluster", in.cluster}, {"cluster_path", in.cluster_path}};
  if (!in.profiles.empty()) j["profiles"] = in.profiles;
  if (!in.precision.empty()) j["precision"] = in.precision;
  if (!in.like.empty()) j["like"] = in.like;
  if (!in.pins.empty()) j["pins"] = in.pins;
  if (!in.refined.empty()) j["refined"] = in.refined;
  return j;
}

Json memory_json(const MemoryParts& m) {
  return {{"parameters", m.parameters},
          {"gradients", m.gradients},
          {"optimizer", m.optimizer},
          {"activations", m.activations},
          {"stash", m.stash},
          {"transient", m.transient},
          {"reserve_assumed", m.reserve},
          {"communicators_assumed", m.communicators},
          {"total", m.total()}};
}

Json breakdown_json(const Breakdown& b) {
  Json j = Json::object();
  for (const auto& [name, seconds] : b.parts()) j[name] = seconds;
  return j;
}

template <typename Enum>
absl::Status read_enum(const Json& j, const char* key, std::optional<Enum>& out) {
  if (!j.contains(key)) return absl::OkStatus();
  auto names = enum_names<Enum>();
  for (size_t k = 0; k < names.size(); ++k) {
    if (j[key].is_string() && j[key].get<std::string>() == names[k]) {
      out = static_cast<Enum>(k);
      return absl::OkStatus();
    }
  }
  return absl::InvalidArgumentError(cat("plan: ", key, ": unknown value ", quote(j[key].dump())));
}

template <typename T>
absl::Status read_count(const Json& j, const char* key, std::optional<T>& out, int64_t low) {
  if (!j.contains(key)) return absl::OkStatus();
  if (!j[key].is_number_integer() || j[key].get<int64_t>() < low || j[key].get<int64_t>() > (int64_t{1} << 40))
    return absl::InvalidArgumentError(
        cat("plan: pin.", key, ": expected an integer of at least ", low, ", found ", quote(j[key].dump())));
  out = static_cast<T>(j[key].get<int64_t>());
  return absl::OkStatus();
}

absl::Status read_cuts(const Json& j, std::vector<std::string>& out) {
  if (!j.contains("cuts")) return absl::OkStatus();
  const Json& list = j["cuts"];
  bool texts = list.is_array() && std::all_of(list.begin(), list.end(), [](const Json& x) { return x.is_string(); });
  if (!texts) return absl::InvalidArgumentError("plan: pin.cuts: expected a list of globs");
  out = list.get<std::vector<std::string>>();
  return absl::OkStatus();
}

absl::Status read_stages(const Json& j, std::vector<std::map<std::string, int64_t>>& out) {
  if (!j.contains("stages")) return absl::OkStatus();
  const Json& list = j["stages"];
  if (!list.is_array() || list.empty())
    return absl::InvalidArgumentError("plan: pin.stages: expected a list with one mapping for each stage");
  for (const Json& stage : list) {
    if (!stage.is_object()) return absl::InvalidArgumentError("plan: pin.stages: expected mappings of axes to sizes");
    out.emplace_back();
    for (const char* axis : {"data", "tensor", "context", "expert"}) {
      std::optional<int64_t> size;
      PARTITA_RETURN_IF_ERROR(read_count(stage, axis, size, 1));
      if (size) out.back()[axis] = *size;
    }
  }
  return absl::OkStatus();
}

absl::Status read_flag(const Json& j, const char* key, std::optional<bool>& out) {
  if (!j.contains(key)) return absl::OkStatus();
  if (!j[key].is_boolean()) return absl::InvalidArgumentError(cat("plan: pin.", key, ": expected true or false"));
  out = j[key].get<bool>();
  return absl::OkStatus();
}

}  // namespace

Json candidate_json(const Problem& problem, const Candidate& c, const Candidate* best) {
  const Prediction& p = c.prediction;
  Json j = {{"layout", describe(c.layout)},    {"pin", pins_json(c.layout)},
            {"step_seconds", p.step_seconds},  {"fits", p.fits},
            {"memory_bytes", p.most_memory()}, {"breakdown", breakdown_json(p.breakdown)}};
  (void)problem;
  if (!p.fits) {
    j["reason"] = explain_missing(c);
  } else if (best && best->prediction.step_seconds > 0) {
    double slower = p.step_seconds / best->prediction.step_seconds - 1;
    std::string most;
    double gap = 0;
    auto theirs = p.breakdown.parts(), ours = best->prediction.breakdown.parts();
    for (size_t k = 0; k < theirs.size(); ++k) {
      double d = theirs[k].second - ours[k].second;
      if (d > gap) gap = d, most = theirs[k].first;
    }
    j["reason"] = fmt::format("{:.1f} % slower{}", slower * 100,
                              most.empty() ? "" : fmt::format(", most of it {} (+{:.3g} s)", most, gap));
  }
  return j;
}

Json plan_json(const Problem& problem, CostModel& model, const SearchResult& result, const Candidate& chosen,
               const PlanInputs& inputs) {
  const Prediction& p = chosen.prediction;
  const Workload& w = *problem.workload;
  const Layout& l = chosen.layout;
  Json stages = Json::array();
  std::vector<int> cuts = l.cuts.empty() ? model.even_cuts(l) : l.cuts;
  Simulation sim = model.simulation(l);
  for (int64_t s = 0; s < l.pipeline; ++s) {
    Json chunks = Json::array();
    for (size_t c = static_cast<size_t>(s), k = 0; c < cuts.size(); c += static_cast<size_t>(l.pipeline), ++k) {
      int first = 0;
      for (size_t x = 0; x < c; ++x) first += cuts[x];
      const StageTimes& t = sim.chunks[static_cast<size_t>(s)][k];
      chunks.push_back({{"first_unit", first},
                        {"units", cuts[c]},
                        {"forward_seconds", t.forward},
                        {"backward_seconds", t.backward},
                        {"weight_seconds", t.weight}});
    }
    stages.push_back({{"first_rank", l.first_device(s)},
                      {"ranks", l.devices_of_stage(s)},
                      {"device", model.group_of_stage(l, s).device.name},
                      {"chunks", chunks},
                      {"memory", memory_json(p.memory[static_cast<size_t>(s)])},
                      {"capacity_bytes", p.capacity[static_cast<size_t>(s)]}});
  }
  Json memory = Json::array(), others = Json::array();
  for (const MemoryParts& m : p.memory) memory.push_back(static_cast<int64_t>(m.total()));
  Json program = Json::array();
  for (double bytes : p.program_bytes) program.push_back(static_cast<int64_t>(bytes));
  for (const Candidate& c : result.others) others.push_back(candidate_json(problem, c, &chosen));
  Json units = Json::array();
  for (const UnitWork& u : w.kinds) {
    int64_t count = 0;
    for (int k : w.units) count += &w.kinds[static_cast<size_t>(k)] == &u;
    units.push_back({{"name", u.name},
                     {"count", count},
                     {"forward_flops", u.forward_flops()},
                     {"backward_flops", u.backward_flops()},
                     {"parameters", u.parameters[0] + u.parameters[1]},
                     {"saved_elements", u.saved[0] + u.saved[1]},
                     {"tensor_split", u.split}});
    if (u.chosen > 0) units.back()["grouped_matrices"] = u.chosen;
  }
  double tokens = w.tokens * static_cast<double>(problem.global_batch);
  const double peak = problem.cluster->peak_flops(problem.options.precision);
  Json plan = {
      {"version", kPlanVersion},
      {"inputs", inputs_json(inputs)},
      {"devices", problem.devices()},
      {"hardware", problem.cluster->hardware()},
      {"links", problem.cluster->wiring()},
      {"global_batch", problem.global_batch},
      {"layout", describe(l)},
      {"pin", pins_json(l)},
      {"compress", enum_name(problem.compress)},
      {"batch_statistics", enum_name(problem.batch_statistics)},
      {"micro_batches", sim.micro_batches},
      {"send_seconds", sim.send},
      {"send_waited_seconds", sim.send_waited},
      {"stages", stages},
      {"units", units},
      {"predicted",
       {{"step_seconds", p.step_seconds},
        {"fits", p.fits},
        {"memory_bytes", memory},
        {"missing_bytes", static_cast<int64_t>(p.missing_bytes)},
        {"breakdown", breakdown_json(p.breakdown)},
        {"bubble_share", p.bubble_share},
        {"tokens_per_second", p.step_seconds > 0 ? tokens / p.step_seconds : 0},
        {"model_flops", p.flops},
        {"mfu", p.step_seconds > 0 && peak > 0 ? p.flops / p.step_seconds / peak : 0},
        {"price_per_hour", problem.cluster->price_per_hour()},
        {"gradient_collective", p.gradient_algorithm}}},
      {"search",
       {{"considered", result.considered}, {"bounded", result.bounded}, {"unfit", result.unfit}, {"gap", result.gap}}},
      {"candidates", others}};
  plan["search"]["laid_out"] = result.laid_out;
  write_step(plan, model.step_parts(l, p), model.traffic(l), *problem.cluster);
  if (!program.empty()) plan["predicted"]["program_bytes"] = std::move(program);
  return plan;
}

std::string plan_text(const Json& plan) { return plan.dump(1) + "\n"; }

absl::StatusOr<Json> read_plan(const std::string& path) {
  auto read = read_text_file(path, kMostPlanBytes);
  if (!read.ok()) return with_context(read.status(), "a plan, as partita plan -o writes it");
  const std::string& text = *read;
  if (static_cast<int64_t>(text.size()) > kMostPlanBytes)
    return absl::InvalidArgumentError(cat(quote(path), ": no plan: more than ", kMostPlanBytes, " bytes"));
  int depth = 0, deepest = 0;
  for (char c : text) {
    depth += c == '[' || c == '{' ? 1 : c == ']' || c == '}' ? -1 : 0;
    deepest = std::max(deepest, depth);
  }
  Json j = deepest > 64 ? Json(Json::value_t::discarded) : Json::parse(text, nullptr, false);
  if (j.is_discarded() || !j.is_object())
    return absl::InvalidArgumentError(cat(quote(path), ": expected a plan in JSON, found something else"));
  if (!j.contains("version") || j["version"] != kPlanVersion) {
    return absl::InvalidArgumentError(cat(quote(path), ": expected version ", kPlanVersion, ", found ",
                                          j.contains("version") ? quote(j["version"].dump()) : "none"));
  }
  if (!j.contains("pin") || !j["pin"].is_object())
    return absl::InvalidArgumentError(cat(quote(path), ": expected the layout under \"pin\", found none"));
  return j;
}

absl::StatusOr<PinRecipe> plan_pins(const Json& plan) {
  const Json& j = plan["pin"];
  PinRecipe p;
  for (const char* axis : {"data", "tensor", "pipeline", "context", "expert"}) {
    std::optional<int64_t> size;
    PARTITA_RETURN_IF_ERROR(read_count(j, axis, size, 1));
    if (size) p.axes[axis] = *size;
  }
  PARTITA_RETURN_IF_ERROR(read_count(j, "zero", p.zero, 0));
  if (p.zero && *p.zero > 3) return absl::InvalidArgumentError(cat("plan: pin.zero: expected 0 to 3, found ", *p.zero));
  PARTITA_RETURN_IF_ERROR(read_count(j, "zero_group", p.zero_group, 1));
  PARTITA_RETURN_IF_ERROR(read_count(j, "micro_batch", p.micro_batch, 1));
  PARTITA_RETURN_IF_ERROR(read_count(j, "interleave", p.interleave, 1));
  PARTITA_RETURN_IF_ERROR(read_enum(j, "recompute", p.recompute));
  PARTITA_RETURN_IF_ERROR(read_enum(j, "offload", p.offload));
  PARTITA_RETURN_IF_ERROR(read_enum(j, "schedule", p.schedule));
  PARTITA_RETURN_IF_ERROR(read_cuts(j, p.cuts));
  PARTITA_RETURN_IF_ERROR(read_stages(j, p.stages));
  PARTITA_RETURN_IF_ERROR(read_flag(j, "sequence_parallel", p.sequence_parallel));
  PARTITA_RETURN_IF_ERROR(read_flag(j, "reshard_after_forward", p.reshard_after_forward));
  return p;
}

absl::StatusOr<std::optional<Compression>> plan_compression(const Json& plan) {
  std::optional<Compression> kind;
  PARTITA_RETURN_IF_ERROR(read_enum(plan, "compress", kind));
  return kind;
}

absl::StatusOr<std::vector<double>> plan_room(const Json& plan) {
  std::vector<double> room;
  try {
    if (!plan.at("predicted").at("fits").get<bool>()) return room;
    for (const Json& stage : plan.at("stages"))
      room.push_back(stage.at("capacity_bytes").get<double>() - stage.at("memory").at("reserve_assumed").get<double>());
  } catch (const Json::exception& e) {
    return absl::InvalidArgumentError(cat("the plan does not say what memory its devices have: ", e.what()));
  }
  return room;
}

absl::StatusOr<Simulation> plan_simulation(const Json& plan) {
  Simulation s;
  auto bad = [](std::string_view what) {
    return absl::InvalidArgumentError(cat("plan: expected ", what, "; make the plan again"));
  };
  PARTITA_ASSIGN_OR_RETURN(PinRecipe pins, plan_pins(plan));
  s.schedule = pins.schedule.value_or(PipelineSchedule::k1f1b);
  if (!plan.contains("micro_batches") || !plan["micro_batches"].is_number_integer()) return bad("micro_batches");
  s.micro_batches = plan["micro_batches"].get<int64_t>();
  for (auto [key, to] : {std::pair{"send_seconds", &s.send}, {"send_waited_seconds", &s.send_waited}}) {
    if (!plan.contains(key)) continue;
    if (!plan[key].is_number() || !(plan[key].get<double>() >= 0)) return bad(key);
    *to = plan[key].get<double>();
  }
  if (!plan.contains("stages") || !plan["stages"].is_array() || plan["stages"].empty()) return bad("stages");
  for (const Json& stage : plan["stages"]) {
    if (!stage.is_object() || !stage.contains("chunks") || !stage["chunks"].is_array() || stage["chunks"].empty())
      return bad("chunks");
    s.chunks.emplace_back();
    for (const Json& c : stage["chunks"]) {
      StageTimes t;
      for (auto [key, to] : {std::pair{"forward_seconds", &t.forward},
                             {"backward_seconds", &t.backward},
                             {"weight_seconds", &t.weight}}) {
        if (!c.is_object() || !c.contains(key) || !c[key].is_number() || c[key].get<double>() < 0) return bad(key);
        *to = c[key].get<double>();
      }
      s.chunks.back().push_back(t);
    }
    if (s.chunks.back().size() != s.chunks[0].size()) return bad("as many chunks on each stage");
  }
  double operations = static_cast<double>(s.micro_batches) * static_cast<double>(s.chunks.size() * s.chunks[0].size());
  if (s.micro_batches < 1 || operations > 1e7) return bad("1 to 10 million operations");
  return s;
}

}  // namespace partita
