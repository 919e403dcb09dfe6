// What a product's formula says of its sizes: those that the planner prices it by.
#pragma once

#include <vector>

#include "ir/op/formula.h"

namespace partita {

// Sizes of a contraction, with the factors of each.
struct ContractionSizes {
  double batch = 1, m = 1, n = 1, k = 1;
  std::vector<int> of[4];   // b, m, n, k
  bool windows = false;     // the first operand is summed over windows
  double chosen = 0;        // matrices that the second operand's are chosen from, one for each row; 0: none are
  double from = 1, to = 1;  // then: positions of the first operand and of the result
};

// Which factors of a two-operand product are batch, m (first operand), n (second) and k (summed). `by_index`: a third
// operand says which matrix of the second one each row is multiplied with.
ContractionSizes contraction(const Formula& formula, double flops, bool by_index);

}  // namespace partita
