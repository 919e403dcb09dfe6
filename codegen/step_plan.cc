// 1. Items of the fused graph become steps; a collective's wait goes right before the first step that touches its
// result.
// 2. Values get buffers: a state's next value the state's own where nobody needs the old one any more, results the
// buffer of an operand that dies with the
//    step (where the nest allows it), operands of a joint collective one buffer together.
// 3. What is left of the arena is laid out by lifetimes.
#include "codegen/step_plan.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <set>

#include "base/cat.h"
#include "base/checksum.h"
#include "base/status.h"
#include "codegen/arena.h"
#include "codegen/nest_schedule.h"

namespace partita {
namespace {

using runtime::Region;
using runtime::StepKind;

int64_t aligned(int64_t bytes) { return (bytes + 63) / 64 * 64; }

class Planner {
 public:
  Planner(const CodeGraph& code, const PlanOptions& options) : code_(code), graph_(code.graph), options_(options) {}

  StepPlan run() {
    plan_.items = fuse(code_, options_.fusion);
    slot_of_.assign(graph_.values.size(), {-1, 0});
    make_outside_buffers();
    make_steps();
    place_waits();
    index_steps();
    choose_bundles();
    choose_states();
    if (options_.in_place) share_in_place();
    make_buffers();
    finish_lifetimes();
    lay_out();
    return std::move(plan_);
  }

 private:
  // A step while buffers are still values: >= 0 a storage value, < 0 a temporary.
  struct Use {
    TensorType type;
    int id = 0;
    bool absent = false;
  };
  struct Draft {
    PlanStep step;
    std::vector<Use> uses;
    int item = -1;
  };
  struct Slot {
    int buffer;
    int64_t offset;
  };
  static constexpr int kNowhere = INT32_MAX;

  int new_buffer(Region region, int64_t bytes, int64_t offset = 0) {
    plan_.buffers.push_back({region, offset, bytes});
    return static_cast<int>(plan_.buffers.size()) - 1;
  }
  int new_fixed(Region region, int64_t bytes) {
    int64_t& end = plan_.region_bytes[static_cast<int>(region)];
    int b = new_buffer(region, bytes, end);
    end += aligned(bytes);
    return b;
  }

  // ---- Inputs, states, constants.

  void make_outside_buffers() {
    for (const GraphInput& in : graph_.inputs)
      slot_of_[in.value] = {new_fixed(Region::kInput, byte_size(graph_.type(in.value))), 0};
    for (const State& s : graph_.states)
      slot_of_[s.value] = {new_fixed(Region::kState, byte_size(graph_.type(s.value))), 0};
  }

  // Constants get a place when something reads them from memory; equal ones share it.
  Slot constant_slot(ValueId v) {
    const Literal& literal = *code_.literals[v];
    auto bytes = literal.bytes();
    uint64_t hash = checksum64(bytes);
    for (auto [at, end] = constants_by_hash_.equal_range(hash); at != end; ++at) {
      auto other = plan_.constants[at->second].second->bytes();
      if (other.size() == bytes.size() && std::memcmp(other.data(), bytes.data(), bytes.size()) == 0)
        return {plan_.constants[at->second].first, 0};
    }
    int b = new_fixed(Region::kConstant, static_cast<int64_t>(bytes.size()));
    constants_by_hash_.emplace(hash, plan_.constants.size());
    plan_.constants.emplace_back(b, &literal);
    return {b, 0};
  }

  // ---- Steps.

  Use use_of(ValueId v) const {
    return v == kNoValue ? Use{{}, 0, true} : Use{graph_.type(v), code_.storage(v), false};
  }

  void make_steps() {
    for (size_t k = 0; k < plan_.items.size(); ++k) {
      const FusedItem& item = plan_.items[k];
      if (item.fused) {
        add_nests(static_cast<int>(k));
      } else {
        add_node(static_cast<int>(k));
      }
    }
  }

