#include "frontend/annotated_layout.h"

#include <algorithm>
#include <set>

#include "base/cat.h"
#include "base/quote.h"
#include "base/status.h"
#include "frontend/onnx/device_annotations.h"
#include "frontend/onnx/onnx_model.h"
#include "ir/recipe/pins.h"
#include "ir/yaml/yaml_document.h"

namespace partita {
namespace {

struct Names {
  std::set<std::string> weights, inputs;  // inputs: but the weights
};

Names names_of(const OnnxModel& model) {
  Names names;
  for (const OnnxTensor& t : model.graph.initializers) names.weights.insert(t.name);
  for (const OnnxValueInfo& in : model.graph.inputs) {
    if (!names.weights.contains(in.name)) names.inputs.insert(in.name);
  }
  return names;
}

// A tool that divides the model anew writes other annotations and may keep the file's metadata: pins that went along
// are then another layout's. Held against them is what a layout cannot have otherwise: its devices, its stages, and
// samples and positions in as many parts as some of its axes have ranks. (Weights have as many as divide their heads.)
absl::Status check_pins(const OnnxDevices& devices, const std::string& file, const PinRecipe& pin) {
  PARTITA_ASSIGN_OR_RETURN(const OnnxModel model, load_onnx_model(file));
  auto refuse = [&](const std::string& what) {
    return absl::InvalidArgumentError(
        cat(quote(file, 1000), ": its metadata (partita.pins) and its device annotations are of two layouts: ", what,
            "; take the metadata out to go by the annotations"));
  };
  int64_t ranks = pin.axis("pipeline").value_or(1);
  std::set<int64_t> ways = {1};
  for (const char* axis : {"data", "tensor", "context", "expert"}) {
    const int64_t size = pin.axis(axis).value_or(1);
    ranks *= size;
    for (const int64_t before : std::set<int64_t>(ways)) ways.insert(before * size);
  }
  if (ranks != devices.devices)
    return refuse(cat("pins of ", ranks, " ranks, a configuration of ", devices.devices, " devices"));
  const int64_t stages = std::max<int64_t>(1, static_cast<int64_t>(devices.tensors.size()));
  if (stages != pin.axis("pipeline").value_or(1))
    return refuse(cat("pins of ", pin.axis("pipeline").value_or(1), " stages, nodes of ", stages));
  const Names names = names_of(model);
  for (const auto& stage : devices.tensors) {
    for (const auto& [name, s] : stage) {
      if (names.inputs.contains(name) && !ways.contains(s.shards()))
        return refuse(cat(quote(name), " is in ", s.shards(), " parts, which no axes of the pins have together"));
    }
  }
  return absl::OkStatus();
}

// What others wrote, as far as pins can say it.
absl::Status infer_pins(const OnnxDevices& devices, const std::string& file, Recipe& recipe) {
  PARTITA_ASSIGN_OR_RETURN(const OnnxModel model, load_onnx_model(file));
  const auto [weights, inputs] = names_of(model);
  auto refuse = [&](const std::string& tensor, const std::string& what) {
    return absl::InvalidArgumentError(cat(quote(file, 1000), ": the sharding of ", quote(tensor), ": ", what));
  };
  int64_t data = 1, tensor = 1;
  auto agree = [&](int64_t& axis, int64_t shards, const std::string& name) {
    if (axis != 1 && axis != shards)
      return refuse(name, cat("expected ", axis, " shards, as of those before it, found ", shards));
    axis = shards;
    return absl::OkStatus();
  };
  std::vector<std::string> pins;
  for (const auto& stage : devices.tensors) {
    for (const auto& [name, s] : stage) {
      const bool weight = weights.contains(name);
      if (s.shards() == 1 || (!weight && !inputs.contains(name))) continue;
      if (s.dims.size() != 1 || (!weight && s.dims[0].first != 0))
        return refuse(name, weight ? "expected one dimension of a weight that is split, found several"
                                   : "expected the samples of an input, its dimension 0, found another that is split");
      PARTITA_RETURN_IF_ERROR(agree(weight ? tensor : data, s.shards(), name));
      // Parts within parts (the heads of queries, keys and values in one weight) are the tensor axis's own choice.
      const auto& [axis, parts] = s.dims[0];
      if (weight && parts[0].shards == s.shards()) pins.push_back(cat(name, "={dim", axis, ": tensor}"));
    }
  }
  const int64_t stages = std::max<int64_t>(1, static_cast<int64_t>(devices.tensors.size()));
  if (data * tensor * stages != devices.devices)
    return absl::InvalidArgumentError(cat(quote(file, 1000), ": ", data, " parts of the samples x ", tensor,
                                          " of the weights x ", stages, " stages: expected the configuration's ",
                                          devices.devices, " devices"));
  pins.insert(pins.begin(), {cat("data=", data), cat("tensor=", tensor), cat("pipeline=", stages)});
  for (const std::string& pin : pins) PARTITA_RETURN_IF_ERROR(apply_pin(recipe, pin));
  recipe.pin.cuts.clear();
  int64_t before = 0;
  for (const OnnxNode& node : model.graph.nodes) {
    const auto at = node.outputs.empty() ? devices.stages.end() : devices.stages.find(node.outputs[0]);
    if (at == devices.stages.end() || at->second != before + 1 || node.name.empty()) continue;
    recipe.pin.cuts.push_back(node.name);
    before = at->second;
  }
  if (before + 1 != stages) recipe.pin.cuts.clear();  // nodes without names: stages are balanced
  return absl::OkStatus();
}

}  // namespace

absl::Status apply_like(Recipe& recipe, const std::string& like) {
  if (!like.ends_with(".onnx")) return apply_preset(recipe, like);
  PARTITA_ASSIGN_OR_RETURN(const OnnxDevices devices, read_device_annotations(like));
  if (devices.pins.empty()) return infer_pins(devices, like, recipe);
  PARTITA_ASSIGN_OR_RETURN(const auto root, parse_yaml(devices.pins));
  PinRecipe said;
  PARTITA_RETURN_IF_ERROR(with_context(parse_pins(*root, "pin", said), quote(like, 1000)));
  if (said.stages.empty()) PARTITA_RETURN_IF_ERROR(check_pins(devices, like, said));
  return parse_pins(*root, "pin", recipe.pin);
}

}  // namespace partita
