#include "frontend/import/constant_weights.h"

#include <algorithm>
#include <memory>
#include <string_view>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
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

}  // namespace

std::optional<OnnxModel> with_constant_weights(const OnnxModel& model, const std::vector<std::string>& trainable,
                                               std::vector<std::string>& left) {
  absl::flat_hash_map<std::string, int> ranks;
  for (const OnnxNode& n : model.graph.nodes) {
    if (const auto tensor = floats_of(n)) ranks.emplace(n.outputs[0], tensor->type.rank());
  }
  absl::flat_hash_set<std::string> weights;
  for (const OnnxNode& n : model.graph.nodes) {
    for (size_t k = 0; k < n.inputs.size(); ++k) {
      const auto at = ranks.find(n.inputs[k]);
      if (at != ranks.end() && is_weight(n, k, at->second)) weights.insert(at->first);
    }
  }
  std::vector<OnnxTensor> moved;
  for (const OnnxNode& n : model.graph.nodes) {
    if (n.op != "Constant" || n.outputs.empty() || !weights.contains(n.outputs[0])) continue;
    if (matches_any(trainable, n.outputs[0])) {
      moved.push_back(*floats_of(n)), moved.back().name = n.outputs[0];
    } else if (!keeps_parameters_apart(model)) {
      left.push_back(n.outputs[0]);
    }
  }
  if (moved.empty()) return std::nullopt;
  OnnxModel out = model;
  absl::flat_hash_set<std::string> names;
  for (OnnxTensor& t : moved) names.insert(t.name), out.graph.initializers.push_back(std::move(t));
  std::erase_if(out.graph.nodes, [&](const OnnxNode& n) { return n.op == "Constant" && names.contains(n.outputs[0]); });
  return out;
}

}  // namespace partita
