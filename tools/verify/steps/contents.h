// What each byte of a rank's memory holds while its program runs, as values of its graph.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "runtime/program/program.h"

namespace partita::verifier {

// A range of bytes of a region.
struct Range {
  runtime::Region region = runtime::Region::kArena;
  int64_t begin = 0, end = 0;
  bool empty() const { return begin >= end; }
  bool overlaps(const Range& o) const { return region == o.region && begin < o.end && o.begin < end; }
  bool operator==(const Range&) const = default;
};
Range range_of(const runtime::Operand& operand, int64_t slot);

struct Content {
  int value = -1;     // of the graph; below -1: a temporary
  bool each = false;  // made for one micro-batch
  int64_t run = 0;    // that micro-batch
};

class Memory {
 public:
  // What lies in exactly this range; nullopt where that is not one value as it was written.
  std::optional<Content> at(const Range& range) const;
  // Whatever it overlaps is gone.
  void write(const Range& range, const Content& content);

  // Ranges that an asynchronous operation uses until its wait.
  void start(int operation, std::vector<Range> reads, std::vector<Range> writes);
  bool finish(int operation);
  // The operation that an access would disturb, or -1.
  int disturbed(const Range& range, bool write) const;
  // An operation that has not been waited for, or -1.
  int unfinished() const { return flights_.empty() ? -1 : flights_.front().operation; }

 private:
  struct Block {
    int64_t end = 0;
    Content content;
  };
  struct Flight {
    int operation = -1;
    std::vector<Range> reads, writes;
  };
  std::map<int64_t, Block> regions_[runtime::kRegions];
  std::vector<Flight> flights_;
};

}  // namespace partita::verifier
