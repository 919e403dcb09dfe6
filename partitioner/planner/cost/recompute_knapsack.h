// Which blocks of a stage are computed again so that it fits its device, at least cost in time.
#pragma once

#include <array>
#include <optional>
#include <vector>

#include "ir/recipe/recipe.h"

namespace partita {

// Blocks of a kind, and what a mode frees and costs of each: bytes, seconds of a micro-batch.
struct RecomputeItems {
  struct Mode {
    double bytes = 0, seconds = 0;
  };
  int count = 0;
  std::array<Mode, kRecomputeModes> modes{};  // bytes 0: no choice
};

// Blocks of each kind with each mode (kNone for the rest), which free `bytes` or more; nullopt where all of them free
// less. Seconds are least where one mode is enough, and close to that else: each step takes the mode that costs least a
// byte, and what turns out not to be needed is given back.
std::optional<std::vector<std::array<int, kRecomputeModes>>> choose_recompute(const std::vector<RecomputeItems>& items,
                                                                              double bytes);

}  // namespace partita
