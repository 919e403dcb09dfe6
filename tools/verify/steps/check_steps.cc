#include "tools/verify/steps/check_steps.h"

#include <algorithm>
#include <map>
#include <set>

#include "base/quote.h"
#include "base/status.h"
#include "tools/verify/layout/mismatch.h"
#include "tools/verify/layout/serial_values.h"
#include "tools/verify/steps/check_product.h"
#include "tools/verify/steps/check_step.h"
#include "tools/verify/steps/check_versions.h"
#include "tools/verify/steps/derivable.h"
#include "tools/verify/steps/step_memory.h"
#include "tools/verify/steps/written_parts.h"

namespace partita::verifier {
namespace {

// Empty where there is none.
std::string text_of(const runtime::Step& step, const std::string& param) {
  const auto at = step.params.find(param);
  const std::string* text = at == step.params.end() ? nullptr : std::get_if<std::string>(&at->second);
  return text == nullptr ? "" : *text;
}

using runtime::Region;
using runtime::ScheduleEntry;
using runtime::SegmentKind;
using runtime::Step;
using runtime::StepKind;

class StepChecker {
 public:
  StepChecker(const Graph& graph, const runtime::Program& program, const std::vector<Claim>& claims)
      : g_(graph),
        program_(program),
        claims_(claims),
        storage_(storage_of(graph)),
        m_(graph, program, storage_),
        updates_each_(updates_each(program)) {}

  absl::StatusOr<StepsReport> run() {
    size_t steps = 0;
    for (const auto& segment : program_.segments) steps += segment.steps.size();
    if (claims_.size() != steps) return differs("expected claims of ", steps, " steps, found ", claims_.size());
    PARTITA_RETURN_IF_ERROR(check_interface(g_, program_));
    PARTITA_RETURN_IF_ERROR(check_schedule(program_));
    for (const auto& segment : program_.segments) {
      for (const Step& step : segment.steps) {
        if (step.kind == StepKind::kKernel) add_to_group(segment.kind, step);
        note_temporaries(step);
      }
    }
    PARTITA_RETURN_IF_ERROR(run_schedule(program_.schedule, false));
    PARTITA_RETURN_IF_ERROR(run_schedule(program_.evaluation, true));
    report_.operands = m_.operands();
    return report_;
  }

 private:
  // The kernels of one fusion group compute its results together, and some of them a part each.
  void add_to_group(SegmentKind kind, const Step& step) {
    const Claim& claim = claims_[step.id];
    for (size_t k = static_cast<size_t>(step.inputs); k < claim.values.size(); ++k)
      last_writer_[{static_cast<int>(kind), claim.values[k]}] = step.id;
    auto& group = groups_[{static_cast<int>(kind), claims_[step.id].node}];
    const std::vector<int>& values = claims_[step.id].values;
    for (size_t k = 0; k < values.size() && k < static_cast<size_t>(step.inputs); ++k) {
      if (values[k] >= 0) group.insert(values[k]);
    }
  }

  // Temporaries that one step alone writes, and it reads one value alone, or none.
  void note_temporaries(const Step& step) {
    const Claim& claim = claims_[step.id];
    for (size_t k = static_cast<size_t>(step.inputs); k < claim.values.size(); ++k) {
      if (claim.values[k] >= -1) continue;
      int made_of = -1;
      if (step.kind == StepKind::kKernel && step.inputs == 0) made_of = kConstants;
      if (step.kind == StepKind::kKernel && step.inputs == 1 && claim.values[0] >= 0) made_of = claim.values[0];
      auto [at, fresh] = rounded_.try_emplace(claim.values[k], made_of);
      if (!fresh) at->second = -1;
    }
  }

