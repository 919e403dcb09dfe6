#include "tools/verify/steps/step_memory.h"

#include <cstring>

#include "base/cat.h"
#include "base/quote.h"
#include "base/status.h"
#include "tools/verify/layout/mismatch.h"

namespace partita::verifier {

StepMemory::StepMemory(const Graph& graph, const runtime::Program& program, const std::vector<ValueId>& storage)
    : g_(graph), program_(program), literals_(constant_values(graph)) {
  for (const auto& segment : program.segments) steps_ += static_cast<int>(segment.steps.size());
  for (const State& s : g_.states) {
    if (s.next != kNoValue && storage[s.next] != s.value) next_of_[s.value] = storage[s.next];
  }
}

std::string StepMemory::name(int value) const {
  if (value < 0) return cat("temporary ", -2 - value);
  const std::string& n = g_.values[value].name;
  return cat("value %", value, n.empty() ? "" : " " + quote(n), " ", to_string(g_.type(value)));
}

std::string StepMemory::describe(const std::optional<Content>& c) const {
  return c ? cat(name(c->value), c->each ? cat(" of micro-batch ", c->run) : "") : "nothing that is one value";
}

// Whether memory that holds `c` can be read as `value` now.
bool StepMemory::is(const Content& c, int value) const {
  bool fresh = !c.each || c.run == (each_ ? entry_.micro_batch : program_.micro_batches - 1);
  if (c.value == value) return fresh;
  // What a state became with one micro-batch is what the next one reads.
  auto next = value >= 0 ? next_of_.find(value) : next_of_.end();
  return next != next_of_.end() && c.value == next->second && each_ && c.each && c.run != entry_.micro_batch;
}

absl::Status StepMemory::check_type(const runtime::Operand& operand, int value) const {
  const TensorType& type = g_.type(value);
  Range r = range_of(operand, 0);
  if (operand.dtype != type.dtype || r.end - r.begin != byte_size(type))
    return differs("expected ", name(value), ", found an operand of ", dtype_name(operand.dtype),
                   to_string(operand.shape));
  return absl::OkStatus();
}

absl::Status StepMemory::read_range(const Range& r, int value) {
  ++operands_;
  if (r.empty()) return absl::OkStatus();
  if (int busy = memory_.disturbed(r, false); busy >= 0)
    return differs("expected ", name(value), ", found the result of step ", step_of(busy), ", which is not waited for");
  if (r.region == runtime::Region::kConstant) return read_constant(r, value);
  std::optional<Content> c = memory_.at(r);
  if (c && is(*c, value)) return absl::OkStatus();
  return differs("expected ", name(value), each_ ? cat(" of micro-batch ", entry_.micro_batch) : "", ", found ",
                 describe(c));
}

absl::Status StepMemory::read_constant(const Range& r, int value) const {
  const Literal* literal = value >= 0 ? literals_[value] : nullptr;
  if (literal == nullptr) return differs("expected ", name(value), ", found a constant");
  auto bytes = literal->bytes();
  bool same = r.end <= static_cast<int64_t>(program_.constants.size()) &&
              static_cast<int64_t>(bytes.size()) == r.end - r.begin &&
              std::memcmp(program_.constants.data() + r.begin, bytes.data(), bytes.size()) == 0;
  return same ? absl::OkStatus() : differs("expected the constant ", name(value), ", found other bytes");
}

absl::Status StepMemory::write_range(const Range& r, int value) {
  ++operands_;
  if (int busy = memory_.disturbed(r, true); busy >= 0)
    return differs("expected memory that nobody uses for ", name(value), ", found that of step ", step_of(busy),
                   ", which is not waited for");
  memory_.write(r, {value, each_, entry_.micro_batch});
  return absl::OkStatus();
}

}  // namespace partita::verifier
