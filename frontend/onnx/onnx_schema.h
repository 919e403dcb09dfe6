// What the ONNX library knows about operators: versions, attributes, function bodies.
#pragma once

#include <optional>
#include <span>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "frontend/onnx/onnx_model.h"

namespace partita {

// The newest version of an operator set that the library has schemas for; 0 for a domain that it does not know.
int newest_opset(const std::string& domain);

// Whether `version` of the node's domain has this operator.
bool has_schema(const OnnxNode& node, int version);

// Checks the node's attributes (types) and its numbers of inputs and outputs against its schema, if it has one.
absl::Status check_against_schema(const OnnxNode& node, int version);

// The operator's function body for this use (input types matter to some; kInvalid: absent), with the schema's attribute
// defaults; nullopt where it has none.
absl::StatusOr<std::optional<OnnxFunction>> schema_function(const OnnxNode& node, int version,
                                                            std::span<const TensorType> input_types);

}  // namespace partita
