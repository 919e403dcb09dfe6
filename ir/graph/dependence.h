// What the values of a graph depend on: data, parameters, weights. A value depends on what any operand of its node
// depends on, through ops of every kind and in every segment.
#pragma once

#include <vector>

#include "ir/graph/graph.h"

namespace partita {

enum class Through { kAll, kFloats };

// For each value: whether it is, or is made of, one of `roots` (by value); with kFloats, through results of float types
// alone, as gradients flow.
std::vector<bool> depends_on(const Graph& graph, std::vector<bool> roots, Through through = Through::kAll);

// A state that takes memory and work like a trained parameter: one, or a frozen matrix of a float type (a vector or
// scalar that is not trained is a constant of its op).
bool is_weight(const Graph& graph, const State& state);

class Dependence {
 public:
  explicit Dependence(const Graph& graph);

  // On the batch: a data input.
  bool on_data(ValueId v) const { return data_[static_cast<size_t>(v)]; }
  // On a parameter, whatever lies between (a comparison, the choice of experts).
  bool on_parameter(ValueId v) const { return parameter_[static_cast<size_t>(v)]; }
  // On a parameter or a frozen matrix (is_weight).
  bool on_weight(ValueId v) const { return weight_[static_cast<size_t>(v)]; }
  // On a parameter through floats alone: it has a gradient, which leads to the parameter's.
  bool has_gradient(ValueId v) const { return gradient_[static_cast<size_t>(v)]; }
  // Made of parameters without data (transposed, cast), and of both.
  bool is_parameter_alone(ValueId v) const { return on_parameter(v) && !on_data(v); }
  bool is_activation(ValueId v) const { return on_parameter(v) && on_data(v); }

 private:
  std::vector<bool> data_, parameter_, weight_, gradient_;  // by value
};

}  // namespace partita
