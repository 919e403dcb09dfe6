// What the reduction kernels are given: the ranks' pieces, in the order of their ranks.
#pragma once

#include <cstdint>

struct ReduceArguments {
  const void* sources[16];
  void* output;
  int64_t count;  // elements
  int32_t ranks;
  int32_t reduction;  // 0: sum, 2: max, 3: min, as ncclRedOp_t has them
};
