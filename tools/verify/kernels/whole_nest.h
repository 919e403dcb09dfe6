// A nest as the proof walks it: its points are all of the product of its loops, and a loop can be made two.
#pragma once

#include <vector>

#include "ir/nest/affine.h"
#include "ir/nest/loop_nest.h"
#include "tools/verify/kernels/written_parts.h"

namespace partita::verifier {

// Whether the last row loop and the column loop are one long loop that was cut: every access steps through them as
// through one, and what is reduced over the columns is added up over the rows alone.
bool has_cut_columns(const LoopNest& nest);
// With that loop one again, up to where it is clipped. Of a nest that check_nest accepts.
LoopNest with_whole_columns(LoopNest nest);
// Makes loop `split.loop` two, in the nest and in `numbers` over its loops.
void split_loop(LoopNest& nest, std::vector<Affine>& numbers, const LoopSplit& split);

// The row-major number of a point among those of loops [begin, end).
Affine point_number(const LoopNest& nest, int begin, int end);
// The elements that a store writes; of a fold, of one unit's partial results.
WrittenPart part_of(const LoopNest& nest, const NestStore& store);
WrittenPart part_of(const LoopNest& nest, const NestFold& fold);
// Whether an access moves along the columns.
bool is_wide(const LoopNest& nest, const NestAccess& access);

}  // namespace partita::verifier
