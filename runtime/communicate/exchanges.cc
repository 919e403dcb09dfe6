#include "runtime/communicate/exchanges.h"

#include "base/cat.h"
#include "base/status.h"

namespace partita::runtime {
namespace {

constexpr char kOfAnother[] = "partita/of another rank";

bool is_alone(const Communicator* communicator) { return communicator == nullptr || communicator->size() == 1; }

}  // namespace

absl::Status all_reduce(Communicator* communicator, std::span<int64_t> values, ReduceOp reduce,
                        std::string_view label) {
  if (is_alone(communicator) || values.empty()) return absl::OkStatus();
  CollectiveOp op;
  op.kind = CollectiveKind::kAllReduce;
  op.dtype = DType::kI64;
  op.reduce = reduce;
  op.count = static_cast<int64_t>(values.size());
  op.output = values.data();
  op.label = label;
  return communicator->run(std::move(op));
}

absl::StatusOr<std::vector<int64_t>> all_gather(Communicator* communicator, std::span<const int64_t> values,
                                                std::string_view label) {
  std::vector<int64_t> all(values.begin(), values.end());
  if (is_alone(communicator) || values.empty()) return all;
  all.resize(values.size() * static_cast<size_t>(communicator->size()));
  CollectiveOp op;
  op.kind = CollectiveKind::kAllGather;
  op.dtype = DType::kI64;
  op.count = static_cast<int64_t>(values.size());
  op.input = values.data();
  op.output = all.data();
  op.label = label;
  PARTITA_RETURN_IF_ERROR(communicator->run(std::move(op)));
  return all;
}

absl::Status broadcast(Communicator* communicator, GroupId group, DType dtype, int64_t count, void* data, int root,
                       std::string_view label) {
  CollectiveOp op;
  op.kind = CollectiveKind::kBroadcast;
  op.group = group;
  op.dtype = dtype;
  op.count = count;
  op.output = data;
  op.root = root;
  op.label = label;
  return communicator->run(std::move(op));
}

absl::Status broadcast_text(Communicator* communicator, std::string& text, std::string_view label, int root) {
  if (is_alone(communicator)) return absl::OkStatus();
  int64_t length = static_cast<int64_t>(text.size());
  PARTITA_RETURN_IF_ERROR(broadcast(communicator, kWorldGroup, DType::kI64, 1, &length, root, label));
  text.resize(static_cast<size_t>(length));
  if (length == 0) return absl::OkStatus();
  return broadcast(communicator, kWorldGroup, DType::kU8, length, text.data(), root, label);
}

absl::Status all_ok(Communicator* communicator, const absl::Status& mine, std::string_view label) {
  if (is_alone(communicator)) return mine;
  constexpr int64_t kCodes = 64;  // more than absl::StatusCode has
  int64_t failed = mine.ok() ? -1 : communicator->rank() * kCodes + static_cast<int64_t>(mine.code());
  absl::Status heard = all_reduce(communicator, {&failed, 1}, ReduceOp::kMax, label);
  if (!heard.ok()) return mine.ok() ? heard : mine;  // another rank may have left because of it
  if (failed < 0) return mine;
  const int64_t rank = failed / kCodes;
  std::string why(mine.message());
  heard = broadcast_text(communicator, why, label, static_cast<int>(rank));
  // Nobody leaves before all have heard: who leaves ends what the others are at.
  int64_t left = 0;
  all_reduce(communicator, {&left, 1}, ReduceOp::kMax, label).IgnoreError();
  if (!mine.ok()) return mine;
  absl::Status theirs(static_cast<absl::StatusCode>(failed % kCodes),
                      cat("rank ", rank, " failed: ", label, heard.ok() ? cat(": ", why) : ""));
  theirs.SetPayload(kOfAnother, absl::Cord());
  return theirs;
}

bool is_of_another(const absl::Status& status) {
  return absl::IsUnavailable(status) || status.GetPayload(kOfAnother).has_value();
}

}  // namespace partita::runtime
