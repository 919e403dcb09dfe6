#include "frontend/import/constant_weights.h"

#include <algorithm>
#include <iterator>
#include <memory>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "base/cat.h"
#include "frontend/import/constants_by_use.h"
#include "ir/recipe/recipe.h"

namespace partita {
namespace {

// A matrix that rows are multiplied with or taken of, a kernel, or a bias.
bool is_weight(const OnnxNode& reader, size_t k, int rank) {
  const std::string& op = reader.op;
  if (op == "Add") return rank == 1;
  if (op == "Gather") return k == 0 && rank > 1;
  if (op == "MatMul") return k == 1 && rank > 1;
  return (op == "Gemm" || op == "Conv" || op == "ConvTranspose") && (k == 1 || k == 2);
}

std::shared_ptr<const OnnxTensor> floats_of(const OnnxNode& node) {
  const OnnxAttribute* value = node.op == "Constant" && node.outputs.size() == 1 ? node.find("value") : nullptr;
  if (value == nullptr) return nullptr;
  const auto* tensor = std::get_if<std::shared_ptr<const OnnxTensor>>(&value->value);
  const bool floats = tensor != nullptr && is_float((*tensor)->type.dtype) && elements((*tensor)->type.shape) > 1;
  return floats ? *tensor : nullptr;
}

using Constants = absl::flat_hash_map<std::string, std::shared_ptr<const OnnxTensor>>;

Constants constants_of(const std::vector<OnnxNode>& nodes) {
  Constants constants;
  for (const OnnxNode& n : nodes) {
    if (auto tensor = floats_of(n)) constants.emplace(n.outputs[0], std::move(tensor));
  }
  return constants;
}

absl::flat_hash_set<std::string> weights_among(const Constants& constants, const std::vector<OnnxNode>& nodes) {
  absl::flat_hash_set<std::string> weights;
  for (const OnnxNode& n : nodes) {
    for (size_t k = 0; k < n.inputs.size(); ++k) {
      const auto at = constants.find(n.inputs[k]);
      if (at != constants.end() && is_weight(n, k, at->second->type.rank())) weights.insert(at->first);
    }
  }
  return weights;
}

}  // namespace

std::vector<std::string> weights_of_functions(const OnnxModel& model) {
  std::vector<std::string> names;
  if (keeps_parameters_apart(model)) return names;
  for (const OnnxFunction& f : model.functions) {
    for (const std::string& weight : weights_among(constants_of(f.nodes), f.nodes))
      names.push_back(cat(f.name, "/", weight));
  }
  std::ranges::sort(names);
  return names;
}

std::optional<OnnxModel> with_constant_weights(const OnnxModel& model, const std::vector<std::string>& trainable,
                                               std::vector<std::string>& left) {
  const bool apart = keeps_parameters_apart(model);
  if (apart && trainable.empty()) return std::nullopt;
  const Constants constants = constants_of(model.graph.nodes);
  absl::flat_hash_set<std::string> weights = weights_among(constants, model.graph.nodes);
  auto holds_weight = [&](const OnnxNode& n) {
    return n.op == "Constant" && n.outputs.size() == 1 && weights.contains(n.outputs[0]);
  };
  std::vector<OnnxTensor> moved;
  for (const OnnxNode& n : model.graph.nodes) {
    if (!holds_weight(n)) continue;
    const std::string& name = n.outputs[0];
    if (matches_any(trainable, name)) {
      moved.push_back(*constants.at(name)), moved.back().name = name;
    } else {
      if (!apart) left.push_back(name);
      weights.erase(name);
    }
  }
  if (moved.empty()) return std::nullopt;
  OnnxModel out = model;
  std::ranges::move(moved, std::back_inserter(out.graph.initializers));
  std::erase_if(out.graph.nodes, holds_weight);
  return out;
}

}  // namespace partita
