// Memory that the chunks of an interleaved stage take of the micro-batches in flight.
#pragma once

#include <cstdint>
#include <span>

namespace partita {

// `kept`: bytes that each chunk of a stage keeps of a micro-batch, in the order of the model; those of all
// micro-batches that are in flight, where so many go through `stages` stages: as divide_slots() has them.
double slot_bytes(std::span<const double> kept, int64_t stages, int64_t stage, int64_t micro_batches);

}  // namespace partita