  void add_nests(int k) {
    const FusedItem& item = plan_.items[k];
    int first_temporary = static_cast<int>(temporaries_.size());
    for (const TensorType& t : item.code.temporaries) temporaries_.push_back({t, -1});
    for (const BuiltNest& built : item.code.nests) {
      Draft d;
      d.item = k;
      // The origin of the node that does most: the last one of the group.
      d.step = {.kind = StepKind::kKernel,
                .segment = item.segment,
                .node = item.nodes.back(),
                .nest = &built.nest,
                .inputs = built.nest.inputs};
      for (const NestOperand& o : built.operands) {
        if (o.value != kNoValue) {
          d.uses.push_back({graph_.type(o.value), o.value, false});
        } else {
          d.uses.push_back(
              {temporaries_[first_temporary + o.temporary].type, -1 - (first_temporary + o.temporary), false});
        }
      }
      drafts_.push_back(std::move(d));
    }
  }

  void add_node(int k) {
    const FusedItem& item = plan_.items[k];
    const Node& node = graph_.nodes[item.nodes[0]];
    bool collective = code_.roles[item.nodes[0]] == NodeRole::kCollective;
    Draft d;
    d.item = k;
    d.step = {.kind = collective ? StepKind::kCollectiveStart : StepKind::kLibrary,
              .segment = item.segment,
              .node = item.nodes[0],
              .name = std::string(node.op->name)};
    for (ValueId v : node.inputs) d.uses.push_back(use_of(v));
    d.step.inputs = static_cast<int>(d.uses.size());
    for (ValueId v : node.outputs) d.uses.push_back(use_of(v));
    drafts_.push_back(std::move(d));
  }

  bool repeated(Segment s) const {
    return options_.micro_batches > 1 && (s == Segment::kForward || s == Segment::kBackward);
  }

  // The wait stands before the first step that reads the result; at the end of the segment where none does, or where
  // the segment runs again before one does.
  void place_waits() {
    std::map<int, std::vector<int>> before;  // draft index -> starts to wait for
    for (size_t k = 0; k < drafts_.size(); ++k) {
      if (drafts_[k].step.kind != StepKind::kCollectiveStart) continue;
      std::set<int> results;
      for (size_t u = static_cast<size_t>(drafts_[k].step.inputs); u < drafts_[k].uses.size(); ++u)
        results.insert(drafts_[k].uses[u].id);
      size_t segment_end = k + 1, reader = drafts_.size();
      while (segment_end < drafts_.size() && drafts_[segment_end].step.segment == drafts_[k].step.segment)
        ++segment_end;
      for (size_t j = k + 1; j < drafts_.size() && reader == drafts_.size(); ++j) {
        for (const Use& u : drafts_[j].uses) {
          if (!u.absent && results.count(u.id)) reader = j;
        }
      }
      bool far = reader >= segment_end && (reader == drafts_.size() || repeated(drafts_[k].step.segment));
      before[static_cast<int>(far ? segment_end : reader)].push_back(static_cast<int>(k));
    }
    std::vector<Draft> all;
    std::vector<int> now(drafts_.size(), -1);
    for (size_t k = 0; k <= drafts_.size(); ++k) {
      for (int start : before.count(static_cast<int>(k)) ? before[static_cast<int>(k)] : std::vector<int>{}) {
        Draft wait;
        wait.step = {.kind = StepKind::kCollectiveWait,
                     .node = drafts_[start].step.node,
                     .name = drafts_[start].step.name,
                     .waits_for = now[start]};
        // At a reader in its segment; at the end of a segment still in that one.
        bool at_end = k == drafts_.size() || (drafts_[k].step.segment != drafts_[start].step.segment &&
                                              !reads_result(drafts_[k], drafts_[start]));
        wait.step.segment = at_end ? drafts_[start].step.segment : drafts_[k].step.segment;
        all.push_back(std::move(wait));
      }
      if (k == drafts_.size()) break;
      now[k] = static_cast<int>(all.size());
      all.push_back(std::move(drafts_[k]));
      drafts_[k].step = all.back().step;  // its kind, node and segment are still asked for
      drafts_[k].uses = all.back().uses;
    }
    drafts_ = std::move(all);
  }

  static bool reads_result(const Draft& reader, const Draft& start) {
    for (const Use& u : reader.uses) {
      for (size_t r = static_cast<size_t>(start.step.inputs); r < start.uses.size(); ++r) {
        if (!u.absent && u.id == start.uses[r].id) return true;
      }
    }
    return false;
  }

