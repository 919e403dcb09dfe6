#include "runtime/communicate/transport.h"
#include "base/cat.h"

#include "fmt/format.h"
#include "runtime/communicate/collective.h"

namespace partita::runtime {
std::string describe(const Envelope& e, size_t bytes) {
  const auto kind = static_cast<CollectiveKind>(e.kind);
  std::string text(kind == CollectiveKind::kSend ? "a point-to-point message" : collective_name(kind));
  if (kind == CollectiveKind::kAllReduce || kind == CollectiveKind::kReduceScatter)
    append(text, " ", reduce_name(static_cast<ReduceOp>(e.reduce)));
  if (kind != CollectiveKind::kBarrier) {
    const bool known = e.dtype <= static_cast<uint8_t>(DType::kF64);
    append(text, " of ", e.count, " x ", known ? dtype_name(static_cast<DType>(e.dtype)) : "?");
  }
  return cat(text, " (number ", e.sequence, " of group ", fmt::format("{:016x}", e.group), ", step ", e.step_id,
             ", phase ", static_cast<int>(e.phase), " piece ", e.piece, ", ", bytes, " bytes)");
}

absl::Status mismatch_error(int peer, const Envelope& expected, size_t expected_bytes, const Envelope& got,
                            size_t got_bytes) {
  return absl::FailedPreconditionError(cat(
      "the ranks' operations do not match: rank ", peer, " is at ", describe(got, got_bytes), " where this rank is at ",
      describe(expected, expected_bytes), "; members of a group must issue the same operations in the same order"));
}

}  // namespace partita::runtime
