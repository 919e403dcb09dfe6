// What costs a kernel dearly where it is done over and over: calls, divisions and local memory within loops.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace partita::counts {

struct LoopFault {
  std::string kernel, instruction;  // "div.s64"
  int line = 0;                     // of the text
  bool innermost = false;           // its loop has none within
};

// Of all kernels of a text of PTX. Divisions that are an approximation and a product count as none.
absl::StatusOr<std::vector<LoopFault>> loop_faults(std::string_view ptx);

}  // namespace partita::counts
