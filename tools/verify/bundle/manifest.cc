#include "tools/verify/bundle/manifest.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "base/cat.h"
#include "base/quote.h"
#include "base/status.h"
#include "runtime/program/bundle_names.h"
#include "runtime/program/placement.h"
#include "tools/verify/layout/mismatch.h"

namespace partita::verifier {
namespace {

using Json = nlohmann::json;

// What no run reads: it is there for people and reports.
const std::set<std::string> kTold = {"warnings",  "schedule",       "equal_to_serial", "weight_versions",
                                     "semantics", "gathered_bytes", "compress",        "gpu_code",
                                     "form",      "plan",           "length"};
// What a run goes by besides the programs, as above the serial graph.
const std::set<std::string> kOfRun = {"data", "seed", "recipe", "evaluate", "reproducible", "run", "ramp", "lengths"};

int64_t trained_elements(const Graph& graph) {
  int64_t count = 0;
  for (const State& s : graph.states)
    count += s.kind == StateKind::kParameter ? elements(graph.type(s.value).shape) : 0;
  return count;
}

// Floating point operations of a step's products and attention, as the model has them: what the backward part computes
// again is not counted twice, nor what several ranks do alike.
double model_flops(const Graph& serial, int64_t samples_per_step) {
  int64_t samples = samples_per_step;
  for (const GraphInput& in : serial.inputs) {
    const Shape& shape = serial.type(in.value).shape;
    if (in.kind == InputKind::kData && !shape.empty()) samples = shape[0];
  }
  // A node that backward makes again is made of the same as its forward node, or of values that are made again.
  std::map<std::pair<const OpDef*, std::vector<ValueId>>, std::vector<const Node*>> forward;
  std::multimap<int32_t, const Node*> attention;  // of forward, by origin
  std::map<ValueId, ValueId> again;               // values that are made again, as forward has them
  double flops = 0;
  for (const Node& n : serial.nodes) {
    std::vector<ValueId> from = n.inputs;
    for (ValueId& v : from) {
      if (const auto known = again.find(v); known != again.end()) v = known->second;
    }
    std::vector<const Node*>& alike = forward[{n.op, std::move(from)}];
    const auto twin = std::ranges::find_if(alike, [&](const Node* known) { return known->attrs == n.attrs; });
    if (n.segment == Segment::kForward) {
      alike.push_back(&n);
      if (n.op->work == WorkKind::kAttention) attention.emplace(n.origin, &n);
    } else if (n.segment != Segment::kBackward) {
      continue;
    } else if (twin != alike.end()) {
      for (size_t k = 0; k < n.outputs.size(); ++k) again[n.outputs[k]] = (*twin)->outputs[k];
      continue;
    }
    if (n.op->work == WorkKind::kMemory) continue;
    // Attention's gradient makes the scores again; of the model it has two products for each one of forward.
    const auto scores = attention.find(n.origin);
    const bool both =
        n.segment == Segment::kBackward && n.op->work == WorkKind::kAttention && scores != attention.end();
    flops += both ? 2 * node_flops(serial, *scores->second) : node_flops(serial, n);
  }
  return flops * static_cast<double>(samples_per_step) / static_cast<double>(std::max<int64_t>(samples, 1));
}

absl::Status expect(const std::string& key, const Json& expected, const Json& found) {
  if (expected == found) return absl::OkStatus();
  return differs(quote(runtime::kManifestName), ": ", key, ": expected ", expected.dump(), ", found ", found.dump());
}

}  // namespace

std::map<std::string, int64_t> memory_bytes(const runtime::Program& p) {
  return {{"state", p.region_bytes[0]},    {"host_state", p.region_bytes[1]}, {"arena", p.region_bytes[2]},
          {"constant", p.region_bytes[3]}, {"input", p.region_bytes[4]},      {"host_arena", p.region_bytes[5]}};
}

Json derived_manifest(const std::vector<const runtime::Program*>& stages, const Graph& serial) {
  const runtime::Program& p = *stages.front();
  Json mesh = Json::object(), inputs = Json::array(), memory = memory_bytes(p), each = Json::array();
  for (const auto& axis : p.mesh) mesh[axis.name] = axis.size;
  for (const auto& in : p.inputs) {
    if (in.kind == InputKind::kData)
      inputs.push_back({{"name", in.name}, {"dtype", dtype_name(in.operand.dtype)}, {"shape", in.placement.logical}});
  }
  int64_t steps = 0;
  for (const runtime::Program* stage : stages) {
    each.push_back(memory_bytes(*stage));
    for (auto& [region, most] : memory.items())
      most = std::max(most.get<int64_t>(), each.back().at(region).get<int64_t>());
    for (const auto& s : stage->segments) steps += static_cast<int64_t>(s.steps.size());
  }
  Json all = {{"version", runtime::kManifestVersion},
              {"model", p.model},
              {"target", p.target},
              {"ranks", runtime::mesh_size(p.mesh)},
              {"mesh", mesh},
              {"samples_per_step", p.samples_per_step},
              {"micro_batches", p.micro_batches},
              {"inputs", inputs},
              {"parameters", trained_elements(serial)},
              {"flops", model_flops(serial, p.samples_per_step)},
              {"steps", steps},
              {"memory_bytes", memory}};
  if (stages.size() > 1) all["stages"] = each;
  return all;
}

absl::Status check_manifest(const Json& manifest, const Bundle& bundle) {
  std::vector<const runtime::Program*> stages;
  for (const RankProgram& p : bundle.programs) stages.push_back(&p.program);
  const Json expected = derived_manifest(stages, bundle.serial);
  for (const auto& [key, value] : manifest.items()) {
    const bool known = expected.contains(key) || kTold.count(key) > 0 || kOfRun.count(key) > 0 || key == "files" ||
                       key == "sha256" ||  // who runs it without a certificate looks at that
                       key == "also";      // each plan is proved by itself
    if (!known) return differs(quote(runtime::kManifestName), ": expected no key ", quote(key));
  }
  for (const auto& [key, value] : expected.items()) {
    Json found = manifest.value(key, Json());
    if (key == "stages" && found.is_array()) {
      for (Json& stage : found) {
        if (stage.is_object()) stage.erase("mesh");  // told: the programs' own meshes are what counts
      }
    }
    PARTITA_RETURN_IF_ERROR(expect(key, value, found));
  }
  for (const std::string& key : kOfRun)
    PARTITA_RETURN_IF_ERROR(
        expect(key, bundle.run.is_object() ? bundle.run.value(key, Json()) : Json(), manifest.value(key, Json())));
  if (bundle.evaluation.has_value() != manifest.contains("evaluate"))
    return differs(quote(runtime::kManifestName), ": evaluate: expected it where there are evaluation programs alone");
  return absl::OkStatus();
}

}  // namespace partita::verifier
