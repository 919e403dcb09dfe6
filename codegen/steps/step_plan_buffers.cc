// Buffers and where they lie.
#include <algorithm>
#include <cstring>

#include "base/checksum.h"
#include "codegen/steps/arena.h"
#include "codegen/steps/step_planner.h"

namespace partita {

using runtime::Region;
using runtime::StepKind;

namespace {

bool is_arena(Region region) { return region == Region::kArena || region == Region::kHostArena; }

}  // namespace

int StepPlanner::new_buffer(Region region, int64_t bytes, int64_t offset) {
  plan_.buffers.push_back({region, offset, bytes});
  return static_cast<int>(plan_.buffers.size()) - 1;
}

// At the end of a region whose buffers live as long as it.
int StepPlanner::new_fixed(Region region, int64_t bytes) {
  int64_t& end = plan_.region_bytes[static_cast<int>(region)];
  int b = new_buffer(region, bytes, end);
  end += aligned(bytes);
  return b;
}

Region StepPlanner::arena_of(NodeId node) const {
  return options_.host_arena && graph_.nodes[node].device == DeviceKind::kHost ? Region::kHostArena : Region::kArena;
}

int StepPlanner::new_temporary(const TensorType& type, Region region, bool to_the_end) {
  temporaries_.push_back({type, region, to_the_end});
  return static_cast<int>(temporaries_.size()) - 1;
}

void StepPlanner::make_outside_buffers() {
  auto fixed = [&](ValueId v, Region region) { slot_of_[v] = {new_fixed(region, byte_size(graph_.type(v))), 0}; };
  for (const GraphInput& in : graph_.inputs) fixed(in.value, Region::kInput);
  for (size_t k = 0; k < graph_.states.size(); ++k) {
    bool host = k < options_.host_states.size() && options_.host_states[k];
    fixed(graph_.states[k].value, host ? Region::kHostState : Region::kState);
  }
}

// Constants get a place when something reads them from memory; equal ones share it.
StepPlanner::Slot StepPlanner::constant_slot(ValueId v) {
  const Literal& literal = *code_.literals[v];
  auto bytes = literal.bytes();
  uint64_t hash = checksum64(bytes);
  for (auto [at, end] = constants_by_hash_.equal_range(hash); at != end; ++at) {
    auto other = plan_.constants[at->second].second->bytes();
    if (std::equal(bytes.begin(), bytes.end(), other.begin(), other.end()))
      return {plan_.constants[at->second].first, 0};
  }
  int b = new_fixed(Region::kConstant, static_cast<int64_t>(bytes.size()));
  constants_by_hash_.emplace(hash, plan_.constants.size());
  plan_.constants.emplace_back(b, &literal);
  return {b, 0};
}

int StepPlanner::end_of(Segment segment, int32_t phase) const {
  auto until = [&](const PlanStep& s) { return s.segment < segment || (s.segment == segment && s.phase <= phase); };
  int end = static_cast<int>(drafts_.size());
  while (end > 0 && !until(drafts_[end - 1].step)) --end;
  return end;
}

// Copies into bundles before their collective, and into states.
void StepPlanner::insert_copies() {
  std::map<int, std::vector<Draft>> before;
  for (const Bundle& b : bundles_) {
    const Draft& d = drafts_[b.step];
    for (size_t j = 0; j < b.copied.size(); ++j) {
      if (!b.copied[j]) continue;
      Draft copy;
      copy.step = {
          .kind = StepKind::kCopy, .segment = d.step.segment, .phase = d.step.phase, .node = d.step.node, .inputs = 1};
      copy.uses = {d.uses[j], d.uses[d.step.inputs + j]};
      before[b.step].push_back(std::move(copy));
    }
  }
  add_state_copies(before);
  std::vector<Draft> all;
  std::vector<int> now;
  for (int k = 0; k <= static_cast<int>(drafts_.size()); ++k) {
    for (Draft& d : before[k]) all.push_back(std::move(d));
    now.push_back(static_cast<int>(all.size()));
    if (k < static_cast<int>(drafts_.size())) all.push_back(std::move(drafts_[k]));
  }
  for (Draft& d : all) {
    if (d.step.waits_for >= 0) d.step.waits_for = now[d.step.waits_for];
  }
  for (Bundle& b : bundles_) b.step = now[b.step];
  drafts_ = std::move(all);
  index_steps();
}

// Into a state at the end of the phase that reads or sends its old value last. Old values that are wanted afterwards
// (as outputs, or by other states) are put aside first.
void StepPlanner::add_state_copies(std::map<int, std::vector<Draft>>& before) {
  Segment segment = Segment::kUpdate;
  int32_t phase = 0;
  auto copy = [&](const TensorType& type, int from, int to) {
    Draft d;
    d.step = {.kind = StepKind::kCopy,
              .segment = segment,
              .phase = phase,
              .node = from >= 0 ? code_.producer(from) : kNoNode,
              .inputs = 1};
    d.uses = {{type, from, false}, {type, to, false}};
    return d;
  };
  std::vector<std::pair<int, Draft>> last;
  for (const StateCopy& c : copies_) {
    const TensorType& type = graph_.type(c.state);
    int latest = std::max(is_computed(c.from) ? value_spans_[c.from].birth : -1, value_spans_[c.state].held);
    for (int r : value_spans_[c.state].readers) latest = std::max(latest, r);
    bool aside = is_output_[c.state] || next_of_[c.state] > 0, here = is_computed(c.from) && latest >= 0 && !aside;
    segment = here ? drafts_[latest].step.segment : Segment::kUpdate;
    phase = here ? drafts_[latest].step.phase : 0;
    int end = end_of(segment, phase);
    if (is_output_[c.state]) {
      int t = new_temporary(type, Region::kArena, true);
      output_copies_[c.state] = t;
      before[end].push_back(copy(type, c.state, -1 - t));
    }
    int from = c.from;
    if (!is_computed(from)) {
      int t = new_temporary(type, Region::kArena);
      before[end].push_back(copy(type, from, -1 - t));
      from = -1 - t;
    }
    last.emplace_back(end, copy(type, from, c.state));
  }
  for (auto& [end, d] : last) before[end].push_back(std::move(d));
}

// Accumulators that are summed over ranks together lie side by side, where the first of them was.
void StepPlanner::join_states() {
  std::map<int, const Bundle*> begins;  // at an accumulator
  std::set<int> moved;
  for (const Bundle& b : bundles_) {
    if (!b.states.empty()) begins[*std::min_element(b.states.begin(), b.states.end())] = &b;
    moved.insert(b.states.begin(), b.states.end());
  }
  if (begins.empty()) return;
  int64_t end = 0;
  const auto put = [&](int state) {
    PlanBuffer& b = plan_.buffers[slot_of_[graph_.states[state].value].buffer];
    if (b.region != Region::kState) return;
    b.offset = end;
    end += aligned(b.bytes);
  };
  for (int k = 0; k < static_cast<int>(graph_.states.size()); ++k) {
    if (auto at = begins.find(k); at != begins.end()) {
      for (int state : at->second->states) put(state);
    } else if (!moved.count(k)) {
      put(k);
    }
  }
}

void StepPlanner::make_buffers() {
  join_states();
  for (Bundle& b : bundles_) {
    const bool sums = !b.states.empty();
    const int first = sums ? slot_of_[graph_.states[b.states[0]].value].buffer : -1;
    b.buffer = new_buffer(sums ? Region::kState : Region::kArena, b.bytes, sums ? plan_.buffers[first].offset : 0);
  }
  for (Temporary& t : temporaries_) t.buffer = new_buffer(t.region, byte_size(t.type));
  std::map<int, const Bundle*> bundle_at;
  for (const Bundle& b : bundles_) bundle_at[b.step] = &b;
  for (size_t k = 0; k < drafts_.size(); ++k) {
    PlanStep step = drafts_[k].step;
    if (auto at = bundle_at.find(static_cast<int>(k)); at != bundle_at.end()) {
      // One flat operand, padding and all.
      DType type = drafts_[k].uses[0].type.dtype;
      TensorType flat{type, {at->second->bytes / dtype_size(type)}};
      step.operands = {{flat, at->second->buffer, 0}, {flat, at->second->buffer, 0}};
      step.inputs = 1;
    } else {
      for (const Use& u : drafts_[k].uses) {
        step.operands.push_back(u.absent ? PlanOperand{} : operand(u.type, u.id));
        step.values.push_back(u.absent ? kNoValue : u.id >= 0 ? u.id : u.id + kNoValue);
      }
    }
    plan_.steps.push_back(std::move(step));
  }
}

void StepPlanner::make_interface() {
  for (const State& s : graph_.states) plan_.states.push_back(operand(graph_.type(s.value), s.value));
  for (const GraphInput& i : graph_.inputs) plan_.inputs.push_back(operand(graph_.type(i.value), i.value));
  for (const GraphOutput& o : graph_.outputs) {
    ValueId v = code_.storage(o.value);
    auto aside = output_copies_.find(v);
    plan_.outputs.push_back(operand(graph_.type(o.value), aside == output_copies_.end() ? v : -1 - aside->second));
  }
}

PlanOperand StepPlanner::operand(const TensorType& type, int id) {
  if (id < 0) return {type, temporaries_[-1 - id].buffer, 0};
  Slot slot = slot_for(id);
  return {type, slot.buffer, slot.offset};
}

StepPlanner::Slot StepPlanner::slot_for(ValueId v) {
  if (bundle_[v].buffer >= 0) return {bundles_[bundle_[v].buffer].buffer, bundle_[v].offset};
  ValueId r = root(v);
  if (slot_of_[r].buffer < 0) {
    bool constant = code_.literals[r] != nullptr;
    slot_of_[r] =
        constant ? constant_slot(r) : Slot{new_buffer(arena_of(code_.producer(r)), byte_size(graph_.type(r))), 0};
  }
  return slot_of_[r];
}

void StepPlanner::finish_lifetimes() {
  auto extend = [&](int buffer, const Span& s) {
    PlanBuffer& b = plan_.buffers[buffer];
    if (!is_arena(b.region) || s.birth == INT_MAX) return;
    b.birth = b.birth < 0 ? s.birth : std::min(b.birth, s.birth);
    b.death = std::max(b.death, s.death);
    b.last = std::max(b.last, s.last);
    const PlanStep& made = drafts_[s.birth].step;
    b.later = b.later || std::any_of(s.readers.begin(), s.readers.end(), [&](int at) {
                const PlanStep& reader = drafts_[at].step;
                return reader.segment == made.segment && reader.phase > made.phase;
              });
  };
  for (size_t v = 0; v < value_spans_.size(); ++v) {
    ValueId id = static_cast<ValueId>(v);
    int buffer = bundle_[id].buffer >= 0 ? bundles_[bundle_[id].buffer].buffer : slot_of_[root(id)].buffer;
    if (buffer >= 0) extend(buffer, value_spans_[v]);
  }
  for (size_t t = 0; t < temporaries_.size(); ++t) {
    if (!temporaries_[t].outbox) extend(temporaries_[t].buffer, temporary_spans_[t]);
  }
  if (options_.turns > 1) outlast_turns();
}

// What is summed beside the last of the micro-batches that take turns is used until a part of a phase of backward ends:
// the others, whose turn comes before its own, have run the parts behind that one while it was.
void StepPlanner::outlast_turns() {
  std::map<int32_t, int> ends;                      // of phases of backward
  std::vector<int> within(plan_.steps.size(), -1);  // the last step of the phase that runs, or has just run
  for (size_t k = 0; k < plan_.steps.size(); ++k) {
    if (plan_.steps[k].segment == Segment::kBackward) ends[plan_.steps[k].phase] = static_cast<int>(k);
  }
  for (size_t k = 0, phase = 0; k < plan_.steps.size(); ++k) {
    if (plan_.steps[k].segment == Segment::kBackward) phase = static_cast<size_t>(plan_.steps[k].phase) + 1;
    if (phase > 0) within[k] = ends.at(static_cast<int32_t>(phase) - 1);
  }
  for (PlanBuffer& b : plan_.buffers) {
    if (b.birth >= 0 && plan_.steps[static_cast<size_t>(b.birth)].segment == Segment::kReduce)
      b.death = std::max(b.death, within[static_cast<size_t>(b.death)]);
  }
}

int32_t StepPlanner::chunk_of(const PlanStep& step) const {
  if (options_.chunks == 1) return 0;
  const int32_t pass = step.phase / options_.turns;
  return step.segment == Segment::kForward ? pass : options_.chunks - 1 - pass;
}

StepPlanner::Reach StepPlanner::reach_of(const PlanBuffer& b) const {
  if (slots_ <= 1 || !is_arena(b.region) || b.birth < 0) return Reach::kPhase;
  const PlanStep &first = plan_.steps[b.birth], &last = plan_.steps[b.death];
  if (first.segment != Segment::kForward && first.segment != Segment::kBackward) return Reach::kPhase;
  if (last.segment != first.segment) {
    // What a step's end reads may be read by later turns as well.
    return first.segment == Segment::kForward || options_.turns > 1 || b.later ? Reach::kStep : Reach::kPhase;
  }
  if (first.phase == last.phase) return Reach::kPhase;
  return first.phase / options_.turns == last.phase / options_.turns ? Reach::kPass : Reach::kStep;
}

void StepPlanner::lay_out() {
  lay_out(Region::kArena);
  lay_out(Region::kHostArena);
}

void StepPlanner::lay_out(Region region) {
  std::vector<size_t> which;
  std::map<int32_t, std::vector<size_t>> kept;  // by chunk
  // One group's passes at a time: then what is kept for backward is as what is left for the next turn.
  const bool by_turns = options_.overlapped > 1 && slots_ <= options_.overlapped && options_.chunks == 1;
  for (size_t k = 0; k < plan_.buffers.size(); ++k) {
    PlanBuffer& b = plan_.buffers[k];
    if (b.region != region || b.birth < 0) continue;
    const Reach reach = reach_of(b);
    if (reach == Reach::kPass || (reach == Reach::kStep && by_turns)) {
      b.slot_stride = aligned(b.bytes);
      b.places = options_.overlapped;
    }
    (reach == Reach::kStep && !by_turns ? kept[chunk_of(plan_.steps[b.birth])] : which).push_back(k);
  }
  region_end(region) = place(which, 0);
  if (region == Region::kHostArena) {
    lay_out_slots_on_host(kept);
  } else {
    lay_out_outboxes();
    lay_out_slots(kept);
  }
}

void StepPlanner::lay_out_outboxes() {
  int64_t& arena = region_end(Region::kArena);
  for (int box : outboxes_) {
    PlanBuffer& b = plan_.buffers[temporaries_[box].buffer];
    b.offset = arena;
    arena += b.bytes;
  }
}

// Slot after slot, each as large as what most is kept of a micro-batch in a chunk: the host has room. The slots are
// those that the device's memory was divided into.
void StepPlanner::lay_out_slots_on_host(const std::map<int32_t, std::vector<size_t>>& kept) {
  std::vector<int64_t> bytes(static_cast<size_t>(options_.chunks), 0);
  for (const auto& [chunk, buffers] : kept)
    bytes[static_cast<size_t>(chunk)] = place(buffers, region_end(Region::kHostArena));
  const SlotClass all{.bytes = std::ranges::max(bytes)};
  for (const auto& [chunk, buffers] : kept) {
    for (size_t k : buffers) plan_.buffers[k].slot_stride = all.bytes;
  }
  region_end(Region::kHostArena) += end_of_slots(bytes, std::vector<SlotClass>(bytes.size(), all));
}

// Behind what the chunks leave in the last slots that they have.
int64_t StepPlanner::end_of_slots(const std::vector<int64_t>& bytes, const std::vector<SlotClass>& classes) const {
  int64_t end = plan_.order.empty() ? bytes[0] : 0;
  for (const StageStep& s : plan_.order) {
    const SlotClass& own = classes[static_cast<size_t>(s.chunk)];
    end = std::max(end, own.begin + (s.slot - own.first) * own.bytes + bytes[static_cast<size_t>(s.chunk)]);
  }
  return end;
}

// What the micro-batches in flight keep lies behind the rest, slot after slot: the chunks of a stage over each other,
// as a slot is one chunk's at a time. Likewise their inputs.
void StepPlanner::lay_out_slots(const std::map<int32_t, std::vector<size_t>>& kept) {
  int64_t &arena = plan_.region_bytes[static_cast<int>(Region::kArena)],
          &inputs = plan_.region_bytes[static_cast<int>(Region::kInput)];
  std::vector<int64_t> bytes(static_cast<size_t>(options_.chunks), 0);
  for (const auto& [chunk, buffers] : kept) bytes[static_cast<size_t>(chunk)] = place(buffers, 0);
  std::vector<SlotClass> classes(bytes.size(), {0, slots_, bytes[0]});
  if (slots_ > 1) classes = divide_slots(plan_.order, bytes, options_.overlapped);
  for (const auto& [chunk, buffers] : kept) {
    const SlotClass& own = classes[static_cast<size_t>(chunk)];
    for (size_t k : buffers) {
      plan_.buffers[k].offset += arena + own.begin - own.first * own.bytes;
      plan_.buffers[k].slot_stride = own.bytes;
    }
  }
  arena += end_of_slots(bytes, classes);
  const int64_t slots = std::max<int64_t>(1, slots_of(plan_.order));
  for (PlanBuffer& b : plan_.buffers) {
    if (slots > 1 && b.region == Region::kInput) b.slot_stride = inputs;
  }
  inputs *= slots;
}

// Offsets from `start` on; the bytes that they take. What has places for the micro-batches that take turns lies place
// after place, from the beginning of the phase that makes it to the end of the one that reads it last: these are what
// the others run meanwhile.
int64_t StepPlanner::place(const std::vector<size_t>& buffers, int64_t start) {
  std::map<std::pair<Segment, int32_t>, std::pair<int, int>> phases;  // the first step, and the last
  for (size_t k = 0; options_.overlapped > 1 && k < plan_.steps.size(); ++k) {
    const PlanStep& s = plan_.steps[k];
    phases.try_emplace({s.segment, s.phase}, static_cast<int>(k), 0).first->second.second = static_cast<int>(k);
  }
  const auto phase_of = [&](int step) {
    const PlanStep& s = plan_.steps[static_cast<size_t>(step)];
    return phases.at({s.segment, s.phase});
  };
  std::vector<Lifetime> lifetimes;
  for (size_t k : buffers) {
    const PlanBuffer& b = plan_.buffers[k];
    const Segment born = plan_.steps[static_cast<size_t>(b.birth)].segment;
    const bool once = born == Segment::kUpdate || (born == Segment::kReduce && !options_.updates_each);
    lifetimes.push_back({b.bytes, b.birth, b.death, b.last, once});
    if (b.places == 0) continue;
    Lifetime& l = lifetimes.back();
    l.bytes = std::min(slots_, b.places) * b.slot_stride;
    l.birth = phase_of(b.birth).first;
    l.death = phase_of(b.death).second;
    l.last = std::max(l.last, l.death);
  }
  ArenaLayout layout = layout_arena(lifetimes);
  for (size_t k = 0; k < buffers.size(); ++k) plan_.buffers[buffers[k]].offset = start + layout.offsets[k];
  return layout.bytes;
}

}  // namespace partita
