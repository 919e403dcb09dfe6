// What a step of a program says that it computes. The compiler writes it beside the program; the verifier takes none of
// it on trust: a claim is where it looks, never what it believes.
#pragma once

#include <cstdint>
#include <vector>

namespace partita {

struct Claim {
  int32_t node = -1;        // of the rank's graph with composites expanded: what the step computes, or the last of the
                            // nodes that it computes; -1: none
  std::vector<int> values;  // per operand: a value of the graph that is no view, -1 where absent, below -1 a temporary
                            // of the code generator's. Value v of four dimensions with its channels last, [N, H, W, C]
                            // of [N, C, H, W], is v plus the graph's number of values, unless both are the same bytes.
                            // Empty: a collective over several values that lie side by side
};

}  // namespace partita
