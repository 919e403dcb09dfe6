#include "runtime/communicate/collective.h"

#include <zlib.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "base/cat.h"
#include "base/quote.h"
#include "base/status.h"
#include "runtime/communicate/exchanges.h"
#include "runtime/communicate/fold_numbers.h"

namespace partita::runtime {
namespace {

// Enough to tell bundles apart by accident; not a defence against forgery.
struct Digest {
  uint64_t length = 0;
  uint64_t fnv = 14695981039346656037ull;
  uint64_t crc = 0;
  bool operator==(const Digest&) const = default;
};

Digest digest_of(std::span<const std::byte> bytes) {
  Digest digest;
  digest.length = bytes.size();
  for (std::byte b : bytes) digest.fnv = (digest.fnv ^ static_cast<uint64_t>(b)) * 1099511628211ull;
  digest.crc = crc32_z(0, reinterpret_cast<const Bytef*>(bytes.data()), bytes.size());
  return digest;
}

template <typename Enum>
std::string_view name_of(Enum value) {
  return static_cast<size_t>(value) < enum_names<Enum>().size() ? enum_name(value) : "unknown";
}

}  // namespace

std::string_view collective_name(CollectiveKind kind) { return name_of(kind); }
std::string_view reduce_name(ReduceOp op) { return name_of(op); }

std::vector<CollectiveBuffers> buffers_of(const CollectiveOp& op) {
  std::vector<CollectiveBuffers> all = {{op.count, op.input, op.output}};
  all.insert(all.end(), op.more.begin(), op.more.end());
  return all;
}

BufferCounts buffer_counts(CollectiveKind kind, int64_t count, int64_t group_size) {
  switch (kind) {
    case CollectiveKind::kAllReduce:
    case CollectiveKind::kPermute:
      return {count, count};
    case CollectiveKind::kReduceScatter:
      return {group_size * count, count};
    case CollectiveKind::kAllGather:
      return {count, group_size * count};
    case CollectiveKind::kBroadcast:
    case CollectiveKind::kRecv:
      return {0, count};
    case CollectiveKind::kAllToAll:
      return {group_size * count, group_size * count};
    case CollectiveKind::kSend:
      return {count, 0};
    case CollectiveKind::kBarrier:
      break;
  }
  return {};
}

std::string describe(const CollectiveOp& op) {
  std::string text(collective_name(op.kind));
  if (!op.label.empty()) append(text, " ", quote(op.label));
  append(text, " (step ", op.step_id, ")");
  return text;
}

std::string describe_ranks(std::vector<int> ranks) {
  const bool one =
      std::adjacent_find(ranks.begin(), ranks.end(), std::not_equal_to<>()) == ranks.end() && !ranks.empty();
  return cat(one ? "rank " : "ranks ", fold_numbers(std::move(ranks)));
}

absl::Status Communicator::agree(std::string_view what, std::span<const std::byte> bytes) {
  const Digest mine = digest_of(bytes);
  std::vector<Digest> all(static_cast<size_t>(size()));
  PARTITA_RETURN_IF_ERROR(run({.kind = CollectiveKind::kAllGather,
                               .dtype = DType::kU8,
                               .count = sizeof(Digest),
                               .input = &mine,
                               .output = all.data(),
                               .label = cat("agreement on ", what)}));
  const std::vector<int> differ = minority(std::span<const Digest>(all));
  if (differ.empty()) return absl::OkStatus();
  std::vector<int> same;
  for (int rank = 0; rank < size(); ++rank) {
    if (!std::binary_search(differ.begin(), differ.end(), rank)) same.push_back(rank);
  }
  return absl::FailedPreconditionError(cat("the ranks disagree on ", quote(what), ": ", describe_ranks(differ),
                                           differ.size() == 1 ? " differs" : " differ", " from ", describe_ranks(same),
                                           "; give every rank the same one"));
}

}  // namespace partita::runtime
