// How much rounding may change a value, from samples of what it does: the reference evaluator computes each value once
// as it is, in double precision, and several times with every operand and result off by about as much as its type and
// the length of its sums round, and once rounded to the nearest number of each type. What these draws differ by is what
// is usual.
#pragma once

#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "ir/graph/graph.h"

namespace partita {

inline constexpr int kDraws = 5;

// Half the distance from 1 to the next number of a type; 0 of integers.
double unit_roundoff(DType dtype);

// What one node adds: shares of the operands' and of the results' own size.
struct NodeRounding {
  double operand = 0, result = 0;
};
// From the formula: K terms that are summed one after the other are off by sqrt(K) roundings of the type that kernels
// compute in, which is f32 for what has fewer bits.
NodeRounding node_rounding(const Graph& graph, const Node& node);

// Each number rounded to the nearest of the tensor's type. What is added to a number and is less than half its distance
// to the next is lost in all of them: a sum is off in the direction of that, which no rounding by chance is.
Tensor nearest(Tensor tensor);

// Each number off by `share` of itself, half to one and a half times, up or down.
Tensor perturbed(Tensor tensor, double share, std::mt19937& rng);

// A value as the reference evaluator has it, and drawn again with rounding. No draws: it is exactly that.
struct DrawnValue {
  Tensor value;
  std::vector<Tensor> draws;
  const Tensor& draw(size_t k) const { return draws.empty() ? value : draws[k]; }
};

// What is found where `expected` should be, in the elements that `filled` marks.
struct Deviation {
  bool beyond = false;            // more than rounding explains
  bool of_scale = false;          // no number is far off, but all are by one factor
  double found = 0, usual = 0;    // lengths of the difference, relative to the value's; `usual` is the limit
  double largest = 0;             // absolute
  std::vector<int64_t> elements;  // that are beyond
};
// `rounding`: how far a number of the found tensor may be off by its own rounding.
Deviation deviation(const DrawnValue& expected, const Tensor& found, const std::vector<bool>& filled, double rounding);

// How far a found tensor is off along a direction (a difference for each element, as a node's result that is off by a
// factor makes it), as a factor: what all elements say of it together. Numbers round up as often as down, so they say
// it far more exactly than one of them.
struct Shift {
  bool beyond = false;  // by more than rounding explains, and more than a constant's own rounding
  double found = 0, usual = 0;
  double weight = 0;  // so many times what is usual by chance
};
Shift shift_along(const DrawnValue& expected, const Tensor& found, const std::vector<bool>& filled, double rounding,
                  const std::vector<double>& direction);

}  // namespace partita
