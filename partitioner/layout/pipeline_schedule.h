// The schedules of a pipeline as tables: what a stage runs, one operation after the other, and which of its memory
// slots each micro-batch has.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "ir/recipe/recipe.h"

namespace partita {

enum class StageWork : uint8_t {
  kForward,
  kBackward,  // without the gradients of weights where those run apart
  kWeight,    // the gradients of weights
};

// A part of one micro-batch's work. A slot holds what a micro-batch leaves in one chunk from its first forward to its
// last backward operation there.
struct StageStep {
  StageWork kind;
  int chunk = 0;
  int64_t micro_batch = 0;
  int64_t slot = 0;
  int turn = 0;  // of the pass, where micro-batches take turns in it
  bool operator==(const StageStep&) const = default;
};

// The order of one stage's operations. GPipe: all forwards, then all backwards. 1F1B: as many forwards ahead as stages
// follow, then one backward for each forward (Narayanan et al., PipeDream). Interleaved: the same over chunks, in
// groups of `stages` micro-batches (Narayanan et al., Efficient Large-Scale Training); micro-batches are a multiple of
// the stages. Zero-bubble: 1F1B with the gradients of weights put off into the gaps (Qi et al., ZB-H1).
std::vector<StageStep> stage_order(PipelineSchedule schedule, int64_t stages, int64_t stage, int64_t chunks,
                                   int64_t micro_batches);

// The order for groups of micro-batches, whose numbers are those of `groups`, as that of micro-batches: those of a
// group take turns, so many in each pass, and what one has sent travels while the others compute. The last group may be
// smaller. The slot of a group's n-th micro-batch is n more than a multiple of `group`.
std::vector<StageStep> take_turns(const std::vector<StageStep>& groups, int64_t group, int turns,
                                  int64_t micro_batches);

// Slots that the order uses: the most micro-batch chunks in flight at once.
int64_t slots_of(const std::vector<StageStep>& order);

// Slots [first, first + count) for some of a stage's chunks, each of so many bytes, from byte `begin` of all slots on.
struct SlotClass {
  int64_t first = 0, count = 0, bytes = 0, begin = 0;
};

// Renumbers an order's slots where chunks that leave more than others, as the one with the logits
// does, should have slots of their own: all slots together take the least memory so. `bytes`: what a micro-batch leaves
// in each chunk; `group`: as in take_turns(). Returns each chunk's class; larger slots come first.
std::vector<SlotClass> divide_slots(std::vector<StageStep>& order, std::span<const int64_t> bytes, int64_t group = 1);

}  // namespace partita
