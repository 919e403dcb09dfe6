// Values that several steps write a part of each: whether the parts together are the value.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <utility>
#include <vector>

namespace partita::verifier {

// Elements offset + sum of stride * index of a value in row-major order, index from 0 to size in each loop.
struct WrittenPart {
  struct Loop {
    int64_t size = 1, stride = 1;
    bool operator==(const Loop&) const = default;
  };
  int64_t offset = 0;
  std::vector<Loop> loops;
  bool operator==(const WrittenPart&) const = default;
};

class WrittenParts {
 public:
  // A step writes a part of `value`, or, of none, all of it; `size`: the value's elements.
  void write(int value, int64_t size, const WrittenPart* part);
  // Whether the part is all of `size` elements, each once.
  bool is_all(int64_t size, const WrittenPart& part) { return tile({size, {part}}); }
  // False where parts were written of the value since it was last whole, and they lack an element, have one twice or
  // one that is outside.
  bool is_whole(int value);
  // A value that is not whole; -1 where there is none.
  int broken();

 private:
  struct Written {
    int64_t size = 0;
    std::vector<WrittenPart> parts;
  };
  bool tile(const Written& written);

  std::map<int, Written> open_;
  // Parts that have been found to tile: {size, then each part's numbers}.
  std::set<std::vector<int64_t>> known_;
};

}  // namespace partita::verifier