  // ---- Lifetimes of values: the steps that write and read them.

  struct Span {
    int birth = kNowhere, death = -1;
    std::vector<int> readers;
  };

  Span& span_of(int id) { return id >= 0 ? value_spans_[id] : temporary_spans_[-1 - id]; }

  void index_steps() {
    value_spans_.assign(graph_.values.size(), {});
    temporary_spans_.assign(temporaries_.size(), {});
    last_training_ = -1;
    std::map<int, int> waited;
    for (size_t k = 0; k < drafts_.size(); ++k) {
      const Draft& d = drafts_[k];
      int at = static_cast<int>(k);
      if (d.step.segment != Segment::kEvaluation) last_training_ = at;
      if (d.step.segment <= Segment::kBackward) last_repeated_ = at;
      for (size_t u = 0; u < d.uses.size(); ++u) {
        if (d.uses[u].absent) continue;
        Span& s = span_of(d.uses[u].id);
        bool written = static_cast<int>(u) >= d.step.inputs;
        s.birth = std::min(s.birth, at);
        s.death = std::max(s.death, at);
        if (!written) s.readers.push_back(at);
      }
      if (d.step.kind == StepKind::kCollectiveWait) {
        for (const Use& u : drafts_[d.step.waits_for].uses) {
          if (!u.absent) span_of(u.id).death = std::max(span_of(u.id).death, at);
        }
      }
    }
    for (size_t v = 0; v < value_spans_.size(); ++v) {
      Span& s = value_spans_[v];
      if (s.birth == kNowhere || code_.producer(static_cast<ValueId>(v)) == kNoNode) continue;
      // What the prologue leaves is read by every micro-batch.
      if (options_.micro_batches > 1 && drafts_[s.birth].step.segment == Segment::kPrologue &&
          s.death <= last_repeated_ && drafts_[s.death].step.segment != Segment::kPrologue)
        s.death = last_repeated_;
    }
    for (const GraphOutput& o : graph_.outputs) {
      Span& s = value_spans_[code_.storage(o.value)];
      if (s.birth == kNowhere) continue;
      s.death =
          std::max(s.death, drafts_[s.birth].step.segment == Segment::kEvaluation ? static_cast<int>(drafts_.size()) - 1
                                                                                  : last_training_);
    }
  }

  bool is_computed(ValueId v) const { return code_.producer(v) != kNoNode; }
  bool is_output(ValueId storage) const {
    return std::any_of(graph_.outputs.begin(), graph_.outputs.end(),
                       [&](const GraphOutput& o) { return code_.storage(o.value) == storage; });
  }

  // ---- Joint collectives: operands side by side in one buffer.

  void choose_bundles() {
    bundle_.assign(graph_.values.size(), {-1, 0});
    for (size_t k = 0; k < drafts_.size(); ++k) {
      const Draft& d = drafts_[k];
      if (d.step.kind != StepKind::kCollectiveStart || d.uses.size() == 2) continue;
      Bundle bundle;
      bundle.step = static_cast<int>(k);
      int64_t at = 0;
      for (int j = 0; j < d.step.inputs; ++j) {
        const Use& u = d.uses[j];
        const Use& result = d.uses[d.step.inputs + j];
        int64_t bytes = byte_size(u.type);
        bundle.offsets.push_back(at);
        int index = static_cast<int>(bundles_.size());
        bundle_[result.id] = {index, at};
        // An operand that nothing reads afterwards is computed right there; else it is copied.
        bool free = is_computed(u.id) && bundle_[u.id].buffer < 0 && !is_output(u.id) &&
                    span_of(u.id).readers.back() == static_cast<int>(k) && !is_next(u.id);
        bundle.copied.push_back(!free);
        if (free) bundle_[u.id] = {index, at};
        at += aligned(bytes);
      }
      bundle.bytes = at;
      bundles_.push_back(std::move(bundle));
    }
  }

  bool is_next(ValueId storage) const {
    return std::any_of(graph_.states.begin(), graph_.states.end(),
                       [&](const State& s) { return s.next != kNoValue && code_.storage(s.next) == storage; });
  }

  // ---- States.

