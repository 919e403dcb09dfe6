// Cuts a part of a model that does not repeat into sections, blocks of one instance each.
#pragma once

#include <cstddef>
#include <vector>

namespace partita {

// A node of the part, in order.
struct SectionNode {
  bool product = false;   // a matrix product, convolution or attention
  double bytes = 0;       // of what it makes
  double open_bytes = 0;  // of values that later nodes read and that were made up to here, its own among them
};

// The end of each section, in order: all nodes are in one, each with two products or more. Where all are computed
// again, what is open between them is kept, and one section's values are made again at a time: the sum of both is
// least. Empty where there are too few products for sections to be worth while.
std::vector<size_t> cut_sections(const std::vector<SectionNode>& nodes);

}  // namespace partita
