// Binds a rank to its part of its host's cores.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "base/enum_names.h"
#include "runtime/communicate/collective.h"

namespace partita::runtime {

enum class BindMode { kAuto, kNone };

struct RankBinding {
  int threads = 1;   // that the rank is to have
  std::string said;  // for people: to what it is bound, or why it is not; empty: nothing is to be said
};

// Collective: all ranks call it, each from the thread that then starts its others, for they are bound alike. Of ranks
// that share a host, and that nobody has bound to different processors before, each is bound to its part of them
// (divide_cores.h); its threads are as many as that has processors, at most this rank's share of what the host's
// control groups pay for. `gpu`: the number of the rank's; -1: it has none. `communicator` may be null. Errors are the
// communicator's: a rank that cannot be bound says so.
absl::StatusOr<RankBinding> bind_rank(Communicator* communicator, BindMode mode, int gpu);

}  // namespace partita::runtime

template <>
inline constexpr auto partita::kEnumNames<partita::runtime::BindMode> = partita::name_table("auto", "none");
