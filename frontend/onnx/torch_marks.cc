// An exported program names its inputs in a text, and the optimizer behind it what it computed values of:
//
//   p_scale: PARAMETER target='scale'              (the graph's ...ExportedProgram.graph_signature)
//   c_lifted_tensor_0: CONSTANT_TENSOR target='lifted_tensor_0'
//   exp: ['scale']                                 (that value's ...optimizer.folded_from)
//   view: ['clone', 'lifted_tensor_0']
//
// Here 'exp' is made of a parameter, which the file no longer has; 'view' is a constant.
#include "frontend/onnx/torch_marks.h"

#include <algorithm>

namespace partita {
namespace {

constexpr std::string_view kKind = "pkg.torch.export.graph_signature.InputSpec.kind";
constexpr std::string_view kFolded = "pkg.onnxscript.optimizer.folded_from";
constexpr std::string_view kSignature = "pkg.torch.export.ExportedProgram.graph_signature";

constexpr std::string_view kRule = "pkg.onnxscript.rewriter.rule_name";  // FuseBatchNormIntoConv, …IntoGemm

// Calls `take` with each text between two of these quotes.
template <typename Take>
void each_quoted(std::string_view text, char quote, Take take) {
  for (size_t from = text.find(quote); from != std::string_view::npos; from = text.find(quote, from)) {
    const size_t to = text.find(quote, ++from);
    if (to == std::string_view::npos) return;
    take(text.substr(from, to - from));
    from = to + 1;
  }
}

}  // namespace

TorchMarks::TorchMarks(const onnx::GraphProto& graph) {
  for (const onnx::ValueInfoProto& v : graph.value_info()) {
    for (const onnx::StringStringEntryProto& entry : v.metadata_props()) {
      if (entry.key() == kKind) kinds_[v.name()] = entry.value();
      if (entry.key() == kFolded) sources_[v.name()] = entry.value();
    }
  }
  for (const onnx::StringStringEntryProto& entry : graph.metadata_props()) {
    if (entry.key() != kSignature) continue;
    constexpr std::string_view kParameter = ": PARAMETER target=";
    const std::string_view text = entry.value();
    for (size_t at = text.find(kParameter); at != std::string_view::npos; at = text.find(kParameter, at)) {
      at += kParameter.size();
      each_quoted(text.substr(at, text.find('\n', at) - at), '\'', [&](auto name) { parameters_.insert(name); });
    }
  }
}

void TorchMarks::mark(OnnxTensor& tensor) const {
  if (const auto kind = kinds_.find(tensor.name); kind != kinds_.end()) {
    tensor.parameter = kind->second == "PARAMETER";
    tensor.buffer = kind->second == "BUFFER" || kind->second == "CONSTANT_TENSOR";
    return;
  }
  const auto sources = sources_.find(tensor.name);
  if (sources == sources_.end() || parameters_.empty()) return;
  each_quoted(sources->second, '\'', [&](std::string_view name) {
    if (parameters_.contains(name)) tensor.computed_of.emplace_back(name);
  });
  tensor.buffer = tensor.computed_of.empty();
}

bool has_folded_norm(const onnx::NodeProto& node) {
  return std::ranges::any_of(node.metadata_props(), [](const onnx::StringStringEntryProto& entry) {
    return entry.key() == kRule && entry.value().find("FuseBatchNorm") != std::string::npos;
  });
}

}  // namespace partita
