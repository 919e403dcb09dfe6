// What a node of a strict program computes does not depend on what shares its kernel.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>

#include "tests/codegen/support/interpreter.h"

namespace partita {

// A graph's results are, to the bit, those of kernels of one node each. (All NaN are one.)
inline void expect_bits_of_single_nodes(const Graph& graph, const CompareOptions& strict) {
  CompareOptions of_single = strict;
  of_single.target.fuse = false;
  int fused = 0, single = 0;
  const std::vector<Tensor> together = computed(graph, strict, &fused), alone = computed(graph, of_single, &single);
  EXPECT_LE(fused, single);
  ASSERT_EQ(together.size(), alone.size());
  for (size_t k = 0; k < alone.size(); ++k) {
    EXPECT_TRUE(std::equal(together[k].f.begin(), together[k].f.end(), alone[k].f.begin(), alone[k].f.end(),
                           [](double a, double b) {
                             return std::bit_cast<uint64_t>(a) == std::bit_cast<uint64_t>(b) || (a != a && b != b);
                           }))
        << "result " << k;
    EXPECT_EQ(together[k].i, alone[k].i);
  }
}

}  // namespace partita