  absl::Status run_schedule(const std::vector<ScheduleEntry>& schedule, bool evaluation) {
    m_.memory() = Memory();
    started_.clear();
    outboxes_.clear();
    std::vector<int64_t> staged(static_cast<size_t>(program_.slots), -1);
    for (size_t k = 0; k < g_.states.size(); ++k)
      m_.memory().write(range_of(program_.states[k].operand, 0), {g_.states[k].value, false, 0});
    for (size_t k = 0; k < g_.inputs.size(); ++k) {
      for (int64_t slot = 0; slot < program_.slots && g_.inputs[k].kind == InputKind::kCoordinate; ++slot)
        m_.memory().write(range_of(program_.inputs[k].operand, slot), {g_.inputs[k].value, false, 0});
    }
    for (const ScheduleEntry& entry : schedule) {
      const runtime::ProgramSegment& segment = program_.segments[static_cast<size_t>(entry.segment)];
      entry_ = entry;
      each_ = runs_of(static_cast<Segment>(segment.kind)) != Runs::kOnce ||
              (segment.kind == SegmentKind::kReduce && updates_each_);
      places_.clear();
      m_.enter(entry, each_);
      if (each_ && staged[static_cast<size_t>(entry.slot)] != entry.micro_batch) {
        staged[static_cast<size_t>(entry.slot)] = entry.micro_batch;
        for (size_t k = 0; k < g_.inputs.size(); ++k)
          m_.memory().write(range_of(program_.inputs[k].operand, entry.slot),
                            {g_.inputs[k].value, true, entry.micro_batch});
      }
      kind_ = segment.kind;
      for (const Step& step : segment.steps) {
        absl::Status status = run_step(step);
        if (!status.ok())
          return differs(describe_step(program_, static_cast<int>(step.id)), ", micro-batch ", entry.micro_batch,
                         ", on every rank: ", status.message());
        ++report_.steps;
      }
      if (int value = parts_.broken(); value >= 0)
        return differs("segment ", segment_name(static_cast<Segment>(segment.kind)), ", micro-batch ",
                       entry.micro_batch, ", on every rank: ", check_whole(value).message());
    }
    return check_end(evaluation);
  }

