// The generated protobuf header, and the one bridge between protobuf functions and plain ones. Included by
// onnx_model.cc, onnx_schema.cc, export_weights.cc, device_annotations.cc and generate/graph_writer.cc alone.
#pragma once

#include "frontend/onnx/onnx_model.h"
#include "onnx/onnx_pb.h"

namespace partita {

// A function whose tensors lie in it (schemas' bodies).
absl::StatusOr<OnnxFunction> plain_function(onnx::FunctionProto& proto);

// A file to be written again with changes; what load_onnx_model() refuses is not looked for. InvalidArgument, NotFound.
absl::StatusOr<onnx::ModelProto> read_model_proto(const std::string& path);

}  // namespace partita
