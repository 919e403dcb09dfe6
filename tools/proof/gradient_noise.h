// An optimizer that makes steps of its own size out of gradients near zero turns the sign of a few of them with any
// rounding, and which ones no run from other first values tells. So the rounding of gradients is measured, and put on
// gradients: what it can turn, then turns.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "ir/graph/graph.h"

namespace partita {

// A serial training graph whose update can be given other gradients.
struct GradientProbe {
  // Each float value that the update reads of the forward and backward parts is an output "grad/NAME", and comes to the
  // update with the frozen state NAME added to it, which is zero.
  Graph graph;
  std::vector<std::string> names;
};
GradientProbe probe_gradients(const Graph& serial);

// How far the elements of a gradient are off by rounding, from the gradient and the same with other rounding: the
// root mean square of the differences in a row of the last dimension (of `columns` elements), as single elements may
// agree by chance. An element that is zero both times is not rounded.
std::vector<double> gradient_noise(const std::vector<double>& gradient, const std::vector<double>& other,
                                   int64_t columns);

}  // namespace partita
