// Steps that communicate: what leaves, what arrives, and what is under way in between.
#include <utility>

#include "base/status.h"
#include "tools/verify/layout/mismatch.h"
#include "tools/verify/steps/check_step.h"
#include "tools/verify/steps/step_checker.h"

namespace partita::verifier {

using runtime::Step;

absl::Status StepChecker::start_collective(const Step& step) {
  const Claim& claim = claims_[step.id];
  if (claim.node < 0) return differs("it claims no node");
  const Node& node = g_.nodes[claim.node];
  PARTITA_RETURN_IF_ERROR(check_collective(g_, node, step, program_));
  ++report_.collectives;
  if (node.attrs.has("in_flight")) return send(step, node);
  std::vector<Range> reads, writes;
  std::vector<ValueId> outputs;
  if (claim.values.empty()) {
    PARTITA_RETURN_IF_ERROR(read_bundle(step, node, reads, writes));
  } else {
    PARTITA_RETURN_IF_ERROR(check_apart(step, step.name == "all_reduce"));
    PARTITA_RETURN_IF_ERROR(check_operands(step, node));
    for (size_t k = 0; k < step.operands.size(); ++k)
      (k < node.inputs.size() ? reads : writes).push_back(range(step, k));
  }
  for (size_t k = 0; k < writes.size(); ++k) {
    PARTITA_RETURN_IF_ERROR(check_segment(storage_[node.outputs[k]]));
    PARTITA_RETURN_IF_ERROR(m_.write_range(writes[k], storage_[node.outputs[k]]));
  }
  const int flight = m_.flight(static_cast<int>(step.id), entry_.slot);
  m_.memory().start(flight, std::move(reads), std::move(writes));
  started_.insert(flight);
  if (kind_ == Segment::kPrologue) started_once_[static_cast<int>(step.id)] = flight;
  return absl::OkStatus();
}

// The message leaves from the next place of its outbox. The one that was there before is waited for.
absl::Status StepChecker::send(const Step& step, const Node& node) {
  PARTITA_RETURN_IF_ERROR(check_count(step));
  const auto number = step.params.find("outbox");
  if (number == step.params.end() || step.inputs != 1 || step.operands.size() != 2 ||
      step.operands[1].shape[0] != node.attrs.i("in_flight"))
    return differs("expected an outbox of ", node.attrs.i("in_flight"), " places, found another");
  const ValueId v = node.inputs[0];
  const runtime::Operand &message = step.operands[0], &box = step.operands[1];
  if (message.dtype != g_.type(v).dtype || message.shape != g_.type(v).shape)
    return differs("operand 0: expected ", m_.name(v), ", found ", dtype_name(message.dtype), to_string(message.shape));
  PARTITA_RETURN_IF_ERROR(check_apart(step, false));
  const absl::Status status = read(step, 0, storage_[v]);
  if (!status.ok()) return differs("operand 0: ", status.message());
  Outbox& own = outboxes_.try_emplace(number->second, Outbox{range(step, 1)}).first->second;
  if (!(own.range == range(step, 1))) return differs("expected its outbox where others have it, found it elsewhere");
  own.under_way.resize(static_cast<size_t>(box.shape[0]), -1);
  int& flight = own.under_way[own.next];
  Range place = range(step, 1);
  place.begin += static_cast<int64_t>(own.next) * box.shape[1];
  const Range from = range(step, 0);
  place.end = place.begin + (from.end - from.begin);
  own.next = (own.next + 1) % own.under_way.size();
  if (flight >= 0) m_.memory().finish(flight);
  flight =
      m_.flight(static_cast<int>(step.id), static_cast<int32_t>(program_.slots + (&flight - own.under_way.data())));
  PARTITA_RETURN_IF_ERROR(m_.write_range(place, storage_[v]));
  m_.memory().start(flight, {place}, {});
  return absl::OkStatus();
}

// Values that travel as one lie side by side, each at the next multiple of 64 bytes.
absl::Status StepChecker::read_bundle(const Step& step, const Node& node, std::vector<Range>& reads,
                                      std::vector<Range>& writes) {
  if (step.operands.size() != 2 || step.inputs != 1 || step.name != "all_reduce")
    return differs("expected one buffer for all values");
  Range in = range(step, 0), out = range(step, 1);
  if (!(in == out) && in.overlaps(out)) return differs("its result lies over its operand");
  int64_t at = 0;
  for (size_t k = 0; k < node.inputs.size(); ++k) {
    const TensorType& type = g_.type(node.inputs[k]);
    if (type.dtype != step.operands[0].dtype || type.dtype != step.operands[1].dtype)
      return differs("expected operands of ", dtype_name(type.dtype));
    int64_t bytes = byte_size(type);
    Range from{in.region, in.begin + at, in.begin + at + bytes}, to{out.region, out.begin + at, out.begin + at + bytes};
    PARTITA_RETURN_IF_ERROR(check_whole(storage_[node.inputs[k]]));
    absl::Status status = m_.read_range(from, storage_[node.inputs[k]]);
    if (!status.ok()) return differs("operand ", k, ": ", status.message());
    reads.push_back(from);
    writes.push_back(to);
    at += (bytes + 63) / 64 * 64;
  }
  if (in.end - in.begin != at || out.end - out.begin != at)
    return differs("expected a buffer of ", at, " bytes, found ", in.end - in.begin);
  return absl::OkStatus();
}

absl::Status StepChecker::wait(const Step& step) {
  auto of = step.params.find("of");
  const int64_t* start = of == step.params.end() ? nullptr : std::get_if<int64_t>(&of->second);
  if (start == nullptr) return differs("expected the step that it waits for, found none");
  int flight = m_.flight(static_cast<int>(*start), entry_.slot);
  if (!started_.count(flight)) {  // what a prologue started is waited for in every slot
    const auto once = started_once_.find(static_cast<int>(*start));
    if (once == started_once_.end())
      return differs("expected a collective that has been started in slot ", entry_.slot, ", found none");
    flight = once->second;
  }
  m_.memory().finish(flight);
  return absl::OkStatus();
}

}  // namespace partita::verifier
