// What is under way with an object store, as those see it who wait for it.
#pragma once

#include <atomic>
#include <cstdint>

namespace partita::runtime {

// It outlives the store. From any thread.
struct Transfers {
  std::atomic<bool> give_up = false;  // once set, what is under way ends soon, Cancelled
  std::atomic<int64_t> moves = 0;     // counts bytes that moved, in pieces, and requests that were answered
};

// Of those that may be null.
inline bool gives_up(const Transfers* t) { return t != nullptr && t->give_up.load(); }
inline void moved(Transfers* t) {
  if (t != nullptr) t->moves.fetch_add(1, std::memory_order_relaxed);
}

}  // namespace partita::runtime
