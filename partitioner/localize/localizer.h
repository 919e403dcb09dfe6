// The walk behind localize(); see localize.cc. Its parts: localize.cc (inputs, states, outputs), localize_nodes.cc
// (what becomes of a node), localize_values.cc (the forms in which a value is there).
#pragma once

#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "ir/graph/builder.h"
#include "partitioner/localize/localize.h"
#include "partitioner/localize/node_split.h"
#include "partitioner/localize/reshard.h"

namespace partita {

class Localizer {
 public:
  Localizer(const Graph& graph, const ShardingPlan& plan);

  absl::StatusOr<LocalProgram> run();
  absl::StatusOr<std::vector<Sharding>> shardings();

 private:
  // A value as it is there.
  struct Variant {
    ValueId local;
    Sharding sharding;
    Segment made = Segment::kPrologue;  // readers of earlier segments cannot see it
  };

  // The interface of the program.
  void start();
  void place_input(const GraphInput& in, const Sharding& sharding);
  void place_micro_batch();
  void declare_state(size_t k, const Sharding& sharding);
  void resolve_free_states(const Node& node);
  void finish_states();
  absl::StatusOr<LocalProgram> finish();

  // Nodes, in order.
  void walk();
  void visit(NodeId n);
  int put_off_depth(const Node& node) const;
  const Sharding* parameter_of(const Node& node) const;
  OperandLayouts layouts_of(ValueId v, const Node& node) const;
  void follow_parameter(const NodeUse& use, std::vector<OperandLayouts>& layouts) const;
  void inherit_layout(const Node& node);
  void emit(const NodeUse& use, const NodeSplit& division);
  void check_blocks(const NodeUse& use, const FactorSplit& split, const Sharding& result);
  ValueId make_partial(ValueId local, int axis);
  std::vector<ValueId> emit_local(const Node& node, const Formula& formula, const FactorSplit& split,
                                  const std::vector<ValueId>& inputs);
  void make(const Node& node, const Formula& formula, const FactorSplit& split);
  void lay_out(const Node& node, const ShardingPlan::StageReshard& reshard);
  bool is_cross_mesh(const Node& node) const;
  int64_t stage_index(int stage) const;
  void at(const Node& node);
  bool on_host(ValueId v) const;

  // Forms of values: one is made where it is asked for. Time: the axis over micro-batches that are parts of one run.
  ValueId get(ValueId v, const Sharding& target);
  bool made_of_parts(ValueId v, const Sharding& wanted, int depth);
  ValueId get_term(ValueId v, const Sharding& target);
  Sharding term_sharding(ValueId v) const;
  void add_slice_axes(Sharding& s) const;
  void make_front(ValueId v, const Sharding& sharding);
  void complete_early(ValueId v);
  void complete_late(ValueId v, OperandLayouts& o);
  bool is_accumulated(ValueId v) const;
  Sharding update_sharding(ValueId v) const;
  std::vector<ValueId> states_met(ValueId v) const;
  bool in_time(const Sharding& s) const;
  bool is_part(const Sharding& s) const;
  bool crosses(int axis, const Sharding& from, const Sharding& to) const;
  bool meets(ValueId v, const Sharding& from, const Sharding& to);
  bool make_whole(ValueId v, int depth);
  Sharding whole_sharding(ValueId v) const;
  bool is_trained(ValueId v) const;
  bool is_summed_up(ValueId v) const;
  void refuse_in_time(ValueId v, int32_t reader);  // the origin of what needs it whole
  void refuse_blocks(const Node& node, const std::string& factor, int axis);
  void refuse_apart(const Node* node);

  const Sharding& sharding_of(ValueId v) const { return variants_[v].front().sharding; }
  static bool is_micro_batch(Segment s) { return s == Segment::kForward || s == Segment::kBackward; }

  const Graph& graph_;
  const ShardingPlan& plan_;
  const Mesh& mesh_;
  Builder b_;
  Resharder resharder_;
  std::vector<std::vector<NodeId>> uses_;
  NodeSplitter splitter_;
  std::vector<std::vector<Variant>> variants_;  // per value; the first is the one that readers start from
  std::vector<int> put_off_;                    // 0: made in its turn
  std::map<ValueId, size_t> free_state_of_;
  std::map<ValueId, const StateLayout*> layout_of_;       // of the states that the plan places
  std::vector<std::pair<size_t, Sharding>> state_order_;  // in the order of the local graph's states
  std::vector<PlacedTensor> placed_inputs_;
  std::map<ValueId, size_t> input_of_;
  absl::Status refused_;
  bool completes_ = false;  // a sum over samples for the update, whose parts may meet
  std::optional<size_t> micro_batch_;
  LocalProgram result_;
};

}  // namespace partita