  absl::Status run_step(const Step& step) {
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

  Range range(const Step& step, size_t k) const { return range_of(step.operands[k], entry_.slot); }

  absl::Status read(const Step& step, size_t k, int value) {
    if (value >= 0) PARTITA_RETURN_IF_ERROR(m_.check_type(step.operands[k], value));
    Range r = range(step, k);
    auto last = last_writer_.find({static_cast<int>(kind_), value});
    bool complete =
        last == last_writer_.end() || last->second < step.id || claims_[last->second].node == claims_[step.id].node;
    if (!complete)
      return differs("expected all of ", m_.name(value), ", found that step ", last->second, " writes of it too");
    PARTITA_RETURN_IF_ERROR(check_whole(value));
    absl::Status status = m_.read_range(r, value);
    if (status.ok()) return status;
    // Kernels of one group may write over a value in turns, each where it has read it.
    auto old = overwritten_.find({static_cast<int>(r.region), r.begin});
    if (step.kind == StepKind::kKernel && old != overwritten_.end() && overwritten_by_ == claims_[step.id].node &&
        m_.is(old->second, value) && writes(step, r))
      return absl::OkStatus();
    return status;
  }

  absl::Status check_whole(int value) {
    if (parts_.is_whole(value)) return absl::OkStatus();
    return differs("expected all of ", m_.name(value), ", found parts that are not all of it");
  }

  bool writes(const Step& step, const Range& r) const {
    for (size_t k = static_cast<size_t>(step.inputs); k < step.operands.size(); ++k) {
      if (range(step, k) == r) return true;
    }
    return false;
  }

  // Results lie apart from each other and from operands, or, in place, exactly on one.
  absl::Status check_apart(const Step& step, bool in_place) const {
    for (size_t o = static_cast<size_t>(step.inputs); o < step.operands.size(); ++o) {
      Range out = range(step, o);
      for (size_t k = 0; k < o; ++k) {
        Range other = range(step, k);
        if (!other.overlaps(out) || out.empty()) continue;
        if (k >= static_cast<size_t>(step.inputs) || !in_place || !(other == out))
          return differs("operand ", o, " lies over operand ", k);
      }
    }
    return absl::OkStatus();
  }

  absl::Status check_count(const Step& step) const {
    size_t found = claims_[step.id].values.size();
    if (found == step.operands.size()) return absl::OkStatus();
    return differs("expected ", step.operands.size(), " operands, found claims of ", found);
  }

  absl::Status run_kernel(const Step& step) {
    PARTITA_RETURN_IF_ERROR(check_count(step));
    PARTITA_RETURN_IF_ERROR(check_apart(step, true));
    const Claim& claim = claims_[step.id];
    if (overwritten_by_ != claim.node) overwritten_.clear();
    overwritten_by_ = claim.node;
    for (size_t k = 0; k < static_cast<size_t>(step.inputs); ++k) {
      absl::Status status = read(step, k, claim.values[k]);
      if (!status.ok()) return differs("operand ", k, ": ", status.message());
    }
    const std::set<int>& given = groups_[{static_cast<int>(kind_), claim.node}];
    for (size_t k = static_cast<size_t>(step.inputs); k < step.operands.size(); ++k) {
      int value = claim.values[k];
      if (value >= 0) {
        PARTITA_RETURN_IF_ERROR(m_.check_type(step.operands[k], value));
        int missing = underivable(g_, storage_, m_.literals(), value, given);
        if (missing >= 0)
          return differs("operand ", k, ": ", m_.name(value), ": expected ", m_.name(missing),
                         " among the operands, found none");
        PARTITA_RETURN_IF_ERROR(check_segment(value));
      }
      Range r = range(step, k);
      PARTITA_RETURN_IF_ERROR(check_one_place(step, k, r));
      if (auto c = m_.memory().at(r)) overwritten_.try_emplace({static_cast<int>(r.region), r.begin}, *c);
      PARTITA_RETURN_IF_ERROR(m_.write_range(r, value));
      auto part = std::find_if(claim.parts.begin(), claim.parts.end(),
                               [&](const WrittenPart& p) { return static_cast<size_t>(p.operand) == k; });
      if (value >= 0) parts_.write(value, elements(g_.type(value).shape), part == claim.parts.end() ? nullptr : &*part);
    }
    return absl::OkStatus();
  }

  // Kernels of one group that write parts of a value write them side by side.
  absl::Status check_one_place(const Step& step, size_t k, const Range& r) {
    const Claim& claim = claims_[step.id];
    auto [first, fresh] = places_.try_emplace({claim.node, claim.values[k]}, step.id, r);
    if (fresh || first->second.second == r) return absl::OkStatus();
    return differs("operand ", k, ": ", m_.name(claim.values[k]), ": expected it where step ", first->second.first,
                   " writes a part of it, found another place");
  }

  // A value is made as often as its node says.
  absl::Status check_segment(int value) const {
    const Node* node = g_.producer(value);
    if (node == nullptr || runs_of(node->segment) == runs_of(static_cast<Segment>(kind_))) return absl::OkStatus();
    return differs(m_.name(value), ": expected in segment ", segment_name(node->segment), ", found in ",
                   segment_name(static_cast<Segment>(kind_)));
  }

  absl::Status run_library(const Step& step) {
    PARTITA_RETURN_IF_ERROR(check_count(step));
    const Claim& claim = claims_[step.id];
    if (claim.node < 0) return differs("it claims no node");
    const Node& node = g_.nodes[claim.node];
    const std::string epilogue = text_of(step, "epilogue");
    const bool accumulates = epilogue == "accumulate";
    PARTITA_RETURN_IF_ERROR(check_apart(step, false));
    if (!epilogue.empty() && !accumulates) return run_product(step, epilogue);
    PARTITA_RETURN_IF_ERROR(check_params(node, step, epilogue));
    PARTITA_RETURN_IF_ERROR(check_operands(step, node));
    for (size_t k = 0; k < node.outputs.size(); ++k) {
      size_t o = node.inputs.size() + k;
      int value = storage_[node.outputs[k]];
      if (accumulates) {
        PARTITA_ASSIGN_OR_RETURN(value, read_sum(step, o, value));
      }
      PARTITA_RETURN_IF_ERROR(write_result(step, o, value));
    }
    return absl::OkStatus();
  }

  // A product that does what follows it.
  absl::Status run_product(const Step& step, const std::string& epilogue) {
    const Claim& claim = claims_[step.id];
    const size_t inputs = static_cast<size_t>(step.inputs);
    if (inputs >= step.operands.size()) return differs("expected a result, found none");
    const bool accumulates = epilogue.rfind("accumulate", 0) == 0;
    const std::vector<ValueId>& own = g_.nodes[claim.node].outputs;
    const int result = !accumulates ? claim.values[inputs] : own.empty() ? -1 : storage_[own[0]];
    PARTITA_ASSIGN_OR_RETURN(const ProductOperands found,
                             product_operands(g_, storage_, epilogue, result, claim.values.back()));
    const Node& product = g_.nodes[found.product];
    PARTITA_RETURN_IF_ERROR(check_params(product, step, epilogue));
    if (inputs != found.inputs.size() || step.operands.size() - inputs != found.outputs.size())
      return differs("expected ", found.inputs.size(), " inputs and ", found.outputs.size(), " outputs");
    const TensorType& type = g_.type(product.outputs[0]);
    for (size_t k = 0; k < inputs; ++k) {
      int value = found.inputs[k];
      if (static_cast<int>(k) == found.bias && g_.type(value).dtype != type.dtype) {
        value = claim.values[k];
        PARTITA_RETURN_IF_ERROR(check_rounded(step.operands[k], value, found.inputs[k], type));
      }
      if (k < 2 && step.operands[k].shape != g_.type(product.inputs[k]).shape)
        return differs("operand ", k, ": expected ", to_string(g_.type(product.inputs[k]).shape));
      absl::Status status = claim.values[k] == value
                                ? read(step, k, value)
                                : differs("expected ", m_.name(value), ", found ", m_.name(claim.values[k]));
      if (!status.ok()) return differs("operand ", k, ": ", status.message());
    }
    for (size_t k = 0; k < found.outputs.size(); ++k) {
      int value = found.outputs[k];
      if (k == 0 && accumulates) {
        PARTITA_ASSIGN_OR_RETURN(value, read_sum(step, inputs, value));
      }
      PARTITA_RETURN_IF_ERROR(write_result(step, inputs + k, value));
    }
    return absl::OkStatus();
  }

  // `value` is a bias in fewer bits: of a step that reads nothing else. Code has constants of one number in itself.
  absl::Status check_rounded(const runtime::Operand& operand, int value, int bias, const TensorType& type) const {
    const auto made = rounded_.find(value);
    const Literal* literal = m_.literals()[static_cast<size_t>(bias)];
    const int wanted = literal != nullptr && is_uniform(*literal) ? kConstants : bias;
    if (value >= -1 || made == rounded_.end() || made->second != wanted)
      return differs("expected ", m_.name(bias), " in ", dtype_name(type.dtype), ", found ", m_.name(value));
    if (operand.dtype == type.dtype && elements(operand.shape) == type.shape.back()) return absl::OkStatus();
    return differs("expected a bias of ", type.shape.back(), " ", dtype_name(type.dtype), ", found ",
                   dtype_name(operand.dtype), to_string(operand.shape));
  }

  // What a product is added to is read; the value that its result becomes.
  absl::StatusOr<int> read_sum(const Step& step, size_t o, int value) {
    const int sum = claims_[step.id].values[o], to = sum < 0 ? -1 : added_to(g_, storage_, sum, value);
    if (to < 0) return differs("expected a sum with ", m_.name(value), ", found ", m_.name(sum));
    PARTITA_RETURN_IF_ERROR(read(step, o, to));
    return sum;
  }

  absl::Status write_result(const Step& step, size_t o, int value) {
    const int claimed = claims_[step.id].values[o];
    if (claimed != value) return differs("operand ", o, ": expected ", m_.name(value), ", found ", m_.name(claimed));
    PARTITA_RETURN_IF_ERROR(m_.check_type(step.operands[o], value));
    PARTITA_RETURN_IF_ERROR(check_segment(value));
    return m_.write_range(range(step, o), value);
  }

  // The inputs of a step that is one node.
  absl::Status check_operands(const Step& step, const Node& node) {
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
      if (o.dtype != g_.type(v).dtype || o.shape != g_.type(v).shape)
        return differs("operand ", k, ": expected ", m_.name(v), ", found ", dtype_name(o.dtype), to_string(o.shape));
      if (!input) continue;
      absl::Status status = read(step, k, storage_[v]);
      if (!status.ok()) return differs("operand ", k, ": ", status.message());
    }
    return absl::OkStatus();
  }

