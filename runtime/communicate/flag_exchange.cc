#include "runtime/communicate/flag_exchange.h"

#include "base/status.h"

namespace partita::runtime {

void FlagExchange::begin(const ExchangedFlags& mine) {
  flags_ = mine;
  if (communicator_ == nullptr || communicator_->size() == 1) return;
  CollectiveOp op;
  op.kind = CollectiveKind::kAllReduce;
  op.dtype = DType::kI64;
  op.reduce = ReduceOp::kMax;
  op.count = static_cast<int64_t>(flags_.size());
  op.output = flags_.data();
  op.label = "what the ranks say of the step";
  ticket_ = communicator_->start(std::move(op));
}

absl::StatusOr<ExchangedFlags> FlagExchange::end() {
  if (communicator_ != nullptr && communicator_->size() > 1) PARTITA_RETURN_IF_ERROR(communicator_->wait(ticket_));
  return flags_;
}

}  // namespace partita::runtime