  // A step of a group writes `written` in the very places where it reads `old` last.
  bool may_overwrite(int step, int written, int old) const {
    const Draft& d = drafts_[step];
    if (d.step.kind == StepKind::kCollectiveStart) return d.uses.size() == 2 && d.step.name == "all_reduce";
    if (d.step.nest == nullptr) return false;
    // All nests of the group, in order: none may read `old` after another wrote over it, unless it writes there itself.
    bool wrote = false;
    for (const Draft& nest : drafts_) {
      if (nest.item != d.item || nest.step.nest == nullptr) continue;
      int in = -1, out = -1;
      for (size_t u = 0; u < nest.uses.size(); ++u) {
        if (nest.uses[u].id == old && static_cast<int>(u) < nest.step.inputs) in = static_cast<int>(u);
        if (nest.uses[u].id == written && static_cast<int>(u) >= nest.step.inputs) out = static_cast<int>(u);
      }
      if (in >= 0 && out >= 0 && !may_share(*nest.step.nest, in, out)) return false;
      if (in >= 0 && out < 0 && wrote) return false;
      wrote = wrote || out >= 0;
    }
    return true;
  }

  // First and last steps that write a value (a group of several nests writes it piece by piece).
  int first_write(int id) const {
    for (size_t k = 0; k < drafts_.size(); ++k) {
      for (size_t u = static_cast<size_t>(drafts_[k].step.inputs); u < drafts_[k].uses.size(); ++u) {
        if (!drafts_[k].uses[u].absent && drafts_[k].uses[u].id == id) return static_cast<int>(k);
      }
    }
    return -1;
  }

  void choose_states() {
    for (const State& s : graph_.states) {
      if (s.next == kNoValue) continue;
      ValueId next = code_.storage(s.next);
      if (next == s.value) continue;
      if (can_update_in_place(s, next)) {
        slot_of_[next] = slot_of_[s.value];
      } else {
        copies_.push_back({next, s.value});
      }
    }
  }

  bool can_update_in_place(const State& s, ValueId next) {
    if (!is_computed(next) || slot_of_[next].buffer >= 0 || bundle_[next].buffer >= 0 || is_output(s.value))
      return false;
    if (byte_size(graph_.type(next)) != byte_size(graph_.type(s.value))) return false;
    int at = value_spans_[next].birth;
    for (int r : value_spans_[s.value].readers) {
      if (r < at) continue;
      if (drafts_[r].item == drafts_[at].item && drafts_[at].item >= 0 && may_overwrite(at, next, s.value)) continue;
      return false;
    }
    // A copy into another state reads the old value at the end.
    for (const State& other : graph_.states) {
      if (other.next != kNoValue && code_.storage(other.next) == s.value && other.value != s.value) return false;
    }
    return true;
  }

  // ---- In place within the arena.

  void share_in_place() {
    same_.assign(graph_.values.size(), kNoValue);
    std::set<int> taken;  // by one output for good: another nest of the same group may still read the value, but not
                          // take it again
    for (size_t k = 0; k < drafts_.size(); ++k) {
      const Draft& d = drafts_[k];
      bool reduce = d.step.kind == StepKind::kCollectiveStart && d.step.name == "all_reduce" && d.uses.size() == 2;
      if (d.step.nest == nullptr && !reduce) continue;
      for (size_t o = static_cast<size_t>(d.step.inputs); o < d.uses.size(); ++o) {
        int out = d.uses[o].id;
        if (out < 0 || !in_arena(out) || value_spans_[out].birth != static_cast<int>(k)) continue;
        for (int i = 0; i < d.step.inputs; ++i) {
          int in = d.uses[i].id;
          if (in < 0 || d.uses[i].absent || taken.count(in) || !in_arena(in) || !is_computed(in)) continue;
          if (byte_size(graph_.type(in)) != byte_size(graph_.type(out)) || byte_size(graph_.type(in)) == 0) continue;
          if (!dies_with(in, static_cast<int>(k)) || !may_overwrite(static_cast<int>(k), out, in)) continue;
          // One operand more of this step in the same buffer would be overwritten too.
          bool clash = false;
          for (int j = 0; j < d.step.inputs; ++j)
            clash = clash || (j != i && d.uses[j].id >= 0 && !d.uses[j].absent && d.uses[j].id != in &&
                              root(d.uses[j].id) == root(in));
          if (clash) continue;
          same_[out] = in;
          taken.insert(in);
          break;
        }
      }
    }
  }

