// A plan's layout in ONNX's own words (frontend/onnx/device_annotations.h).
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "tools/flow/plan.h"

namespace partita {

struct AnnotatedModel {
  int64_t nodes = 0;   // that have annotations
  int64_t unsaid = 0;  // tensors that lie as ONNX cannot say: padded
};

// Writes the model that was planned to `output`, with how each tensor lies on the devices under the layout, whose pins
// go along. InvalidArgument where the stages of a pipeline divide different things.
absl::StatusOr<AnnotatedModel> annotate_model(const Planning& planning, const Layout& layout,
                                              const std::string& output);

}  // namespace partita
