// The maker of step plans; see step_plan.cc. Its parts: step_plan.cc (steps, waits, lifetimes), step_plan_sums.cc
// (which sums start within backward), step_plan_order.cc (what stands together), step_plan_sharing.cc (which values
// share memory), step_plan_buffers.cc (buffers and their places).
#pragma once

#include <climits>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "codegen/steps/step_plan.h"

namespace partita {

class StepPlanner {
 public:
  StepPlanner(const CodeGraph& code, const PlanOptions& options, std::vector<FusedItem> items);
  StepPlan run();

 private:
  // An operand while buffers are still values: id >= 0 is a storage value, id < 0 the temporary -1 - id.
  struct Use {
    TensorType type;
    int id = 0;
    bool absent = false;
  };
  struct Draft {
    PlanStep step;
    std::vector<Use> uses;
    int item = -1;  // of plan_.items; -1 for waits and copies
  };
  struct Slot {
    int buffer = -1;
    int64_t offset = 0;
  };
  struct Temporary {
    TensorType type;
    runtime::Region region = runtime::Region::kArena;
    bool to_the_end = false;  // an output's
    bool outbox = false;      // lies in no one's place: messages leave it while other phases run
    int buffer = -1;
  };
  // Operands of a collective side by side.
  struct Bundle {
    int step = -1;
    int64_t bytes = 0;
    int buffer = -1;
    std::vector<bool> copied;  // per operand: comes by a copy
    std::vector<int> states;   // accumulators that it is, one for each operand; empty: none
  };
  // The steps that use a value. A collective holds its operands until its wait.
  struct Span {
    int birth = INT_MAX, death = -1, held = -1;
    int last = -1;  // `death` without the readers of later micro-batches
    std::vector<int> readers;
  };
  // A state's next value that has memory of its own.
  struct StateCopy {
    ValueId from, state;
  };

  // Steps.
  void make_steps();
  void add_nests(int item);
  void add_node(int item);
  class EarlySums;
  void start_sums_early();
  void place_waits();
  void bring_together();
  void bring_together(size_t begin, size_t end);
  void make_outboxes();
  void index_steps();
  void hold_leaving();
  void remove_gone();
  // Whether it runs with each micro-batch.
  bool is_repeated(Segment segment) const {
    return segment == Segment::kForward || segment == Segment::kBackward ||
           (segment == Segment::kReduce && options_.updates_each);
  }
  Use use_of(ValueId v) const;
  static bool reads_result(const Draft& reader, const Draft& start);
  size_t first_update() const;
  size_t first_write(ValueId state) const;
  Span& span_of(int id) { return id >= 0 ? value_spans_[id] : temporary_spans_[-1 - id]; }

  // Sharing.
  void join_accumulations();
  ValueId added_term(const State& s, ValueId next, int sum) const;
  void choose_bundles();
  void choose_states();
  void reduce_sums_in_place();
  bool can_update_in_place(const State& s, ValueId next) const;
  bool is_held_by_another(ValueId v, int collective) const;
  void share_in_place();
  bool may_take(int step, int out, int in) const;
  bool may_overwrite(int step, int written, int old) const;
  bool dies_with(ValueId v, int step) const;
  bool is_computed(ValueId v) const { return code_.producer(v) != kNoNode; }
  bool in_arena(ValueId v) const { return is_computed(v) && slot_of_[v].buffer < 0 && bundle_[v].buffer < 0; }
  ValueId root(ValueId v) const;

  // Buffers.
  void make_outside_buffers();
  void insert_copies();
  void add_state_copies(std::map<int, std::vector<Draft>>& before);
  void join_states();
  void make_buffers();
  void make_interface();
  void finish_lifetimes();
  void outlast_turns();
  void lay_out();
  void lay_out(runtime::Region region);
  // How long a buffer is used: within a phase; by later turns of the same pass, so that the micro-batches that take
  // turns have one each; or in later passes, so that every micro-batch in flight does.
  enum class Reach { kPhase, kPass, kStep };
  Reach reach_of(const PlanBuffer& buffer) const;
  int32_t chunk_of(const PlanStep& step) const;
  void lay_out_outboxes();
  void lay_out_slots(const std::map<int32_t, std::vector<size_t>>& kept);
  void lay_out_slots_on_host(const std::map<int32_t, std::vector<size_t>>& kept);
  int64_t end_of_slots(const std::vector<int64_t>& bytes, const std::vector<SlotClass>& classes) const;
  int64_t& region_end(runtime::Region region) { return plan_.region_bytes[static_cast<int>(region)]; }
  int64_t place(const std::vector<size_t>& buffers, int64_t start);
  PlanOperand operand(const TensorType& type, int id);
  Slot slot_for(ValueId v);
  Slot constant_slot(ValueId v);
  int new_buffer(runtime::Region region, int64_t bytes, int64_t offset = 0);
  int new_fixed(runtime::Region region, int64_t bytes);
  int new_temporary(const TensorType& type, runtime::Region region, bool to_the_end = false);
  // Where what a node makes lies.
  runtime::Region arena_of(NodeId node) const;
  // The first step after a phase of a segment.
  int end_of(Segment segment, int32_t phase) const;

  const CodeGraph& code_;
  const Graph& graph_;
  const PlanOptions& options_;
  const int64_t slots_;  // in flight
  StepPlan plan_;
  std::vector<Draft> drafts_;
  std::vector<std::vector<int>> drafts_of_item_;
  std::vector<Temporary> temporaries_;
  std::vector<int> outboxes_;  // temporaries
  std::vector<Span> value_spans_, temporary_spans_;
  std::vector<bool> is_output_;  // per storage value
  std::vector<int> next_of_;     // per storage value: how many states become it
  std::vector<Slot> slot_of_;    // per storage value: its buffer, once it has one
  std::vector<Slot> bundle_;     // per storage value: bundle (as `buffer`) and offset in it
  std::vector<Bundle> bundles_;
  std::vector<ValueId> same_;  // per storage value: the value whose buffer it takes over
  std::vector<StateCopy> copies_;
  std::vector<bool> copied_from_;         // per storage value: a copy at the end reads it
  std::map<ValueId, int> output_copies_;  // state whose old value is an output -> temporary that holds it
  std::multimap<uint64_t, size_t> constants_by_hash_;
  int last_training_ = -1, last_repeated_ = -1;
};

}  // namespace partita