  ValueId root(ValueId v) const {
    while (!same_.empty() && same_[v] != kNoValue) v = same_[v];
    return v;
  }
  bool in_arena(ValueId v) const { return is_computed(v) && slot_of_[v].buffer < 0 && bundle_[v].buffer < 0; }

  // No step after the group of step k uses the value, nor a copy at the end.
  bool dies_with(ValueId v, int k) const {
    int death = value_spans_[v].death;
    if (death != k && (drafts_[death].item != drafts_[k].item || drafts_[k].item < 0)) {
      // A collective keeps its operand until its wait.
      if (!(drafts_[k].step.kind == StepKind::kCollectiveStart && drafts_[death].step.waits_for == k)) return false;
    }
    if (is_output(v)) return false;
    for (const auto& [from, to] : copies_) {
      if (from == v) return false;
    }
    return true;
  }

  // ---- Buffers of the arena, and the steps as they will be.

  void make_buffers() {
    insert_copies();
    for (Bundle& b : bundles_) b.buffer = new_buffer(Region::kArena, b.bytes);
    for (auto& t : temporaries_) t.buffer = new_buffer(Region::kArena, byte_size(t.type));
    for (const Draft& d : drafts_) {
      PlanStep step = d.step;
      if (step.kind == StepKind::kCollectiveStart && d.uses.size() > 2) {
        // One flat operand, padding and all.
        const Bundle& b = *std::find_if(bundles_.begin(), bundles_.end(), [&](const Bundle& x) {
          return x.step == static_cast<int>(plan_.steps.size());
        });
        DType type = d.uses[0].type.dtype;
        TensorType flat{type, {b.bytes / dtype_size(type)}};
        step.operands = {{flat, b.buffer, 0}, {flat, b.buffer, 0}};
        step.inputs = 1;
      } else if (step.kind != StepKind::kCollectiveWait) {
        for (const Use& u : d.uses) step.operands.push_back(u.absent ? PlanOperand{} : operand(u.type, u.id));
      }
      plan_.steps.push_back(std::move(step));
    }
    for (const State& s : graph_.states) plan_.states.push_back(operand(graph_.type(s.value), s.value));
    for (const GraphInput& i : graph_.inputs) plan_.inputs.push_back(operand(graph_.type(i.value), i.value));
    for (const GraphOutput& o : graph_.outputs)
      plan_.outputs.push_back(operand(graph_.type(o.value), code_.storage(o.value)));
  }

  PlanOperand operand(const TensorType& type, int id) {
    if (id < 0) return {type, temporaries_[-1 - id].buffer, 0};
    Slot slot = slot_for(id);
    return {type, slot.buffer, slot.offset};
  }

  Slot slot_for(ValueId v) {
    if (bundle_[v].buffer >= 0) return {bundles_[bundle_[v].buffer].buffer, bundle_[v].offset};
    ValueId r = root(v);
    if (slot_of_[r].buffer < 0) {
      slot_of_[r] = code_.literals[r] != nullptr ? constant_slot(r)
                                                 : Slot{new_buffer(Region::kArena, byte_size(graph_.type(r))), 0};
    }
    return slot_of_[r];
  }

