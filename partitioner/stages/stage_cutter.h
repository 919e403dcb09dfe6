// The program of one pipeline stage, cut from that of all stages (split_stages.h).
#pragma once

#include <functional>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "ir/graph/builder.h"
#include "partitioner/localize/local_program.h"
#include "partitioner/stages/assign_stages.h"
#include "partitioner/stages/stage_messages.h"

namespace partita {

// One walk over the whole graph: nodes of the stage are copied, what nodes of no stage make is copied when it is first
// read, what another stage makes is received. A stage of the pipeline with several chunks of the model has several
// stages of the assignment; each of its chunks has its own of all that a micro-batch makes or receives.
class StageCutter {
 public:
  StageCutter(const LocalProgram& whole, const StageAssignment& stages, const StageMessages& messages,
              const PipelineStage& at, bool keep_unread);
  LocalProgram run();

 private:
  bool has_axis(int axis) const { return whole_.mesh.has(axis, at_.index); }
  // Of stages of the assignment; kAnywhere and kPartial are nowhere.
  bool is_here(int stage) const { return stage >= 0 && stage % pipeline_size_ == at_.index; }
  int chunk_of(int stage) const { return stage / pipeline_size_; }
  int stage_of(int chunk) const { return chunk * pipeline_size_ + static_cast<int>(at_.index); }
  ValueId& receive_here(ValueId v) { return here_[each_[v] ? static_cast<size_t>(chunk_) : 0][v]; }
  bool sums(size_t k) const { return graph_.states[k].kind == StateKind::kAccumulator; }
  // Chunks have terms of their own as long as micro-batches run.
  int term_chunk(ValueId v, int stage) const { return each_[v] ? chunk_of(stage) : 0; }

  // stage_cutter.cc: values, nodes, states and outputs.
  void begin();
  ValueId coordinate(int axis);
  void at(const Node& node);
  void at(ValueId v, Segment segment);
  ValueId& here(ValueId v);
  ValueId value_of(ValueId v);
  ValueId declare(size_t k);
  void copy(const Node& node);
  void emit(const Node& node, std::vector<ValueId> inputs);
  ValueId known_result(const Node& node, const std::vector<ValueId>& inputs);
  ValueId sum_along_own_axes(const Node& node, ValueId x);
  void finish_states();
  void finish_outputs();

  // stage_cutter_messages.cc: what stages send to each other.
  Attrs group(const std::vector<int>& along) const;
  std::vector<int> differing(const Message& m) const;
  std::vector<int64_t> those_of(int stage, const std::vector<int>& axes) const;
  // Calls visit(attributes of the message, coordinates along `own` of the other side) for each rank that `stage` has in
  // the group of a message between stages; `own`: the axes that sender and receiver differ in and `stage` has.
  void each_peer(const Message& m, int stage,
                 const std::function<void(Attrs, const std::vector<int64_t>& at)>& visit) const;
  const Node* reshard_node(const Message& m) const;
  bool is_reader(const Message& m, const Node& node) const;
  void enter_segment(Segment segment);
  void send(const Message& m);
  void send_part(const Message& m, ValueId part, Attrs attrs);
  size_t index_along(const std::vector<int64_t>& axes, const std::vector<int64_t>& own,
                     const std::vector<int64_t>& at) const;
  void receive(const Message& m);
  ValueId receive_from(Attrs attrs, const TensorType& type);
  void receive_parts(const Message& m);
  void receive_results(const Node& node);
  void send_results(const Node& node);
  std::vector<size_t> messages_with(const Node& node) const;

  // stage_cutter_terms.cc: sums of which several stages have terms.
  void copy_terms(const Node& node);
  void copy_term(const Node& node, const std::set<int>& stages);
  std::set<int> own_stages(ValueId v, const std::set<int>& stages) const;
  ValueId term_of(ValueId v, const std::set<int>& stages);
  ValueId own_sum(ValueId v, const std::set<int>& stages);
  void complete_inputs(const Node& node);
  void complete(ValueId v, Segment segment);

  const LocalProgram& whole_;
  const Graph& graph_;
  const StageAssignment& stages_;
  const StageMessages& messages_;
  const PipelineStage at_;
  const int pipeline_size_;
  const bool keep_unread_;  // states that no node reads
  Builder b_;
  int chunk_ = 0;                                    // of the node at hand
  std::vector<std::vector<ValueId>> here_;           // per chunk and value of the whole graph
  std::vector<int> value_stage_;                     // per value: as StageAssignment::node
  std::vector<bool> each_;                           // per value: made with each micro-batch
  std::vector<int> state_of_;                        // per value: the state that it is, or -1
  std::vector<std::vector<size_t>> sent_when_made_;  // per value: messages that are not early
  std::map<std::string, size_t> parameters_;         // states, by name
  std::vector<const Literal*> literals_;
  std::vector<std::pair<size_t, int>> declared_;                   // states, and the chunk that declared each
  std::map<ValueId, std::vector<ValueId>> received_;               // terms of sums
  std::map<std::pair<ValueId, int>, std::vector<ValueId>> parts_;  // received, of what is resharded, by chunk
  std::map<std::pair<ValueId, int>, ValueId> own_terms_;           // likewise, of this stage's chunks
  std::set<ValueId> completed_;
  LocalProgram out_;
};

}  // namespace partita
