// Loop nests as text, both ways. Texts are equal exactly where code is; what is read prints the same text again.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "ir/nest/loop_nest.h"

namespace partita {

// A kernel of generated code, and the nest that it was made from.
struct KernelNest {
  std::string name;      // its symbol
  bool host = false;     // of a GPU's program: it runs on the host
  bool batched = false;  // a GPU's: for several launches at once (runtime/program/batched_launches.h)
  LoopNest nest;
};

// The kernels of a program in the order in which they were compiled, and by what.
struct KernelNests {
  std::string compiler;  // its name and version
  std::string target;    // the processor and its features, as the compiler is told
  std::vector<KernelNest> kernels;
};

std::string_view scalar_name(ScalarOp op);
std::string_view reduce_name(ReduceKind kind);

// The text that loop_nest.h shows.
std::string to_string(const LoopNest& nest);

//   # compiler LLVM 16.0.6
//   # target x86-64-v4
//   kernel k0
//   rows [2048] columns [768]: f32 -> f32
//   …
std::string print_kernels(const KernelNests& nests);
// DataLoss "line N: …" where a line is not as print_kernels writes it.
absl::StatusOr<KernelNests> parse_kernels(std::string_view text);

}  // namespace partita
