// Training as a model file states it (ONNX training_info, ONNX Runtime artifacts): plain data for the passes that build
// the backward and update parts.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "ir/type/literal.h"

namespace partita {

// Parameters that one optimizer node updates.
struct OptimizerGroup {
  // "onnx_adam", "onnx_adagrad", "onnx_momentum": ai.onnx.preview.training version 1, to its letter. "ort_adamw":
  // com.microsoft AdamWOptimizer.
  std::string kind;
  // onnx_adam: alpha, beta, epsilon, norm_coefficient, norm_coefficient_post. onnx_adagrad: decay_factor, epsilon,
  // norm_coefficient. onnx_momentum: alpha, beta, norm_coefficient, nesterov (0 or 1). ort_adamw: alpha, beta, epsilon,
  // weight_decay, adam_mode, correct_bias.
  std::map<std::string, double> hyper;
  std::optional<double> learning_rate;  // R, where the file fixes it
  int64_t initial_step = 0;             // T before the first update
  bool step_counts = false;  // whether T is updated by the file (T + 1 after each update); else it stays initial_step
  std::vector<std::string> parameters;  // initializer names, in the node's order
  // Per parameter, the names of its state tensors: onnx_adam V, H; onnx_adagrad H; onnx_momentum V; ort_adamw momentum,
  // momentum of squares. They are states' names in the file (initializers), or made up where the file has none.
  std::vector<std::vector<std::string>> state_names;
  // Their first values, in the same order; absent: zeros.
  std::vector<std::vector<std::optional<Literal>>> state_initials;
};

struct TrainingSpec {
  std::string source;                   // "training_info" or "onnxruntime"
  std::string loss;                     // graph output that is the loss
  std::vector<std::string> parameters;  // trained ones, by the names of their states in the graph
  std::vector<OptimizerGroup> groups;
  std::string step_name;  // the file's name of T, where it is an initializer that the file updates
};

}  // namespace partita
