// Kernels of a few lines for tests.
#pragma once

#include <gtest/gtest.h>

#include <bit>
#include <cstring>
#include <string>
#include <vector>

#include "base/cat.h"
#include "tests/ptx/launch.h"

namespace partita::ptx {

// A kernel `k` of two pointers, %rd1 and %rd2, with %r1 its thread's number, %r2 its block's; registers %p, %rs, %r,
// %rd, %f, %fd up to 63, and 4096 bytes of shared memory, `tile`.
inline std::string kernel_text(const std::string& body) {
  return cat(
      ".version 8.0\n.target sm_80\n.address_size 64\n.visible .entry k(.param .u64 a, .param .u64 b)\n{\n"
      ".reg .pred %p<64>; .reg .b16 %rs<64>; .reg .b32 %r<64>; .reg .b64 %rd<64>; .reg .f32 %f<64>; .reg .f64 "
      "%fd<64>;\n"
      ".shared .align 16 .b8 tile[4096];\n"
      "ld.param.u64 %rd1, [a]; ld.param.u64 %rd2, [b]; mov.u32 %r1, %tid.x; mov.u32 %r2, %ctaid.x;\n",
      body, "\nret;\n}\n");
}

struct Run1 {
  absl::Status status;
  Counters counters;
};

// Runs it with `a` and `b` as its memory.
template <typename A, typename B>
Run1 run_kernel(const std::string& body, std::vector<A>& a, std::vector<B>& b, Index3 threads = {32, 1, 1},
                Index3 blocks = {}, LaunchOptions options = {}) {
  Run1 made;
  auto module = Module::load(kernel_text(body));
  if (!module.ok()) return {module.status(), {}};
  auto program = (*module)->kernel("k");
  if (!program.ok()) return {program.status(), {}};
  auto pa = reinterpret_cast<uint64_t>(a.data()), pb = reinterpret_cast<uint64_t>(b.data());
  void* arguments[] = {&pa, &pb};
  made.status = launch(**module, **program, {blocks, threads, 0}, arguments,
                       {{pa, a.size() * sizeof(A)}, {pb, b.size() * sizeof(B)}}, options, &made.counters);
  return made;
}

}  // namespace partita::ptx