  absl::Status run_copy(const Step& step) {
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
  absl::Status run_stash(const Step& step, const Node& node) {
    PARTITA_RETURN_IF_ERROR(check_count(step));
    PARTITA_RETURN_IF_ERROR(check_operands(step, node));
    const ValueId result = storage_[node.outputs[0]];
    if (claims_[step.id].values[1] != result)
      return differs("operand 1: expected ", m_.name(result), ", found ", m_.name(claims_[step.id].values[1]));
    PARTITA_RETURN_IF_ERROR(check_segment(result));
    return m_.write_range(range(step, 1), result);
  }

  absl::Status start_collective(const Step& step) {
    const Claim& claim = claims_[step.id];
    if (claim.node < 0) return differs("it claims no node");
    const Node& node = g_.nodes[claim.node];
    PARTITA_RETURN_IF_ERROR(check_collective(node, step, program_));
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
    m_.memory().start(m_.flight(static_cast<int>(step.id), entry_.slot), std::move(reads), std::move(writes));
    started_.insert(static_cast<int>(step.id));
    return absl::OkStatus();
  }

  // The message leaves from the next place of its outbox. The one that was there before is waited for.
  absl::Status send(const Step& step, const Node& node) {
    PARTITA_RETURN_IF_ERROR(check_count(step));
    const auto number = step.params.find("outbox");
    if (number == step.params.end() || step.inputs != 1 || step.operands.size() != 2 ||
        step.operands[1].shape[0] != node.attrs.i("in_flight"))
      return differs("expected an outbox of ", node.attrs.i("in_flight"), " places, found another");
    const ValueId v = node.inputs[0];
    const runtime::Operand &message = step.operands[0], &box = step.operands[1];
    if (message.dtype != g_.type(v).dtype || message.shape != g_.type(v).shape)
      return differs("operand 0: expected ", m_.name(v), ", found ", dtype_name(message.dtype),
                     to_string(message.shape));
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
  absl::Status read_bundle(const Step& step, const Node& node, std::vector<Range>& reads, std::vector<Range>& writes) {
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
      Range from{in.region, in.begin + at, in.begin + at + bytes},
          to{out.region, out.begin + at, out.begin + at + bytes};
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

  absl::Status wait(const Step& step) {
    auto of = step.params.find("of");
    const int64_t* start = of == step.params.end() ? nullptr : std::get_if<int64_t>(&of->second);
    if (start == nullptr || !started_.count(static_cast<int>(*start)))
      return differs("expected a collective that has been started, found none");
    // What a prologue started is waited for in every slot.
    for (int32_t slot = entry_.slot; !m_.memory().finish(m_.flight(static_cast<int>(*start), slot)) && slot > 0;)
      slot = 0;
    return absl::OkStatus();
  }

  absl::Status check_end(bool evaluation) {
    for (auto& [number, box] : outboxes_) {
      for (int flight : box.under_way) m_.memory().finish(flight);
    }
    if (int open = m_.memory().unfinished(); open >= 0)
      return differs(describe_step(program_, m_.step_of(open)), ": expected a wait for it, found none");
    m_.enter(entry_, evaluation);
    for (size_t k = 0; k < g_.states.size() && !evaluation; ++k) {
      const State& s = g_.states[k];
      if (s.kind == StateKind::kAccumulator) continue;  // the runtime clears it before each step
      int value = s.next == kNoValue ? s.value : storage_[s.next];
      absl::Status status = m_.read_range(range_of(program_.states[k].operand, 0), value);
      if (!status.ok()) return differs("state ", quote(s.name), " after the step, on every rank: ", status.message());
    }
    for (size_t k = 0; k < g_.outputs.size(); ++k) {
      const GraphOutput& o = g_.outputs[k];
      const Node* producer = g_.producer(storage_[o.value]);
      bool evaluated = producer != nullptr && producer->segment == Segment::kEvaluation;
      if (evaluated != evaluation) continue;
      absl::Status status = m_.check_type(program_.outputs[k].operand, o.value);
      if (status.ok()) status = m_.read_range(range_of(program_.outputs[k].operand, 0), storage_[o.value]);
      if (!status.ok()) return differs("output ", quote(o.name), ", on every rank: ", status.message());
    }
    return absl::OkStatus();
  }

  const Graph& g_;
  const runtime::Program& program_;
  const std::vector<Claim>& claims_;
  std::vector<ValueId> storage_;
  std::map<std::pair<int, NodeId>, std::set<int>> groups_;
  std::map<std::pair<int, int>, uint32_t> last_writer_;  // (segment, value) -> the last kernel that writes it
  StepMemory m_;
  // From where messages leave: its places' operations, -1 where there is none.
  struct Outbox {
    Range range;
    size_t next = 0;
    std::vector<int> under_way = {};
  };
  std::map<runtime::Param, Outbox> outboxes_;  // by number
  std::set<int> started_;
  std::map<std::pair<int, int64_t>, Content> overwritten_;  // by the current group
  NodeId overwritten_by_ = kNoNode;
  // Where the kernels of a group have written a value in this run of the segment, and the first that has.
  std::map<std::pair<NodeId, int>, std::pair<uint32_t, Range>> places_;
  static constexpr int kConstants = -2;
  std::map<int, int> rounded_;  // temporary -> what alone it is made of, kConstants, or -1
  WrittenParts parts_;
  ScheduleEntry entry_;
  SegmentKind kind_ = SegmentKind::kForward;
  bool each_ = false;
  bool updates_each_ = false;  // the reduce segment runs with each micro-batch
  StepsReport report_;
};

}  // namespace

absl::StatusOr<StepsReport> check_steps(const Graph& graph, const runtime::Program& program,
                                        const std::vector<Claim>& claims) {
  return StepChecker(graph, program, claims).run();
}

}  // namespace partita::verifier
