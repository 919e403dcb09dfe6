// An ONNX file as plain data. onnx_model.cc, onnx_types.cc and onnx_schema.cc (and the writer in generate/) are the
// only sources that see a protobuf type; the rest of the compiler reads these structs. Weights are not copied: a
// tensor's literal borrows the parsed file's bytes or a mapped external data file.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "ir/graph/graph.h"

namespace partita {

inline constexpr int kNewestIrVersion = 14;
inline constexpr int kOldestOpset = 7;

struct OnnxGraph;

struct OnnxTensor {
  std::string name;
  int element = 0;  // TensorProto.DataType, for messages
  TensorType type;  // dtype kInvalid where the element type is none of ours (strings, complex, 4- and 8-bit floats)
  std::optional<Literal> literal;
  std::optional<FileRange> file;  // external data whose file is not there: the values are not known yet
  // By PyTorch's exporter (torch_marks.h): a parameter of the module; a buffer, or a constant of its program; the
  // parameters that the exporter computed it of.
  bool parameter = false, buffer = false;
  std::vector<std::string> computed_of;
};

// What an attribute of another kind (sparse tensor, type) becomes; nothing reads it.
struct OnnxOpaque {};

struct OnnxAttribute {
  std::string name;
  std::string reference;  // name of the enclosing function's attribute that gives the value
  std::variant<OnnxOpaque, int64_t, float, std::string, std::vector<int64_t>, std::vector<float>,
               std::vector<std::string>, std::shared_ptr<const OnnxTensor>, std::shared_ptr<const OnnxGraph>>
      value;
};

struct OnnxNode {
  std::string op, domain, overload, name;    // domain "ai.onnx" is written ""
  std::vector<std::string> inputs, outputs;  // "" where absent
  std::vector<OnnxAttribute> attributes;
  bool folded_norm = false;  // PyTorch's exporter multiplied a batch norm into its weights (torch_marks.h)

  const OnnxAttribute* find(std::string_view attribute) const {
    for (const OnnxAttribute& a : attributes) {
      if (a.name == attribute) return &a;
    }
    return nullptr;
  }
};

struct OnnxDimension {
  int64_t size = -1;  // -1: symbolic or unknown
  std::string symbol;
};

struct OnnxValueInfo {
  enum class Kind { kNone, kTensor, kOther };
  std::string name;
  Kind kind = Kind::kNone;
  int element = 0;
  DType dtype = DType::kInvalid;
  std::optional<std::vector<OnnxDimension>> shape;
};

struct OnnxGraph {
  std::string name;
  std::vector<OnnxNode> nodes;
  std::vector<OnnxTensor> initializers;
  std::vector<OnnxValueInfo> inputs, outputs;
};

using OnnxOpsets = std::map<std::string, int>;  // domain -> version

struct OnnxFunction {
  std::string name, domain, overload;
  std::vector<std::string> inputs, outputs;
  std::vector<OnnxNode> nodes;
  std::vector<OnnxAttribute> defaults;  // attributes with a default value
  OnnxOpsets opsets;
};

using OnnxBindings = std::vector<std::pair<std::string, std::string>>;

// ModelProto.training_info, one entry.
struct OnnxTrainingInfo {
  OnnxGraph initialization, algorithm;
  OnnxBindings initialization_binding, update_binding;
};

struct OnnxModel {
  std::string path;
  int64_t ir_version = 0;
  std::string producer, producer_version;
  OnnxOpsets opsets;
  OnnxGraph graph;
  std::vector<OnnxFunction> functions;
  std::vector<OnnxTrainingInfo> training;
};

// Reads and checks a file: wire format, IR version, opset versions, tensor sizes, external data ranges. Every error is
// one line and names the file. InvalidArgument (damaged or unsupported), NotFound.
absl::StatusOr<OnnxModel> load_onnx_model(const std::string& path);
// The same for bytes in memory; `path` names them in messages and its folder holds the external data.
absl::StatusOr<OnnxModel> parse_onnx_model(std::string_view bytes, const std::string& path);
// A serialized TensorProto.
absl::StatusOr<OnnxTensor> parse_onnx_tensor(std::string_view bytes, const std::string& path);

// "FLOAT", "STRING", … of a TensorProto.DataType.
std::string onnx_element_name(int element);
// kInvalid for an element type that the IR lacks.
DType dtype_of_onnx(int element);
int onnx_of_dtype(DType dtype);

}  // namespace partita
