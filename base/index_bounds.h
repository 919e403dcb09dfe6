// Which integers a graph input may hold: indices into a table, class labels.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>

namespace partita {

// From `low` up to, not including, `high`; and `mark`, which says "not counted" (PyTorch's ignore_index). A mark within
// the bounds says nothing: 0 stands for none.
struct IndexBounds {
  int64_t low = std::numeric_limits<int64_t>::min();
  int64_t high = std::numeric_limits<int64_t>::max();
  int64_t mark = 0;

  bool inside(int64_t v) const { return low <= v && v < high; }
  bool allows(int64_t v) const { return inside(v) || v == mark; }
  // Whether they rule anything out.
  bool known() const { return high != IndexBounds{}.high; }
  bool operator==(const IndexBounds&) const = default;
};

// What both allow. Of two marks the one stays that the other allows.
inline IndexBounds both(const IndexBounds& a, const IndexBounds& b) {
  return {std::max(a.low, b.low), std::min(a.high, b.high),
          b.allows(a.mark) && (a.mark != 0 || !a.allows(b.mark)) ? a.mark
          : a.allows(b.mark)                                     ? b.mark
                                                                 : 0};
}

}  // namespace partita
