// Guards fusion against computing the same thing many times.
#pragma once

#include "codegen/fuse/nest_values.h"

namespace partita {

// Why a nest would compute a node of its group more often than once: at two places, or again and again along loops that
// it does not vary along. nullptr where it does not, or where that costs next to nothing.
const char* repeated_work(const CodeGraph& code, NestValues& values);

}  // namespace partita
