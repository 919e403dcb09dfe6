// Which float initializers are constants and not parameters, by their values.
#pragma once

#include <string_view>
#include <vector>

#include "frontend/onnx/onnx_model.h"

namespace partita {

// Largest float initializer that is no weight and becomes a constant of the graph rather than a state.
inline constexpr int64_t kMaxConstant = 65536;

// An attention mask: at least two values, each 0, -inf or below -1e4, with 0 and another one among them.
bool is_mask(const Literal& literal);
// One element under a name that an exporter made up ("val_64", "onnx::Mul_12", "17"): a scalar of the program. A
// parameter of one element has a name.
bool is_unnamed_scalar(const OnnxTensor& tensor);
// Of any size, under the name that PyTorch's exporters give a constant of the program ("/norm/Constant_2_output_0",
// "lifted_tensor_0"): other tools make initializers of them.
bool is_named_constant(std::string_view name);
// A table of sinusoidal positions, [..., positions, features]: pairs of a sine and a cosine (columns that follow each
// other, or halves or quarters of the columns), each of which turns by one angle from a row to the next. Learned tables
// are none.
bool is_sinusoidal(const OnnxTensor& tensor);
// Cosine and sine tables: pairs of one shape, rank >= 2, with x^2 + y^2 = 1 everywhere and a varying angle. One flag
// per tensor.
std::vector<bool> rotary_tables(const std::vector<OnnxTensor>& tensors);

}  // namespace partita
