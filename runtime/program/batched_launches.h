// Kernels of a device that are launched together: steps with the same generated code that do not depend on each other,
// such as the updates of all parameters.
//
//   1 update(a)   2 scale(x)   3 update(b)   4 copy x   5 update(x)      launches: {1, 3}, {2}, {4}, {5}
//
// Such a batched launch has one argument, the address of a table of 64-bit words in the device's memory: how many
// entries there are, and in how many halvings one of them is found; then for each step its first block, its points, and
// its operands' addresses.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "runtime/program/program.h"

namespace partita::runtime {

// Of a kernel step whose code is for batched launches: vectors of points in it, where its code asks for them.
inline constexpr const char* kBatchedParam = "points";

// [begin, end) of the steps of a segment that a device runs without anything else between them: kernels, and copies
// within its memory.
std::vector<std::pair<size_t, size_t>> device_runs(const Program& program, const ProgramSegment& segment);

// The launches of such a run, in order, each with the steps that it does (numbers in `steps`), by their order in the
// program. `kinds`: of each step; those of the same kind may be launched together, below 0: none. A step goes with the
// last launch of its kind where everything that it must come after comes before that launch; whether two steps must
// keep their order, their operands' memory tells, in each of the program's slots.
std::vector<std::vector<size_t>> batched_launches(std::span<const Step> steps, std::span<const int> kinds,
                                                  int64_t slots);

// Launches of generated code in one run of the schedule, as it is with batched launches, and steps, which they would be
// without.
struct LaunchCount {
  int64_t steps = 0, launches = 0;
};
LaunchCount count_launches(const Program& program);
// By the names of steps that have kBatchedParam.
std::vector<int> batched_kinds(std::span<const Step> steps);

inline constexpr int64_t kLaunchTableHeaderWords = 2;
inline constexpr int64_t launch_table_entry_words(int64_t operands) { return 2 + operands; }
// `addresses`: of the operands of all steps in turn. Their blocks are numbered through.
std::vector<int64_t> launch_table(std::span<const Step* const> steps, std::span<std::byte* const> addresses);

}  // namespace partita::runtime
