// The part of a value that one loop nest writes.
#pragma once

#include <cstdint>
#include <vector>

namespace partita {

// Elements offset + sum of stride * index of a value in row-major order, index from 0 to size in each loop.
struct WrittenPart {
  struct Loop {
    int64_t size = 1, stride = 1;
    bool operator==(const Loop&) const = default;
  };
  int operand = 0;  // of the step, that the value is
  int64_t offset = 0;
  std::vector<Loop> loops;
  bool operator==(const WrittenPart&) const = default;
};

}  // namespace partita
