// What torch.onnx.export(dynamo=True) says of the initializers and nodes that it writes, in metadata beside them.
#pragma once

#include <string>
#include <string_view>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "frontend/onnx/onnx_model.h"
#include "frontend/onnx/onnx_proto.h"

namespace partita {

// Each initializer's kind in the exported program (PARAMETER, BUFFER, CONSTANT_TENSOR), and of one that the exporter
// computed, the names of what it computed it of. Refers to the graph's strings.
class TorchMarks {
 public:
  explicit TorchMarks(const onnx::GraphProto& graph);

  // `parameter`, `buffer` and `computed_of` of an initializer.
  void mark(OnnxTensor& tensor) const;

 private:
  absl::flat_hash_map<std::string_view, std::string_view> kinds_, sources_;
  absl::flat_hash_set<std::string_view> parameters_;  // of the program, whether the file still has them or not
};

// Whether its optimizer made this node of a convolution or a product and the batch norm behind it.
bool has_folded_norm(const onnx::NodeProto& node);

}  // namespace partita