  // Copies into bundles before their collective, and into states at the end of the segment that last reads the old
  // value.
  void insert_copies() {
    std::map<int, std::vector<Draft>> before;
    for (const Bundle& b : bundles_) {
      const Draft& d = drafts_[b.step];
      for (size_t j = 0; j < b.copied.size(); ++j) {
        if (b.copied[j])
          before[b.step].push_back(
              copy_step(d.uses[j].type, d.uses[j].id, d.uses[d.step.inputs + j].id, d.step.segment, d.step.node));
      }
    }
    for (const auto& [from, to] : copies_) {
      int last = value_spans_[from].birth == kNowhere || !is_computed(from) ? -1 : value_spans_[from].birth;
      for (int r : value_spans_[to].readers) last = std::max(last, r);
      Segment segment = last < 0 ? Segment::kUpdate : drafts_[last].step.segment;
      if (!is_computed(from)) segment = Segment::kUpdate;
      size_t end = 0;
      while (end < drafts_.size() && drafts_[end].step.segment <= segment) ++end;
      before[static_cast<int>(end)].push_back(copy_step(graph_.type(to), from, to, segment, code_.producer(from)));
    }
    std::vector<Draft> all;
    std::vector<int> now(drafts_.size() + 1, 0);
    for (size_t k = 0; k <= drafts_.size(); ++k) {
      for (Draft& d : before[static_cast<int>(k)]) all.push_back(std::move(d));
      now[k] = static_cast<int>(all.size());
      if (k < drafts_.size()) all.push_back(std::move(drafts_[k]));
    }
    for (Draft& d : all) {
      if (d.step.waits_for >= 0) d.step.waits_for = now[d.step.waits_for];
    }
    for (Bundle& b : bundles_) b.step = now[b.step];
    drafts_ = std::move(all);
    index_steps();
  }

  static Draft copy_step(const TensorType& type, int from, int to, Segment segment, NodeId node) {
    Draft d;
    d.step = {.kind = StepKind::kCopy, .segment = segment, .node = node, .inputs = 1};
    d.uses = {{type, from, false}, {type, to, false}};
    return d;
  }

  void finish_lifetimes() {
    auto extend = [&](int buffer, int birth, int death) {
      PlanBuffer& b = plan_.buffers[buffer];
      if (b.region != Region::kArena || birth == kNowhere) return;
      b.birth = b.birth < 0 ? birth : std::min(b.birth, birth);
      b.death = std::max(b.death, death);
    };
    for (size_t v = 0; v < value_spans_.size(); ++v) {
      if (value_spans_[v].birth == kNowhere) continue;
      ValueId id = static_cast<ValueId>(v);
      int buffer = bundle_[id].buffer >= 0 ? bundles_[bundle_[id].buffer].buffer : slot_of_[root(id)].buffer;
      if (buffer >= 0) extend(buffer, value_spans_[v].birth, value_spans_[v].death);
    }
    for (size_t t = 0; t < temporaries_.size(); ++t)
      extend(temporaries_[t].buffer, temporary_spans_[t].birth, temporary_spans_[t].death);
  }

  void lay_out() {
    std::vector<Lifetime> lifetimes;
    std::vector<int> which;
    for (size_t k = 0; k < plan_.buffers.size(); ++k) {
      const PlanBuffer& b = plan_.buffers[k];
      if (b.region != Region::kArena || b.birth < 0) continue;
      lifetimes.push_back({b.bytes, b.birth, b.death});
      which.push_back(static_cast<int>(k));
    }
    ArenaLayout layout = layout_arena(lifetimes);
    for (size_t k = 0; k < which.size(); ++k) plan_.buffers[which[k]].offset = layout.offsets[k];
    plan_.region_bytes[static_cast<int>(Region::kArena)] = layout.bytes;
  }

  struct Temporary {
    TensorType type;
    int buffer;
  };
  struct Bundle {
    int step = -1;
    int64_t bytes = 0;
    int buffer = -1;
    std::vector<int64_t> offsets;
    std::vector<bool> copied;
  };

  const CodeGraph& code_;
  const Graph& graph_;
  PlanOptions options_;
  StepPlan plan_;
  std::vector<Draft> drafts_;
  std::vector<Temporary> temporaries_;
  std::vector<Slot> slot_of_;  // per storage value: its buffer, once it has one
  std::vector<Slot> bundle_;   // per storage value: bundle (as `buffer`) and offset in it
  std::vector<Bundle> bundles_;
  std::vector<ValueId> same_;                        // per storage value: the value whose buffer it takes over
  std::vector<std::pair<ValueId, ValueId>> copies_;  // next value -> state
  std::vector<Span> value_spans_, temporary_spans_;
  std::multimap<uint64_t, size_t> constants_by_hash_;
  int last_training_ = -1, last_repeated_ = -1;
};

}  // namespace

StepPlan make_step_plan(const CodeGraph& code, const PlanOptions& options) { return Planner(code, options).run(); }

}  // namespace partita
