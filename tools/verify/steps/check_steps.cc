#include "tools/verify/steps/check_steps.h"

#include <algorithm>

#include "base/quote.h"
#include "base/status.h"
#include "runtime/program/library_kernels.h"
#include "runtime/program/sides.h"
#include "tools/verify/bundle/turned_values.h"
#include "tools/verify/layout/mismatch.h"
#include "tools/verify/layout/serial_values.h"
#include "tools/verify/steps/check_step.h"
#include "tools/verify/steps/check_versions.h"
#include "tools/verify/steps/step_checker.h"

namespace partita::verifier {

using runtime::ScheduleEntry;
using runtime::Step;
using runtime::StepKind;

StepChecker::StepChecker(const Graph& graph, const runtime::Program& program, const std::vector<Claim>& claims,
                         const KernelNests& nests, const std::map<ValueId, Fp8Rounding>& roundings)
    : g_(graph),
      roundings_(roundings),
      program_(program),
      claims_(claims),
      storage_(storage_of(graph)),
      turned_(turned_values(graph)),
      m_(graph, program, storage_),
      code_{graph, storage_, m_.literals(), turned_},
      kernels_(program, nests),
      updates_each_(updates_each(program)) {}

absl::StatusOr<StepsReport> StepChecker::run() {
  size_t steps = 0;
  for (const auto& segment : program_.segments) steps += segment.steps.size();
  if (claims_.size() != steps) return differs("expected claims of ", steps, " steps, found ", claims_.size());
  PARTITA_RETURN_IF_ERROR(check_interface(g_, program_));
  PARTITA_RETURN_IF_ERROR(check_schedule(program_));
  for (const auto& segment : program_.segments) {
    for (const Step& step : segment.steps) {
      if (absl::Status status = check_own_params(step); !status.ok())
        return differs(describe_step(program_, static_cast<int>(step.id)), ", on every rank: ", status.message());
    }
  }
  PARTITA_RETURN_IF_ERROR(run_schedule());
  PARTITA_RETURN_IF_ERROR(kernels_.check_all_used());
  report_.operands = m_.operands();
  return report_;
}

absl::Status StepChecker::run_schedule() {
  std::vector<int64_t> staged(static_cast<size_t>(program_.slots), -1);
  for (size_t k = 0; k < g_.states.size(); ++k)
    m_.memory().write(range_of(program_.states[k].operand, 0), {g_.states[k].value, false, 0});
  for (size_t k = 0; k < g_.inputs.size(); ++k) {
    for (int64_t slot = 0; slot < program_.slots && g_.inputs[k].kind == InputKind::kCoordinate; ++slot)
      m_.memory().write(range_of(program_.inputs[k].operand, slot), {g_.inputs[k].value, false, 0});
  }
  for (const ScheduleEntry& entry : program_.schedule) {
    const runtime::ProgramSegment& segment = program_.segments[static_cast<size_t>(entry.segment)];
    entry_ = entry;
    each_ = runs_of(segment.kind) != Runs::kOnce || (segment.kind == Segment::kReduce && updates_each_);
    places_.clear();
    m_.enter(entry, each_);
    const bool stages = segment.kind == Segment::kForward || segment.kind == Segment::kBackward;
    if (stages && staged[static_cast<size_t>(entry.slot)] != entry.micro_batch) {
      staged[static_cast<size_t>(entry.slot)] = entry.micro_batch;
      PARTITA_RETURN_IF_ERROR(stage_inputs());
    }
    kind_ = segment.kind;
    for (const Step& step : segment.steps) {
      absl::Status status = run_step(step);
      if (!status.ok())
        return differs(describe_step(program_, static_cast<int>(step.id)), ", micro-batch ", entry.micro_batch,
                       ", on every rank: ", status.message());
      ++report_.steps;
    }
    if (int value = written_parts_.broken(); value >= 0)
      return differs("segment ", enum_name(segment.kind), ", micro-batch ", entry.micro_batch,
                     ", on every rank: ", check_whole(value).message());
  }
  return check_end();
}

// A micro-batch's samples are written where the last one's in its slot lay.
absl::Status StepChecker::stage_inputs() {
  for (size_t k = 0; k < g_.inputs.size(); ++k) {
    const Range to = range_of(program_.inputs[k].operand, entry_.slot);
    if (int busy = m_.memory().disturbed(to, true); busy >= 0)
      return differs("input ", quote(g_.inputs[k].name), ", micro-batch ", entry_.micro_batch,
                     ", on every rank: expected memory that nobody uses, found that of step ", m_.step_of(busy),
                     ", which is not waited for");
    m_.memory().write(to, {g_.inputs[k].value, true, entry_.micro_batch});
  }
  return absl::OkStatus();
}

// Of steps that are no node's: a wait says of what, a copy nothing, and code of the host's has all in itself.
absl::Status StepChecker::check_own_params(const Step& step) const {
  const bool waits = step.kind == StepKind::kCollectiveWait;
  const bool by_host = step.kind == StepKind::kKernel && (!needs_device(program_) || runs_on_host(program_, step));
  if (!waits && !by_host && step.kind != StepKind::kCopy) return absl::OkStatus();
  for (const auto& [name, value] : step.params) {
    if (!waits || name != "of") return differs("expected no parameter ", quote(name), " of a ", enum_name(step.kind));
  }
  return absl::OkStatus();
}

absl::Status StepChecker::run_step(const Step& step) {
  switch (step.kind) {
    case StepKind::kKernel:
      return run_kernel(step);
    case StepKind::kLibrary:
      return run_library(step);
    case StepKind::kCopy:
      return run_copy(step);
    case StepKind::kCollectiveStart:
      return start_collective(step);
    case StepKind::kCollectiveWait:
      return wait(step);
  }
  return differs("unknown kind of step");
}

absl::Status StepChecker::run_copy(const Step& step) {
  PARTITA_RETURN_IF_ERROR(check_apart(step, false));
  Range from = range(step, 0), to = range(step, 1);
  if (from.empty()) return absl::OkStatus();
  if (from.end - from.begin != to.end - to.begin) return differs("a copy that changes size");
  if (int busy = m_.memory().disturbed(from, false); busy >= 0)
    return differs("it copies the result of step ", m_.step_of(busy), ", which is not waited for");
  const Claim& claim = claims_[step.id];
  int source = claim.values.empty() ? -1 : claim.values[0];
  if (claim.node >= 0 && g_.nodes[claim.node].op->name == "stash") return run_stash(step, g_.nodes[claim.node]);
  Content content{source, each_, entry_.micro_batch};
  if (source >= 0) {
    PARTITA_RETURN_IF_ERROR(m_.check_type(step.operands[0], source));
    PARTITA_RETURN_IF_ERROR(check_whole(source));
    PARTITA_RETURN_IF_ERROR(m_.read_range(from, source));
    auto c = m_.memory().at(from);
    // A constant, or what a state became with the micro-batch before, is from here on a value of its own.
    if (c && c->value == source) content = *c;
  } else {
    auto c = m_.memory().at(from);
    if (!c) return differs("expected one value to copy, found ", m_.describe(c));
    content = *c;
  }
  PARTITA_RETURN_IF_ERROR(m_.write_range(to, source));
  m_.memory().write(to, content);
  return absl::OkStatus();
}

// What a state is now becomes a value of its own.
absl::Status StepChecker::run_stash(const Step& step, const Node& node) {
  PARTITA_RETURN_IF_ERROR(check_count(step));
  PARTITA_RETURN_IF_ERROR(check_operands(step, node));
  const ValueId result = storage_[node.outputs[0]];
  if (claims_[step.id].values[1] != result)
    return differs("operand 1: expected ", m_.name(result), ", found ", m_.name(claims_[step.id].values[1]));
  PARTITA_RETURN_IF_ERROR(check_segment(result));
  return m_.write_range(range(step, 1), result);
}

absl::Status StepChecker::read(const Step& step, size_t k, int value) {
  if (value >= 0) PARTITA_RETURN_IF_ERROR(m_.check_type(step.operands[k], value));
  Range r = range(step, k);
  PARTITA_RETURN_IF_ERROR(check_whole(value));
  absl::Status status = m_.read_range(r, value);
  if (status.ok() || is_overwritten(step, r, value)) return absl::OkStatus();
  const int same = rounded_again(value);
  return same >= 0 && read(step, k, same).ok() ? absl::OkStatus() : status;
}

// The value of 16 bits that this one is, widened to f32 and rounded again: the same bits. -1: it is none.
int StepChecker::rounded_again(int value) const {
  const Node* made = value < 0 ? nullptr : g_.producer(value);
  if (made != nullptr && made->op->name == "transpose") {
    const ValueId of = made->inputs[0];
    const int same = turned_[static_cast<size_t>(of)] == value ? rounded_again(of) : -1;
    return same < 0 || g_.type(same).shape != g_.type(of).shape ? -1 : turned_[static_cast<size_t>(same)];
  }
  const Node* rounds = value < 0 ? nullptr : g_.producer(value);
  const Node* widens = rounds == nullptr || !rounds->op->casts ? nullptr : g_.producer(rounds->inputs[0]);
  if (widens == nullptr || !widens->op->casts || g_.type(widens->outputs[0]).dtype != DType::kF32) return -1;
  const DType from = g_.type(widens->inputs[0]).dtype, to = g_.type(value).dtype;
  return from == to && (to == DType::kBF16 || to == DType::kF16) ? storage_[static_cast<size_t>(widens->inputs[0])]
                                                                 : -1;
}

absl::Status StepChecker::check_whole(int value) {
  if (written_parts_.is_whole(value)) return absl::OkStatus();
  return differs("expected all of ", m_.name(value), ", found parts that are not all of it");
}

// Results lie apart from each other and from operands, or, in place, exactly on one. What a kernel writes in several
// parts of one value, which are held to be apart when it is read, lies in one place.
absl::Status StepChecker::check_apart(const Step& step, bool in_place, const KernelStep* kernel) const {
  for (size_t o = static_cast<size_t>(step.inputs); o < step.operands.size(); ++o) {
    Range out = range(step, o);
    for (size_t k = 0; k < o; ++k) {
      Range other = range(step, k);
      if (!other.overlaps(out) || out.empty()) continue;
      const bool result = k >= static_cast<size_t>(step.inputs);
      if (result && kernel != nullptr && other == out && kernel->parts[k] && kernel->parts[o] &&
          kernel->use.values[k] == kernel->use.values[o])
        continue;
      if (result || !in_place || !(other == out)) return differs("operand ", o, " lies over operand ", k);
    }
  }
  return absl::OkStatus();
}

absl::Status StepChecker::check_count(const Step& step) const {
  size_t found = claims_[step.id].values.size();
  if (found == step.operands.size()) return absl::OkStatus();
  return differs("expected ", step.operands.size(), " operands, found claims of ", found);
}

// A value is made as often as its node says.
absl::Status StepChecker::check_segment(int value) const {
  const Node* node = g_.producer(value);
  if (node == nullptr || runs_of(node->segment) == runs_of(kind_)) return absl::OkStatus();
  return differs(m_.name(value), ": expected in segment ", enum_name(node->segment), ", found in ", enum_name(kind_));
}

int StepChecker::in_order(ValueId v, bool turned) const {
  return turned && !is_in_both_orders(g_.type(v).shape) ? turned_[static_cast<size_t>(v)]
                                                        : storage_[static_cast<size_t>(v)];
}

// The inputs of a step that is one node.
absl::Status StepChecker::check_operands(const Step& step, const Node& node) {
  const bool turned = has_channels_last(step);
  if (step.operands.size() != node.inputs.size() + node.outputs.size() ||
      static_cast<size_t>(step.inputs) != node.inputs.size())
    return differs("expected ", node.inputs.size(), " inputs and ", node.outputs.size(), " outputs");
  for (size_t k = 0; k < step.operands.size(); ++k) {
    bool input = k < node.inputs.size();
    ValueId v = input ? node.inputs[k] : node.outputs[k - node.inputs.size()];
    const runtime::Operand& o = step.operands[k];
    if (v == kNoValue) {
      if (o.dtype != DType::kInvalid) return differs("operand ", k, ": expected none");
      continue;
    }
    const Shape& shape = g_.type(v).shape;
    if (turned && shape.size() != kChannelsLast.size())
      return differs("operand ", k, ": expected four dimensions of ", m_.name(v), " with its channels last");
    if (o.dtype != g_.type(v).dtype || o.shape != (turned ? channels_last(shape) : shape))
      return differs("operand ", k, ": expected ", m_.name(v), ", found ", dtype_name(o.dtype), to_string(o.shape));
    if (!input) continue;
    absl::Status status = read(step, k, in_order(v, turned));
    if (!status.ok()) return differs("operand ", k, ": ", status.message());
  }
  return absl::OkStatus();
}

absl::Status StepChecker::check_end() {
  for (auto& [number, box] : outboxes_) {
    for (int flight : box.under_way) m_.memory().finish(flight);
  }
  if (int open = m_.memory().unfinished(); open >= 0)
    return differs(describe_step(program_, m_.step_of(open)), ": expected a wait for it, found none");
  m_.enter(entry_, false);
  for (size_t k = 0; k < g_.states.size(); ++k) {
    const State& s = g_.states[k];
    if (s.kind == StateKind::kAccumulator) continue;  // the runtime clears it before each step
    int value = s.next == kNoValue ? s.value : storage_[s.next];
    absl::Status status = m_.read_range(range_of(program_.states[k].operand, 0), value);
    if (!status.ok()) return differs("state ", quote(s.name), " after the step, on every rank: ", status.message());
  }
  for (size_t k = 0; k < g_.outputs.size(); ++k) {
    const GraphOutput& o = g_.outputs[k];
    absl::Status status = m_.check_type(program_.outputs[k].operand, o.value);
    if (status.ok()) status = m_.read_range(range_of(program_.outputs[k].operand, 0), storage_[o.value]);
    if (!status.ok()) return differs("output ", quote(o.name), ", on every rank: ", status.message());
  }
  return absl::OkStatus();
}

absl::StatusOr<StepsReport> check_steps(const Graph& graph, const runtime::Program& program,
                                        const std::vector<Claim>& claims, const KernelNests& nests,
                                        const std::map<ValueId, Fp8Rounding>& roundings) {
  return StepChecker(graph, program, claims, nests, roundings).run();
}

}  // namespace partita::verifier
