// The generated protobuf header, and the one bridge between protobuf functions and plain ones. Included by
// onnx_model.cc, onnx_schema.cc, export_weights.cc, device_annotations.cc and generate/graph_writer.cc alone.
#pragma once

#include "frontend/onnx/onnx_model.h"
#include "onnx/onnx_pb.h"

namespace partita {

// A function whose tensors lie in it (schemas' bodies).
absl::StatusOr<OnnxFunction> plain_function(onnx::FunctionProto& proto);

}  // namespace partita
