// Memory for one step by itself: its operands lie to one another as its program has them (a result over the operand
// that it overwrites), with drawn numbers in them and a margin around them that nothing may write.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/index_bounds.h"
#include "base/kinds.h"
#include "runtime/kernel/region_memory.h"
#include "runtime/program/program.h"

namespace partita {

// What floats are drawn; integers are small ones, and in kLarge and kNan any in their bounds.
enum class Draw : uint8_t {
  kOrdinary,  // in [-2, 2)
  kPositive,  // in [1/4, 4)
  kSmall,     // zeros of both signs, numbers without their leading one, and ordinary ones
  kLarge,     // infinities, large numbers, ordinary ones
  kNan,       // NaN, and ordinary ones
};

class TrialMemory {
 public:
  // ResourceExhausted where the machine has not that much.
  static absl::StatusOr<TrialMemory> allocate(const runtime::Step& step);
  // Bytes that a step's operands and their margins take, twice.
  static int64_t bytes(const runtime::Step& step);

  // Fills all operands, results too. One in `rare` numbers is special; `bounds`: of an operand's integers.
  void draw(Draw draw, uint64_t seed, int64_t rare, const std::vector<std::optional<IndexBounds>>& bounds);

  const std::vector<std::byte*>& now() const { return now_; }              // null for an operand that is absent
  const std::vector<const std::byte*>& before() const { return before_; }  // as it was drawn
  // As if these bytes had been drawn of an operand.
  void put(size_t operand, std::span<const std::byte> bytes);
  // Puts back what was drawn, so that written_beside() does not see it.
  void restore(size_t operand, int64_t from, int64_t bytes);
  // Where memory is another than was drawn: "byte 12 behind operand 3"; empty: nowhere.
  std::string written_beside() const;

 private:
  const runtime::Step* step_ = nullptr;
  runtime::RegionMemory memory_, drawn_;
  std::vector<int64_t> at_;  // of each operand in the memory; -1: absent
  std::vector<std::byte*> now_;
  std::vector<const std::byte*> before_;
};

}  // namespace partita
