// A scheduled nest as an LLVM function of the runtime's KernelFunction type: works on units [begin, end), vectorized
// along its lanes.
//
// Sums run in a fixed number of vector accumulators that are combined in a fixed order, so a result depends on the nest
// and the vector length alone.
#pragma once

#include <string>

#include "ir/nest/loop_nest.h"
#include "llvm/IR/Module.h"

namespace partita {

struct VectorTarget {
  int bytes = 64;  // of a vector register
};

llvm::Function* emit_nest(llvm::Module& module, const LoopNest& nest, const std::string& name,
                          const VectorTarget& target);

}  // namespace partita
