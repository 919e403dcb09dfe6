// How a sum over ranks is shared out, with every back end that does it itself: a member adds up its slice of
// everybody's buffers, a piece at a time, and of an all-reduce all slices are gathered then.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "runtime/communicate/collective.h"

namespace partita::runtime {

// Of an all-reduce: up to here every rank gets all inputs and reduces for itself, with one message latency instead of
// two.
inline constexpr int64_t kSmallReduceBytes = 4096;

struct Slice {
  int64_t begin = 0, length = 0;  // elements
};
// Of `count` elements in `parts` slices that differ by one element at most.
Slice slice_of(int64_t count, int parts, int index);
std::vector<Slice> even_slices(int64_t count, int parts);
// `parts` of `count` elements each.
std::vector<Slice> equal_chunks(int64_t count, int parts);

// One buffer of a reduction: member j reduces slices[j] of everybody's `input`; this rank's results go to `output`.
struct Reduction {
  const std::byte* input;
  std::vector<Slice> slices;
  std::byte* output;

  const Slice& of(int member) const { return slices[static_cast<size_t>(member)]; }
};
// Of an all_reduce or reduce_scatter over `members`, of which this rank is `mine`.
std::vector<Reduction> reductions_of(const CollectiveOp& op, int members, int mine);

// Elements [begin, begin + length) of each member's slice of one buffer, as far as the slice goes.
struct Run {
  size_t buffer;
  int64_t begin, length;
  int64_t at;       // in the scratch memory of its round
  uint32_t number;  // of its messages

  int64_t length_of(const Slice& slice) const;
};
using Round = std::vector<Run>;

// Cuts all buffers, one after the other, into rounds of at most `piece` elements.
std::vector<Round> rounds_of(const std::vector<Reduction>& buffers, int64_t piece);

}  // namespace partita::runtime
