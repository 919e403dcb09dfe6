// 1. Items of the fused graph become steps; sums of what micro-batches add up start between those of backward; a
//    collective's wait goes right before the first step that touches what it leaves.
// 2. Values get buffers: a state's next value the state's own where nobody needs the old one any more, results that of
//    an operand that dies with the step (where the nest allows it), operands of a merged collective one together.
// 3. What is left of the arena is laid out by lifetimes.
#include "codegen/steps/step_plan.h"

#include <algorithm>

#include "codegen/steps/arena.h"
#include "codegen/steps/step_planner.h"

namespace partita {

using runtime::Region;
using runtime::StepKind;

StepPlanner::StepPlanner(const CodeGraph& code, const PlanOptions& options, std::vector<FusedItem> items)
    : code_(code),
      graph_(code.graph),
      options_(options),
      slots_(slots_of(options.order)),
      is_output_(graph_.values.size(), false),
      next_of_(graph_.values.size(), 0),
      slot_of_(graph_.values.size()),
      bundle_(graph_.values.size()),
      same_(graph_.values.size(), kNoValue),
      copied_from_(graph_.values.size(), false) {
  plan_.items = std::move(items);
  plan_.order = options.order;
  for (const GraphOutput& o : graph_.outputs) is_output_[code_.storage(o.value)] = true;
  for (const State& s : graph_.states) {
    if (s.next != kNoValue) ++next_of_[code_.storage(s.next)];
  }
}

StepPlan StepPlanner::run() {
  make_outside_buffers();
  make_steps();
  make_outboxes();
  start_sums_early();
  place_waits();
  if (options_.together) bring_together();
  index_steps();
  if (options_.in_place) join_accumulations();
  choose_bundles();
  choose_states();
  if (options_.in_place) reduce_sums_in_place();
  if (options_.in_place) share_in_place();
  insert_copies();
  make_buffers();
  make_interface();
  finish_lifetimes();
  lay_out();
  return std::move(plan_);
}

StepPlanner::Use StepPlanner::use_of(ValueId v) const {
  return v == kNoValue ? Use{{}, 0, true} : Use{graph_.type(v), code_.storage(v), false};
}

void StepPlanner::make_steps() {
  for (size_t k = 0; k < plan_.items.size(); ++k) {
    if (plan_.items[k].fused) {
      add_nests(static_cast<int>(k));
    } else {
      add_node(static_cast<int>(k));
    }
  }
}

void StepPlanner::add_nests(int k) {
  const FusedItem& item = plan_.items[k];
  int first = static_cast<int>(temporaries_.size());
  for (const TensorType& t : item.code.temporaries) new_temporary(t, arena_of(item.nodes[0]));
  for (const BuiltNest& built : item.code.nests) {
    Draft d;
    d.item = k;
    // Named after the last node of the group, which the others lead to.
    d.step = {.kind = StepKind::kKernel,
              .segment = item.segment,
              .phase = item.phase,
              .node = item.nodes.back(),
              .nest = &built.nest,
              .inputs = built.nest.inputs};
    for (const NestOperand& o : built.operands) {
      bool value = o.value != kNoValue;
      d.uses.push_back({value ? graph_.type(o.value) : temporaries_[first + o.temporary].type,
                        value ? o.value : -1 - (first + o.temporary), false});
    }
    drafts_.push_back(std::move(d));
  }
}

void StepPlanner::add_node(int k) {
  const FusedItem& item = plan_.items[k];
  const Node& node = graph_.nodes[item.nodes[0]];
  const NodeRole role = code_.roles[item.nodes[0]];
  Draft d;
  d.item = k;
  d.step = {.kind = role == NodeRole::kCollective ? StepKind::kCollectiveStart
                    : role == NodeRole::kCopy     ? StepKind::kCopy
                                                  : StepKind::kLibrary,
            .segment = item.segment,
            .phase = item.phase,
            .node = item.nodes[0],
            .name = role == NodeRole::kCopy ? "" : std::string(node.op->name)};
  for (ValueId v : node.inputs) d.uses.push_back(use_of(v));
  d.step.inputs = static_cast<int>(d.uses.size());
  for (ValueId v : node.outputs) d.uses.push_back(use_of(v));
  drafts_.push_back(std::move(d));
}

bool StepPlanner::reads_result(const Draft& reader, const Draft& start) {
  for (const Use& u : reader.uses) {
    for (size_t r = static_cast<size_t>(start.step.inputs); r < start.uses.size(); ++r) {
      if (!u.absent && u.id == start.uses[r].id) return true;
    }
  }
  return false;
}

// The first draft that runs once the micro-batches have; past the last one where there is none, or each updates.
size_t StepPlanner::first_update() const {
  const auto at = std::find_if(drafts_.begin(), drafts_.end(), [](const Draft& d) {
    return d.step.segment == Segment::kReduce || d.step.segment == Segment::kUpdate;
  });
  return options_.updates_each ? drafts_.size() : static_cast<size_t>(at - drafts_.begin());
}

// A message of a micro-batch is put into an outbox, which holds as many as may be under way, and leaves from there: its
// value's memory is free again, and the stage goes on before its neighbour takes the message up. The k-th messages that
// phases send in a channel share an outbox.
void StepPlanner::make_outboxes() {
  std::map<std::pair<int64_t, int>, int> outboxes;  // by channel and place in the phase -> its temporary
  std::map<int64_t, int> sent;                      // by channel, in this phase
  for (size_t k = 0; k < drafts_.size(); ++k) {
    PlanStep& s = drafts_[k].step;
    if (k > 0 && (s.segment != drafts_[k - 1].step.segment || s.phase != drafts_[k - 1].step.phase)) sent.clear();
    const Attrs* attrs = s.kind == StepKind::kCollectiveStart ? &graph_.nodes[s.node].attrs : nullptr;
    if (attrs == nullptr || !attrs->has("in_flight")) continue;
    const int64_t channel = attrs->i("channel", 0), padded = aligned(byte_size(drafts_[k].uses[0].type));
    const auto [at, fresh] = outboxes.try_emplace({channel, sent[channel]++}, static_cast<int>(outboxes.size()));
    s.outbox = at->second;
    if (fresh) outboxes_.push_back(new_temporary({DType::kU8, {attrs->i("in_flight"), 0}}, Region::kArena));
    Temporary& box = temporaries_[outboxes_[s.outbox]];
    box.outbox = true;
    box.type.shape[1] = std::max(box.type.shape[1], padded);
  }
  for (Draft& d : drafts_) {
    if (d.step.outbox < 0) continue;
    const int box = outboxes_[d.step.outbox];
    d.uses.push_back({temporaries_[box].type, -1 - box, false});
  }
}

// The first draft that makes what the state becomes; past the last one where none does.
size_t StepPlanner::first_write(ValueId state) const {
  const auto s =
      std::find_if(graph_.states.begin(), graph_.states.end(), [&](const State& x) { return x.value == state; });
  if (s == graph_.states.end() || s->next == kNoValue) return drafts_.size();
  const ValueId next = code_.storage(s->next);
  const auto at = std::find_if(drafts_.begin(), drafts_.end(), [&](const Draft& d) {
    return std::any_of(d.uses.begin() + d.step.inputs, d.uses.end(),
                       [&](const Use& u) { return !u.absent && u.id == next; });
  });
  return static_cast<size_t>(at - drafts_.begin());
}

// The wait stands before the first step that reads the result; at the end of the phase where none does, or where the
// phase runs again before one does, for the same micro-batch's slot. Nothing waits for what leaves an outbox, and what
// is sent of a state before the micro-batches goes on beside them until the update, or until the state is written where
// the forward part does so. What a reduce-scatter reads is as large as all its ranks' results, and is held until the
// wait: two of a phase are under way at most, but of sums that are there for the whole step.
void StepPlanner::place_waits() {
  auto together = [&](size_t a, size_t b) {
    return drafts_[a].step.segment == drafts_[b].step.segment && drafts_[a].step.phase == drafts_[b].step.phase;
  };
  std::map<size_t, std::vector<size_t>> before;  // draft -> starts to wait for
  std::map<size_t, bool> at_end;                 // per start
  std::map<std::pair<Segment, int32_t>, size_t> ends;
  for (size_t k = 0; k < drafts_.size(); ++k) ends[{drafts_[k].step.segment, drafts_[k].step.phase}] = k + 1;
  for (size_t k = 0; k < drafts_.size(); ++k) {
    if (drafts_[k].step.kind != StepKind::kCollectiveStart || drafts_[k].step.outbox >= 0) continue;
    Segment segment = drafts_[k].step.segment;
    const size_t end = ends.at({segment, drafts_[k].step.phase});
    size_t reader = k + 1;
    bool sends = drafts_[k].uses.size() == static_cast<size_t>(drafts_[k].step.inputs);
    while (reader < drafts_.size() && !reads_result(drafts_[reader], drafts_[k])) ++reader;
    if (sends && segment == Segment::kPrologue && drafts_[k].uses[0].id >= 0 && !is_computed(drafts_[k].uses[0].id))
      reader = std::min(first_update(), first_write(drafts_[k].uses[0].id));
    const bool holds = std::any_of(drafts_[k].uses.begin(), drafts_[k].uses.begin() + drafts_[k].step.inputs,
                                   [&](const Use& u) { return u.id < 0 || next_of_[u.id] == 0; });
    if (drafts_[k].step.name == "reduce_scatter" && holds) {
      size_t next = k;
      for (int later = 0; later < 2 && next < end; ++later) {
        do ++next;
        while (next < end && !(together(next, k) && drafts_[next].step.kind == StepKind::kCollectiveStart &&
                               drafts_[next].step.name == "reduce_scatter"));
      }
      if (next < end) reader = std::min(reader, next);
    }
    // Where micro-batches take turns, each has collectives of its own under way, and a phase runs again in its slot
    // when all phases have.
    const bool turns = options_.turns > 1 && reader < drafts_.size() && is_repeated(drafts_[reader].step.segment);
    bool repeated = !sends && options_.micro_batches > 1 && is_repeated(segment) && !turns;
    at_end[k] = reader >= end && (reader == drafts_.size() || repeated);
    before[at_end[k] ? end : reader].push_back(k);
  }
  std::vector<Draft> all;
  std::vector<int> now(drafts_.size(), -1);
  for (size_t k = 0; k <= drafts_.size(); ++k) {
    // What a phase waits for at its end stands before what the next one's first step waits for.
    std::stable_partition(before[k].begin(), before[k].end(), [&](size_t start) { return at_end[start]; });
    for (size_t start : before[k]) {
      const PlanStep& s = now[start] < 0 ? drafts_[start].step : all[now[start]].step;
      Draft wait;
      wait.step = {.kind = StepKind::kCollectiveWait,
                   .segment = at_end[start] ? s.segment : drafts_[k].step.segment,
                   .phase = at_end[start] ? s.phase : drafts_[k].step.phase,
                   .node = s.node,
                   .name = s.name,
                   .waits_for = static_cast<int>(start)};
      all.push_back(std::move(wait));
    }
    if (k == drafts_.size()) break;
    now[k] = static_cast<int>(all.size());
    all.push_back(std::move(drafts_[k]));
  }
  for (Draft& d : all) {
    if (d.step.waits_for >= 0) d.step.waits_for = now[d.step.waits_for];
  }
  drafts_ = std::move(all);
}

// Lifetimes of values, and what else follows from the steps' places.
void StepPlanner::index_steps() {
  value_spans_.assign(graph_.values.size(), {});
  temporary_spans_.assign(temporaries_.size(), {});
  drafts_of_item_.assign(plan_.items.size(), {});
  last_training_ = last_repeated_ = -1;
  for (int at = 0; at < static_cast<int>(drafts_.size()); ++at) {
    const Draft& d = drafts_[at];
    if (d.step.segment != Segment::kEvaluation) last_training_ = at;
    if (is_repeated(d.step.segment) || d.step.segment == Segment::kPrologue) last_repeated_ = at;
    if (d.item >= 0) drafts_of_item_[d.item].push_back(at);
    for (size_t u = 0; u < d.uses.size(); ++u) {
      if (d.uses[u].absent) continue;
      Span& s = span_of(d.uses[u].id);
      s.birth = std::min(s.birth, at);
      s.death = std::max(s.death, at);
      if (static_cast<int>(u) < d.step.inputs) s.readers.push_back(at);
    }
    if (d.step.kind == StepKind::kCollectiveWait) {
      for (const Use& u : drafts_[d.step.waits_for].uses) span_of(u.id).death = span_of(u.id).held = at;
    }
  }
  hold_leaving();
  int end = static_cast<int>(drafts_.size()) - 1;
  for (size_t v = 0; v < value_spans_.size(); ++v) {
    Span& s = value_spans_[v];
    s.last = s.death;
    if (s.birth == INT_MAX || !is_computed(static_cast<ValueId>(v))) continue;
    Segment born = drafts_[s.birth].step.segment;
    // What the prologue leaves is read by every micro-batch. What a collective of its holds until the first of them
    // waits is not.
    const int last_read = s.readers.empty() ? s.birth : s.readers.back();
    bool read_again = born == Segment::kPrologue && drafts_[last_read].step.segment != Segment::kPrologue;
    if (options_.micro_batches > 1 && read_again) s.death = std::max(s.death, last_repeated_);
    if (is_output_[v]) s.last = s.death = std::max(s.death, born == Segment::kEvaluation ? end : last_training_);
  }
  for (size_t t = 0; t < temporaries_.size(); ++t) {
    if (temporaries_[t].to_the_end) temporary_spans_[t].death = last_training_;
    temporary_spans_[t].last = temporary_spans_[t].death;
  }
}

// What the forward part copies to the host is on its way while the next block is computed: its memory is not given to
// others before, who would have to wait.
void StepPlanner::hold_leaving() {
  const auto block_of = [&](const Draft& d) { return d.step.node < 0 ? -1 : graph_.nodes[d.step.node].block; };
  for (size_t k = 0; k < drafts_.size(); ++k) {
    const PlanStep& copy = drafts_[k].step;
    const bool leaves = copy.kind == StepKind::kCopy && copy.segment == Segment::kForward && copy.node >= 0 &&
                        arena_of(copy.node) == Region::kHostArena;
    if (!leaves) continue;
    const int32_t own = block_of(drafts_[k]);
    int32_t next = -1;
    size_t until = k;
    for (size_t later = k + 1; later < drafts_.size(); ++later) {
      const PlanStep& step = drafts_[later].step;
      const int32_t block = block_of(drafts_[later]);
      if (step.segment != copy.segment || step.phase != copy.phase) break;
      if (block != own && block >= 0 && next < 0) next = block;
      if (block != own && block >= 0 && block != next) break;
      until = later;
    }
    Span& s = span_of(drafts_[k].uses[0].id);
    s.death = s.held = std::max(s.death, static_cast<int>(until));
  }
}

// Drops drafts of kernels that have lost their nests.
void StepPlanner::remove_gone() {
  std::vector<int> now;
  std::vector<Draft> all;
  for (Draft& d : drafts_) {
    now.push_back(static_cast<int>(all.size()));
    if (d.step.kind != StepKind::kKernel || d.step.nest != nullptr) all.push_back(std::move(d));
  }
  for (Draft& d : all) {
    if (d.step.waits_for >= 0) d.step.waits_for = now[d.step.waits_for];
  }
  drafts_ = std::move(all);
  index_steps();
}

StepPlan make_step_plan(CodeGraph& code, const PlanOptions& options) {
  std::vector<FusedItem> items = fuse(code, options.fusion);
  return StepPlanner(code, options, std::move(items)).run();
}

}  // namespace partita
