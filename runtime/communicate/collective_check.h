// Self-test of a communicator: every operation against a direct computation, bit for bit.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "base/dtype.h"
#include "runtime/communicate/collective.h"

namespace partita::runtime {

// Elements of long buffers. Under sanitizers each takes ten times as long.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr int64_t kLongBuffer = 4000, kLongestBuffer = 100003;
#else
inline constexpr int64_t kLongBuffer = 40000, kLongestBuffer = 1000003;
#endif

struct CollectiveCheck {
  std::vector<DType> dtypes = {DType::kF32, DType::kF64, DType::kBF16, DType::kF16,
                               DType::kI32, DType::kI64, DType::kU8};
  std::vector<int64_t> counts = {0, 1, 5, 1000, kLongBuffer};  // elements per rank and operation
};

// Collective over the world: all operations x dtypes x counts in the world, the world reversed, its even ranks, and its
// first and last rank. Aborted, naming operation and element, for a wrong result; else the communicator's own error.
absl::Status check_collectives(Communicator& communicator, const CollectiveCheck& check = {});

}  // namespace partita::runtime
